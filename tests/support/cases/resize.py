"""Lists cases of resize.cu: each kernel alone, and all three, on batches of several kinds."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kernels.image.decoded import DecodedImage, Placed, Resize, write
from kernels.image.resize import fetch_launch, first_axis_launch, second_axis_launch
from kernels.layout.strided import StridedTensor
from kernels.problems.interpolation import Interpolation
from kernels.problems.precision import BYTE
from tests.support.kernels.kernel_case import BYTE_POISON, Check, KernelCase, PlacedArray

Pixels = NDArray[np.uint8]

FRAME = (12, 9)
PLACE_BYTES, MIDDLE_BYTES = 1 << 13, 1 << 12

UPRIGHT = (False, False, False)
TURNS = {  # EXIF's orientation: whether x and y are mirrored, and then exchanged
    1: UPRIGHT,
    2: (True, False, False),
    3: (True, True, False),
    4: (False, True, False),
    5: (False, False, True),
    6: (False, True, True),
    7: (True, True, True),
    8: (True, False, True),
}


def pixels(height: int, width: int, channels: int, seed: int = 0) -> Pixels:
    """Return pixels of which every other is at one end of the scale, so that filters overshoot."""
    random = np.random.default_rng(seed)
    noise = random.integers(0, 256, (height, width, channels), np.uint8)
    ends = random.integers(0, 2, (height, width, 1), np.uint8) * np.uint8(255)
    return np.where(random.integers(0, 2, (height, width, 1)), noise, ends).astype(np.uint8)


def decoded(
    size: tuple[int, int],
    interpolation: Interpolation,
    *,
    orientation: int = 1,
    channels: int = 3,
    of: tuple[int, ...] = (0, 1, 2),
    frame: tuple[int, int] = FRAME,
    inside: tuple[int, int] | None = None,
    box: tuple[float, float, float, float] | None = None,
    crop: tuple[int, int] = (0, 0),
) -> DecodedImage:
    """Return an image of `size`, which fills `inside` of the frame; `crop` is cut away around."""
    x_reversed, y_reversed, transposed = TURNS[orientation]
    inside = inside or frame
    width, height = inside[::-1] if transposed else inside
    return DecodedImage(
        pixels(size[1], size[0], channels, orientation),
        Resize(
            size=(width + 2 * crop[0], height + 2 * crop[1]),
            box=box or (0.0, 0.0, float(size[0]), float(size[1])),
            crop=(crop[0], crop[1], crop[0] + width, crop[1] + height),
            interpolation=interpolation,
            x_reversed=x_reversed,
            y_reversed=y_reversed,
            transposed=transposed,
            frame=frame,
            channels=of,
            paper=(7, 100, 250)[: len(of)],
        ),
    )


def _places(images: Sequence[Placed], place_bytes: int = PLACE_BYTES) -> Pixels:
    """Return places with these images; what no entry fills is poison."""
    places = np.full((len(images), place_bytes), BYTE_POISON)
    for place, image in zip(places, images, strict=True):
        write(place, image)
    return places


def layout_of(*shape: int, pitch: int = 0) -> StridedTensor:
    """Return the layout of bytes, images `pitch` apart."""
    layout = StridedTensor.contiguous(shape, BYTE)
    return replace(layout, strides=(pitch, *layout.strides[1:])) if pitch else layout


def _whole(
    name: str,
    images: Sequence[Placed],
    place_bytes: int = PLACE_BYTES,
    middle_bytes: int = MIDDLE_BYTES,
) -> KernelCase:
    """All three kernels, from places to the network's pixels."""
    n, (height, width, channels) = len(images), images[0].shape

    def check() -> Check:
        inputs = {
            "images": PlacedArray(_places(images, place_bytes)),
            "entries": PlacedArray(np.full((n, place_bytes), BYTE_POISON)),
            "middle": PlacedArray(np.full((n, middle_bytes), BYTE_POISON)),
        }
        expected = np.stack([np.asarray(image) for image in images]).astype(np.float64)
        layout = layout_of(n, height, width, channels)
        return Check(inputs, layout, expected, 0.0, scratch=("entries", "middle"))

    launches = (
        fetch_launch(n, place_bytes),
        first_axis_launch(n, place_bytes, middle_bytes),
        second_axis_launch(n, (height, width, channels), place_bytes, middle_bytes),
    )
    return KernelCase(name, launches, check)


def _fetched() -> KernelCase:
    """Two entries of one length; behind them nothing is written."""
    images = [decoded((17, 20), Interpolation.BILINEAR, orientation=i) for i in (1, 3)]
    places = _places(images)
    used = int(places[0].view(np.int32)[0])  # Entry's first field

    def check() -> Check:
        expected = places[:, :used].astype(np.float64)
        layout = layout_of(2, used, pitch=PLACE_BYTES)
        return Check({"images": PlacedArray(places)}, layout, expected, 0.0)

    launch = fetch_launch(2, PLACE_BYTES).renamed({"entries": "y"})
    return KernelCase("of two entries", (launch,), check)


def _first(name: str, image: DecodedImage) -> KernelCase:
    """The first pass alone, and nothing behind what it makes."""
    # The other axis has its size, which the second pass leaves as it is.
    layout = layout_of(1, *np.asarray(image).shape)

    def check() -> Check:
        expected = np.asarray(image)[None].astype(np.float64)
        return Check({"entries": PlacedArray(_places([image]))}, layout, expected, 0.0)

    launch = first_axis_launch(1, PLACE_BYTES, MIDDLE_BYTES).renamed({"middle": "y"})
    return KernelCase(name, (launch,), check)


RESIZE_CASES = (
    _fetched(),
    _first("across", decoded((40, 9), Interpolation.BICUBIC)),
    _first("down, of one channel", decoded((12, 70), Interpolation.LANCZOS, channels=1, of=(0,))),
    *(
        _whole(
            f"{kind.value}: across first, pixels, down first, a part, on paper, upwards",
            [
                decoded((31, 17), kind),
                pixels(FRAME[1], FRAME[0], 3, 5),
                decoded((16, 60), kind, orientation=6),
                decoded((29, 23), kind, box=(2.3, 1.7, 26.1, 21.4), crop=(2, 1), of=(2, 1, 0)),
                decoded((30, 12), kind, inside=(12, 5), orientation=3),
                decoded((3, 2), kind, orientation=8, channels=1),
            ],
        )
        for kind in Interpolation
    ),
    *(
        _whole(
            f"of orientation {orientation}",
            [
                decoded((23, 31), Interpolation.BILINEAR, orientation=orientation),
                decoded((14, 50), Interpolation.BOX, orientation=orientation, inside=(7, 9)),
            ],
        )
        for orientation in TURNS
    ),
    _whole(
        "of one channel",
        [
            decoded((31, 17), Interpolation.HAMMING, channels=1, of=(0,)),
            pixels(FRAME[1], FRAME[0], 1),
            decoded((31, 17), Interpolation.BILINEAR, channels=1, of=(0,), inside=(3, 9)),
        ],
    ),
    # More bytes than the grids of the first two kernels have threads for at once.
    _whole(
        "of a photograph",
        [decoded((300, 200), Interpolation.BOX, frame=(130, 40))],
        1 << 18,
        80_000,
    ),
    _whole("of the size that is wanted", [decoded(FRAME, Interpolation.LANCZOS)]),
)
