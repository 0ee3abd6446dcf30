"""Lists cases of huffman.cu and jpeg.cu, from image files in a batch to the network's input."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from kernels.image.decode import decode_launches
from kernels.image.decoded import DecodedImage
from kernels.image.jpeg import JpegImage, read_jpeg
from kernels.image.place import PlacedImage, write
from kernels.image.resize import fetch_launch, first_axis_launch, second_axis_launch
from kernels.problems.interpolation import Interpolation
from tests.support.cases.resize import FRAME, decoded, layout_of
from tests.support.kernels.jpeg_stages import Stages
from tests.support.kernels.jpegs import (
    Bytes,
    coded,
    encoded,
    noise,
    parts_of,
    pillow,
    random_blocks,
    scene,
)
from tests.support.kernels.kernel_case import BYTE_POISON, Check, KernelCase, PlacedArray

PLACE_BYTES, MIDDLE_BYTES, SCRATCH_BYTES = 1 << 15, 1 << 14, 1 << 18

File = tuple[bytes, int]
"""A JPEG file, and the scale in eighths at which it is decoded."""


def jpeg(file: File) -> JpegImage:
    """Return an image for the device. Its last row and column are cropped, and the remaining image
    is resized to the frame."""
    data, eighths = file
    headers = read_jpeg(parts_of(data))
    width, height = headers.scaled(eighths)
    box = (0.0, 0.0, max(1.0, width - 1.0), max(1.0, height - 1.0))
    resize = replace(decoded((1, 1), Interpolation.BILINEAR).resize, box=box)
    return JpegImage(headers, eighths, resize)


def expected(image: File | PlacedImage) -> Bytes:
    """Return the network's input for an image. Pillow decodes a JPEG."""
    if not isinstance(image, tuple):
        return np.asarray(image)
    by_pillow = pillow(*image)
    assert by_pillow is not None
    return np.asarray(DecodedImage(by_pillow, jpeg(image).resize))


def _whole(name: str, images: Sequence[File | PlacedImage]) -> KernelCase:
    """Return a case of all kernels, from the places (the memory of the batch's images) to the
    network's input."""
    n = len(images)

    def check() -> Check:
        places = np.full((n, PLACE_BYTES), BYTE_POISON)
        for place, image in zip(places, images, strict=True):
            jpeg(image).write(place) if isinstance(image, tuple) else write(place, image)
        inputs = {
            "images": PlacedArray(places),
            "entries": PlacedArray(np.full((n, PLACE_BYTES), BYTE_POISON)),
            "scratch": PlacedArray(np.full((n, SCRATCH_BYTES), BYTE_POISON)),
            "middle": PlacedArray(np.full((n, MIDDLE_BYTES), BYTE_POISON)),
            "flags": PlacedArray(np.full(n, -1, np.int32)),
        }
        answer = np.stack([expected(image) for image in images]).astype(np.float64)
        scratch = ("entries", "scratch", "middle", "flags")
        return Check(inputs, layout_of(*answer.shape), answer, 0.0, scratch=scratch)

    launches = (
        fetch_launch(n, PLACE_BYTES),
        *decode_launches(n, PLACE_BYTES, SCRATCH_BYTES, blocks=2),
        first_axis_launch(n, PLACE_BYTES, MIDDLE_BYTES),
        second_axis_launch(n, (*FRAME[::-1], 3), PLACE_BYTES, MIDDLE_BYTES),
    )
    return KernelCase(name, launches, check)


DECODING = decode_launches(1, PLACE_BYTES, SCRATCH_BYTES, blocks=2)


@cache
def _states(file: File) -> tuple[Bytes, Sequence[Bytes]]:
    """Return a place, and a list of the expected memory before the first launch and after each
    launch. The last entry is the memory of the place. All other entries are the scratch memory."""
    place = np.full(PLACE_BYTES, BYTE_POISON)
    jpeg(file).write(place)
    stages = Stages(place)
    found, whole, walks = [np.full(SCRATCH_BYTES, BYTE_POISON)], False, 0
    for launch in DECODING:
        before = found[-1]
        match launch.instantiation.kernel:
            case "jpeg_count":
                found.append(stages.counted(before))
            case "jpeg_unstuff":
                found.append(stages.unstuffed(before))
            case "jpeg_walk":
                found.append(before if whole else stages.walked(before, walks))
                walks += 1
            case "jpeg_resolve":
                found.append(before if whole else stages.resolved(before))
                whole = before.tobytes() != found[-1].tobytes() or whole
            case "jpeg_write":
                found.append(stages.written(before))
            case "inverse_dct":
                found.append(stages.transformed(before))
            case "jpeg_pixels":
                found.append(stages.coloured(before))
    return place, found


def _stage(name: str, file: File, number: int) -> KernelCase:
    """Return a case of one launch. The reference computes the memory that this launch reads."""
    launch = DECODING[number]
    changed = "entries" if launch.instantiation.kernel == "jpeg_pixels" else "scratch"

    def check() -> Check:
        place, states = _states(file)
        inputs = {
            "entries": PlacedArray(place),
            "scratch": PlacedArray(states[number]),
            "flags": PlacedArray(np.zeros(1, np.int32)),
        }
        answer = states[number + 1][None].astype(np.float64)
        used = {name: inputs[name] for name in launch.operands}
        scratch = ("flags",) if "flags" in launch.writes else ()
        return Check(used, layout_of(*answer.shape), answer, 0.0, changed, scratch)

    return KernelCase(f"{name}: launch {number}", (launch,), check)


PICTURE = scene(61, 45)
GENERATOR = np.random.default_rng(11)


STAGED: dict[str, File] = {
    "4:2:0 at 8 eighths": (encoded(PICTURE, subsampling=2, quality=90), 8),
    "4:2:2 with restarts at 4 eighths": (
        encoded(PICTURE, subsampling=1, restart_marker_blocks=5, optimize=True),
        4,
    ),
    "noise, of which walkers agree late": (encoded(noise(40, 40), subsampling=0), 8),
    "4:4:4 at 2 eighths": (encoded(PICTURE, subsampling=0), 2),
    "grey with codes of 16 bits": (
        coded(random_blocks(48, GENERATOR), (61, 45), None, random=GENERATOR, interval=20),
        8,
    ),
}

JPEG_CASES = (
    *(
        _stage(name, file, number)
        for name, file in STAGED.items()
        for number in range(len(DECODING))
    ),
    _whole(
        "of each sampling, between others",
        [
            (encoded(PICTURE, subsampling=0), 8),
            (encoded(PICTURE, subsampling=1), 8),
            (encoded(PICTURE, subsampling=2), 8),
            decoded((31, 17), Interpolation.BICUBIC),
            (encoded(PICTURE[..., 0]), 8),
            (encoded(PICTURE, keep_rgb=True), 8),
        ],
    ),
    *(
        _whole(
            f"at {eighths} eighths",
            [(encoded(PICTURE, subsampling=subsampling), eighths) for subsampling in (0, 1, 2)],
        )
        for eighths in (4, 2, 1)
    ),
    _whole(
        "with restart markers",
        [
            (encoded(PICTURE, subsampling=2, restart_marker_blocks=1), 8),
            (encoded(PICTURE, subsampling=0, restart_marker_blocks=3), 8),
            (encoded(PICTURE, quality=98, restart_marker_rows=1), 8),
        ],
    ),
    # Sums over subsequences go from warp to warp.
    _whole(
        "of more subsequences than a warp has threads",
        [(encoded(scene(90, 90), subsampling=2, quality=95), 8)],
    ),
    _whole(
        "of noise",
        [(encoded(noise(50, 50), quality=quality, optimize=True), 8) for quality in (95, 50, 5)],
    ),
)
