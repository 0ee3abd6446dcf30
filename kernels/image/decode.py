"""Launches kernels/src/huffman.cu and jpeg.cu, which decode the JPEG files in a batch."""

from kernels.device.launch import THREADS, Launch, instantiate, launch
from kernels.image.decoded import PLACE_BYTES
from kernels.image.jpeg import MOST_SCAN_BYTES, ROUNDS, SCRATCH_BYTES

HUFFMAN, PIXELS = "huffman.cu", "jpeg.cu"

_CHUNK_BYTES = 4096
_BLOCKS = 144
"""The number of blocks that decode one image. For a photograph, no thread then has more
than one walker (huffman.cu)."""

_WALKING = 128  # threads per block
_RESOLVING = 512

_RESOLVED = (1, 2, 3, 4, 6, ROUNDS)
"""The number of rounds after which a kernel checks whether more are needed."""


def decode_launches(
    n: int,
    place_bytes: int = PLACE_BYTES,
    scratch_bytes: int = SCRATCH_BYTES,
    blocks: int = _BLOCKS,
) -> tuple[Launch, ...]:
    """Return the launches that decode the JPEG files in a batch of n images. Their operands are
    entries, scratch (n times `scratch_bytes`) and flags (n int32).

    `fetch_launch` must run first, to copy the batch to entries with `place_bytes` for each image.
    The launches returned here replace each JPEG file's scan in entries with the decoded pixels.
    They write one number per image to flags: a sum of `Flag`s if the device could not decode the
    image, otherwise 0.
    """

    def over(source: str, kernel: str, blocks: int, threads: int, **more: int | str) -> Launch:
        operands = {"entries": "entries", "scratch": "scratch"}
        pitches = {"pitch": place_bytes, "scratch_pitch": scratch_bytes}
        flags = {} if kernel == "jpeg_walk" else {"flags": "flags"}
        grid, block = (blocks, n, 1), (threads, 1, 1)
        return launch(
            instantiate(source, kernel), grid, block, **operands, **flags, **pitches, **more
        )

    chunks = -(-min(place_bytes, MOST_SCAN_BYTES) // _CHUNK_BYTES)
    launches = [
        over(HUFFMAN, "jpeg_count", chunks + 1, THREADS),
        over(HUFFMAN, "jpeg_unstuff", chunks, THREADS),
    ]
    for number in range(1 + ROUNDS):
        launches.append(over(HUFFMAN, "jpeg_walk", blocks, _WALKING, round=number))
        if number in _RESOLVED:
            last = number == ROUNDS
            launches.append(over(HUFFMAN, "jpeg_resolve", 1, _RESOLVING, last=last))
    return (
        *launches,
        over(HUFFMAN, "jpeg_write", blocks, _WALKING),
        over(PIXELS, "inverse_dct", blocks, THREADS),
        over(PIXELS, "jpeg_pixels", blocks, THREADS),
    )
