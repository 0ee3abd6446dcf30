"""Launches kernels/src/resize.cu, which copies a batch to the device and resizes its decoded
images."""

from kernels.device.launch import THREADS, Launch, blocks_of_threads, instantiate, launch
from kernels.image.decoded import MIDDLE_BYTES, PLACE_BYTES

SOURCE = "resize.cu"

_FETCHING = 32
"""The number of blocks that copy one image. Together they request 128 kB at once, more than a PCIe
bus has in flight."""

_FIRST_BLOCKS = 256
"""The blocks for the first pass of one image, such that each thread writes a few bytes of a
photograph."""


def fetch_launch(n: int, place_bytes: int = PLACE_BYTES) -> Launch:
    """Return a launch that copies a batch of n images to the device. It reads the operand `images`
    and writes the operand `entries`. The unused end of each image's memory is not copied."""
    return launch(
        instantiate(SOURCE, "fetch"),
        (_FETCHING, n, 1),
        (THREADS, 1, 1),
        images="images",
        entries="entries",
        pitch=place_bytes,
    )


def first_axis_launch(
    n: int, place_bytes: int = PLACE_BYTES, middle_bytes: int = MIDDLE_BYTES
) -> Launch:
    """Return a launch of the first pass of the resize: it resamples each of n decoded images along
    one axis. It reads the operand entries, and writes the operand middle."""
    return launch(
        instantiate(SOURCE, "first_axis"),
        (_FIRST_BLOCKS, n, 1),
        (THREADS, 1, 1),
        entries="entries",
        middle="middle",
        pitch=place_bytes,
        middle_pitch=middle_bytes,
    )


def second_axis_launch(
    n: int,
    shape: tuple[int, int, int],
    place_bytes: int = PLACE_BYTES,
    middle_bytes: int = MIDDLE_BYTES,
) -> Launch:
    """Return a launch of the second pass of the resize: it writes the pixels of n decoded images,
    each of `shape` H×W×C. It reads the operands entries and middle, and writes the operand y. For
    images that are not decoded images, y stays unchanged.

    Raises ValueError if an image of this shape exceeds MIDDLE_BYTES.
    """
    height, width, channels = shape
    nbytes = height * width * channels
    if nbytes > MIDDLE_BYTES:
        raise ValueError(
            f"an image of {height}×{width}×{channels} is too large for its memory in a batch"
        )
    (blocks, _, _), block = blocks_of_threads(nbytes)
    return launch(
        instantiate(SOURCE, "second_axis"),
        (blocks, n, 1),
        block,
        entries="entries",
        middle="middle",
        y="y",
        pitch=place_bytes,
        middle_pitch=middle_bytes,
        bytes=nbytes,
        channels=channels,
        width=width,
    )
