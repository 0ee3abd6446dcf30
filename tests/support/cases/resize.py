"""Lists cases of resize.cu. Some cases also run the kernels of preprocess.cu, which read the images
from places. Batches contain several kinds of images."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.image.decoded import DecodedImage, Resize
from kernels.image.place import Kind, PlacedImage, array_bytes, kind_of, kind_of_batch, write
from kernels.image.resize import fetch_launch, first_axis_launch, second_axis_launch
from kernels.layout.pixels import Pixels as Layout
from kernels.layout.strided import StridedTensor
from kernels.operations.preprocess import Places, to_bytes_launch, to_floats_launch
from kernels.problems.interpolation import Interpolation
from kernels.problems.precision import BYTE, HALF, Storage
from tests.support.kernels import reference
from tests.support.kernels.kernel_case import BYTE_POISON, Check, KernelCase, PlacedArray

Pixels = NDArray[np.uint8]

FRAME = (12, 9)
_EVEN = (12, 8)
_QUARTERS = Storage(BYTE.dtype, 0.25, 3)
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
    """Return random pixels. About half of them are the smallest or the largest value, so that
    filters overshoot."""
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
    """Return a decoded image of `size`. After resizing, and after `crop` has removed the borders,
    the image fills the part `inside` of the frame."""
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


def _places(images: Sequence[PlacedImage], place_bytes: int = PLACE_BYTES) -> Pixels:
    """Return places that contain these images. Memory that does not belong to an image is
    poisoned."""
    places = np.full((len(images), place_bytes), BYTE_POISON)
    for place, image in zip(places, images, strict=True):
        write(place, image)
    return places


def layout_of(*shape: int, pitch: int = 0) -> StridedTensor:
    """Return the layout of images of bytes that begin `pitch` bytes apart."""
    layout = StridedTensor.contiguous(shape, BYTE)
    return replace(layout, strides=(pitch, *layout.strides[1:])) if pitch else layout


def tensor(
    channels: int, seed: int, frame: tuple[int, int] = FRAME, *, channels_last: bool = False
) -> NDArray[np.float32]:
    """Return a random tensor, C×H×W or H×W×C. It has the frame's height and width, so it is not
    resized."""
    spatial = frame[::-1]
    shape = (*spatial, channels) if channels_last else (channels, *spatial)
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _numbers(image: PlacedImage, scale: float, *, channels_last: bool) -> NDArray[np.float64]:
    """Return the network's input for an image, H×W×C. Pixels are multiplied by `scale`."""
    if kind_of(image) is Kind.TENSOR:
        array = np.asarray(image, np.float64)
        return array if channels_last else np.moveaxis(array, 0, -1)
    return np.asarray(image).astype(np.float64) * scale


def _whole(
    name: str,
    images: Sequence[PlacedImage],
    place_bytes: int = PLACE_BYTES,
    middle_bytes: int = MIDDLE_BYTES,
    *,
    frame: tuple[int, int] = FRAME,
    y: Layout | None = None,
    side: int = 0,
    channels_last: bool = False,
) -> KernelCase:
    """Return a case of all kernels, from the places of the images to the network's input.

    Pixels are multiplied by 1/4, which is exact. Bytes form blocks of `side` × `side` pixels.
    """
    n, (width, height), kind = len(images), frame, kind_of_batch(images)
    first = kind_of(images[0]) is Kind.TENSOR and not channels_last
    channels = images[0].shape[0 if first else -1]
    y = y or Layout(channels, channels)
    has_made = kind is Kind.DECODED
    places = Places(place_bytes, channels_last, has_made)

    def check() -> Check:
        inputs = {
            "images": PlacedArray(_places(images, place_bytes)),
            "entries": PlacedArray(np.full((n, place_bytes), BYTE_POISON)),
            "multiplier": PlacedArray(np.full(channels, 0.25, np.float32)),
            "offset": PlacedArray(np.zeros(channels, np.float32)),
        }
        if has_made:
            inputs["middle"] = PlacedArray(np.full((n, middle_bytes), BYTE_POISON))
            inputs["made"] = PlacedArray(np.full((n, height, width, channels), BYTE_POISON))
        numbers = [_numbers(image, 0.25, channels_last=channels_last) for image in images]
        expected: NDArray[Any] = np.moveaxis(np.stack(numbers), -1, 1)
        layout = y.strided(n, (height, width))
        if side:
            padding = ((0, 0), (0, 4 - channels), (0, 0), (0, 0))
            expected = reference.in_blocks(np.pad(expected.astype(np.float32), padding), side)
            expected = reference.quantize(expected, y.stored).astype(np.float64)
            blocks = replace(y, channels=4 * side**2)
            layout = blocks.strided(n, (height // side, width // side))
        else:
            padding = ((0, 0), (0, y.channels - channels), (0, 0), (0, 0))
            expected = np.pad(expected, padding)
        scratch = tuple(name for name in ("entries", "middle", "made") if name in inputs)
        return Check(inputs, layout, expected, 0.0, scratch=scratch)

    resize = (
        first_axis_launch(n, place_bytes, middle_bytes),
        second_axis_launch(n, (height, width, channels), place_bytes, middle_bytes).renamed(
            {"y": "made"}
        ),
    )
    last = (
        to_bytes_launch(channels, n, (height, width), y, side, places)
        if side
        else to_floats_launch(channels, n, height * width, y, places)
    )
    launches = (fetch_launch(n, place_bytes), *(resize if has_made else ()), last)
    return KernelCase(name, launches, check)


def _fetched() -> KernelCase:
    """Return a case that fetches two entries of the same length. Nothing may be written behind
    them."""
    images = [decoded((17, 20), Interpolation.BILINEAR, orientation=i) for i in (1, 3)]
    places = _places(images)
    used = int(places[0].view(np.int32)[1])  # Entry's field `bytes`

    def check() -> Check:
        expected = places[:, :used].astype(np.float64)
        layout = layout_of(2, used, pitch=PLACE_BYTES)
        return Check({"images": PlacedArray(places)}, layout, expected, 0.0)

    launch = fetch_launch(2, PLACE_BYTES).renamed({"entries": "y"})
    return KernelCase("of two entries", (launch,), check)


def _first(name: str, image: DecodedImage) -> KernelCase:
    """Return a case of the first pass alone. Nothing may be written behind its output."""
    # The other axis already has its final size, so the second pass would change nothing.
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
            f"{kind.value}: across first, pixels, a tensor, down first, a part, on paper, upwards",
            [
                decoded((31, 17), kind),
                pixels(FRAME[1], FRAME[0], 3, 5),
                tensor(3, 6),
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
        frame=(130, 40),
    ),
    _whole("of the size that is wanted", [decoded(FRAME, Interpolation.LANCZOS)]),
    *(
        _whole(
            f"of arrays, {what}",
            [pixels(FRAME[1], FRAME[0], 3, 1), *(tensor(3, seed) for seed in (2, 3))],
            array_bytes(4 * 3 * FRAME[0] * FRAME[1]),
            y=y,
        )
        for what, y in {
            "padded": Layout(4, 4),
            "in a wider pixel": Layout(8, 12, 4),
            "to halves": Layout(4, 4, stored=HALF),
            "to halves, padded": Layout(8, 8, stored=HALF),
        }.items()
    ),
    _whole(
        "of arrays, channels last",
        [
            tensor(3, 1, channels_last=True),
            pixels(FRAME[1], FRAME[0], 3),
            tensor(3, 2, channels_last=True),
        ],
        channels_last=True,
    ),
    _whole(
        "of grey arrays, padded",
        [tensor(1, 1), pixels(FRAME[1], FRAME[0], 1)],
        y=Layout(4, 4),
    ),
    *(
        _whole(
            f"of bytes, in blocks of {side}",
            [
                tensor(3, 1, _EVEN),
                pixels(*_EVEN[::-1], 3, 2),
                decoded((31, 17), Interpolation.BICUBIC, frame=_EVEN),
            ],
            frame=_EVEN,
            y=Layout(3, 16, stored=_QUARTERS),
            side=side,
        )
        for side in (1, 2)
    ),
    _whole(
        "of grey bytes",
        [pixels(*_EVEN[::-1], 1), tensor(1, 1, _EVEN)],
        frame=_EVEN,
        y=Layout(1, 4, stored=_QUARTERS),
        side=1,
    ),
)
