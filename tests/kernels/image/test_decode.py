"""The kernels decode JPEG files to Pillow's pixels, or leave them to the host."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from math import ceil
from pathlib import Path

import numpy as np
import pytest

from cusim.build import FAST
from cusim.device import CusimDevice, Order
from kernels.device.compile import compile_kernel
from kernels.device.device import FaultError
from kernels.device.machine_code import DisassemblerNotFoundError, disassemble
from kernels.image.jpeg import Flag, JpegImage, Reason, UnsuitableError, read_jpeg
from kernels.tuning.control_flow import loops, path
from tests.support import ROOT
from tests.support.cases import INSTANTIATIONS
from tests.support.kernels.jpegs import (
    Codes,
    JpegRig,
    Result,
    coded,
    encoded,
    noise,
    parts_of,
    pillow,
    random_blocks,
    scene,
    whole,
)
from tests.support.kernels.mutations import replaced
from tests.support.kernels.resources import CACHE

EIGHTHS = (8, 4, 2, 1)
N = 16

PHOTOGRAPHS = [
    *sorted((ROOT / "service" / "api" / "page" / "photographs").glob("*.jpg")),
    *sorted((ROOT / "models" / "digits" / "samples").glob("*.jpg")),
]
SHARED = sorted((ROOT.parent / "shared" / "data" / "images").glob("*.JPEG"))


@pytest.fixture(scope="module")
def device() -> Iterator[CusimDevice]:
    simulated = CusimDevice(FAST, Order.RANDOM)
    yield simulated
    simulated.close()


@pytest.fixture(scope="module")
def rig(device: CusimDevice) -> JpegRig:
    """Return a rig for a batch of small images."""
    return JpegRig(device, N, 1 << 17, 1 << 19, blocks=2)


@pytest.fixture(scope="module")
def large(device: CusimDevice) -> JpegRig:
    """Return a rig for one image of any size."""
    return JpegRig(device)


def check(rig: JpegRig, files: Sequence[bytes], eighths: int, allowed: int = 0) -> int:
    """Decode files, check that their flags are allowed, and return the number of compared
    images."""
    compared = 0
    for begin in range(0, len(files), rig.n):
        part = files[begin : begin + rig.n]
        for data, result in zip(
            part, rig.run([whole(data, eighths) for data in part]), strict=True
        ):
            assert not result.flags & ~allowed
            expected = pillow(data, eighths)
            if result.flags or expected is None:
                continue
            assert np.array_equal(result.pixels, expected)
            compared += 1
    return compared


@pytest.mark.parametrize("photograph", PHOTOGRAPHS, ids=lambda path: path.stem)
def test_a_photograph_becomes_pillows_pixels(photograph: Path, large: JpegRig) -> None:
    assert check(large, [photograph.read_bytes()], 8) == 1


@pytest.mark.slow
@pytest.mark.parametrize("eighths", EIGHTHS)
def test_every_photograph_becomes_pillows_pixels(eighths: int, large: JpegRig) -> None:
    if not SHARED:
        pytest.skip("../shared/data/images has no photographs")
    every = 1 if eighths == 8 else 8
    files = [path.read_bytes() for path in (*PHOTOGRAPHS, *SHARED[::every])]
    small = [data for data in files if _has_room(data, eighths)]
    compared = check(large, small, eighths, Flag.NOT_SYNCHRONISED)
    # Two take more rounds than there are; one of 8 eighths has more than 2**20 pixels.
    assert compared >= len(files) - 3


def _has_room(data: bytes, eighths: int) -> bool:
    try:
        whole(data, eighths)
    except UnsuitableError as refused:
        return refused.reason is not Reason.LARGE
    return True


def synthetic(seed: int) -> tuple[bytes, int]:
    """Return a JPEG that Pillow writes, and eighths; each seed selects one combination."""
    random = np.random.default_rng(seed)
    width, height = (int(side) for side in random.integers(1, 100, 2))
    if seed % 6 == 0:
        width = int(random.integers(1, 6))
    kinds = (scene, scene, noise, lambda w, h, s: np.full((h, w, 3), s % 256, np.uint8))
    pixels = kinds[int(random.integers(4))](width, height, seed)
    sampling = seed % 5
    options = {
        "quality": int((10, 50, 75, 92, 100)[random.integers(5)]),
        "restart_marker_blocks": int(random.choice([0, 0, 1, 2, 5, 40])),
        "optimize": bool(random.integers(2)),
    }
    if sampling == 3:
        pixels = pixels[..., 0]
    elif sampling == 4:
        options["keep_rgb"] = True
    else:
        options["subsampling"] = sampling
    return encoded(pixels, **options), EIGHTHS[seed // 5 % 4]


def check_synthetic(rig: JpegRig, seeds: Iterator[int] | range) -> None:
    files: dict[int, list[bytes]] = {eighths: [] for eighths in EIGHTHS}
    for seed in seeds:
        data, eighths = synthetic(seed)
        files[eighths].append(data)
    # Noise of the best quality takes more rounds than there are.
    late = Flag.NOT_SYNCHRONISED
    compared = {eighths: check(rig, found, eighths, late) for eighths, found in files.items()}
    assert min(compared.values()) > len(files[8]) // 3
    assert compared[8] > 0.85 * len(files[8])


def test_what_pillow_writes_becomes_its_pixels(rig: JpegRig) -> None:
    check_synthetic(rig, range(160))


@pytest.mark.slow
def test_thousands_of_files_become_pillows_pixels(rig: JpegRig) -> None:
    check_synthetic(rig, range(160, 4960))


LUMA = (None, (1, 1), (2, 1), (1, 2), (2, 2))


def rare(seed: int) -> bytes:
    """Return a JPEG with random Huffman tables, quantization, coefficients and restarts."""
    random = np.random.default_rng(seed)
    luma = LUMA[seed % 5]
    width, height = (int(side) for side in random.integers(1, 90, 2))
    across, down = luma or (1, 1)
    per_mcu = 1 if luma is None else across * down + 2
    blocks = random_blocks(ceil(width / 8 / across) * ceil(height / 8 / down) * per_mcu, random)
    return coded(
        blocks,
        (width, height),
        luma,
        random=random,
        interval=int(random.integers(0, 6)),
        steps=bytes(random.integers(1, 9, 64).tolist()),
    )


def longest_code(data: bytes) -> int:
    """Return the length of the longest code in a file."""
    return max(16 - len(code[:16]) + len(code[:16].rstrip(b"\0")) for code in _codes(data))


def _codes(data: bytes) -> Sequence[bytes]:
    return read_jpeg(parts_of(data)).codes


def test_files_with_random_huffman_tables_become_pillows_pixels(rig: JpegRig) -> None:
    files = [rare(seed) for seed in range(64)]
    assert {longest_code(data) for data in files} == {16}
    for number, eighths in enumerate(EIGHTHS):
        assert check(rig, files[number::4], eighths) > 8


@pytest.mark.slow
def test_hundreds_of_random_huffman_tables_give_pillows_pixels(rig: JpegRig) -> None:
    for number, eighths in enumerate(EIGHTHS):
        assert check(rig, [rare(seed) for seed in range(64 + number, 1000, 4)], eighths) > 100


def test_a_crop_is_decoded_to_the_pixels_that_it_shows(large: JpegRig) -> None:
    """A crop at odd corners needs the samples next to it, although these are not visible."""
    for subsampling in (0, 1, 2):
        data = encoded(scene(70, 50), subsampling=subsampling)
        image = whole(data)
        inner = replace(image.resize, crop=(7, 5, 38, 30), frame=(31, 25))
        (result,) = large.run([JpegImage(image.file, 8, inner)])
        expected = pillow(data)
        assert expected is not None
        assert result.flags == 0
        assert np.array_equal(result.pixels, expected[5:30, 7:38])


# What is flagged.

GOOD = encoded(scene(64, 48), subsampling=2, quality=80)
SCAN = len(GOOD) - 2 - len(read_jpeg(parts_of(GOOD)).scan)
RESTARTED = encoded(scene(64, 48), restart_marker_blocks=4)


def never_synchronised() -> bytes:
    """Return a grey file in which every symbol has 15 bits and no block ends early. A walker that
    assumes the wrong coefficient never finds its mistake."""
    random = np.random.default_rng(1)
    one = Codes([7], random)
    one.lengths, one.codes = [8], {7: "0" * 8}
    values = random.integers(64, 128, (8 * 8, 64)) * random.choice([-1, 1], (8 * 8, 64))
    values[:, 0] = np.arange(1, 65) % 2 * 100
    return coded(values, (64, 64), None, random=random, codes=[one, one])


def _overflowing(value: int) -> bytes:
    blocks = np.zeros((1, 64), np.int64)
    blocks[0, 5] = value
    return coded(blocks, (8, 8), None, random=np.random.default_rng(2), steps=bytes([255] * 64))


def _too_many() -> bytes:
    """Return a file in which 16 zeros follow the 60th coefficient."""
    random = np.random.default_rng(4)
    codes = [Codes([0, 1], random), Codes([0x01, 0xF0, 0x00, 0x50], random)]
    blocks = np.zeros((4, 64), np.int64)
    data = coded(blocks, (16, 16), None, random=random, codes=codes)
    bits = codes[0].codes[0] + codes[1].codes[0xF0] * 4
    bits += "1" * (-len(bits) % 8)
    scan = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
    return data[: -2 - len(read_jpeg(parts_of(data)).scan)] + scan + b"\xff\xd9"


FLAGGED: dict[str, tuple[bytes, Flag]] = {
    "a marker in the scan": (GOOD[:-20] + b"\xff\x01" + GOOD[-20:], Flag.MARKER),
    "fill bytes": (GOOD[:-2] + b"\xff" + GOOD[-2:], Flag.MARKER),
    "a restart marker that is not expected": (GOOD[:-2] + b"\xff\xd0" + GOOD[-2:], Flag.MARKER),
    "restart markers in another order": (
        RESTARTED.replace(b"\xff\xd1", b"\xff\xd2"),
        Flag.MARKER,
    ),
    "a restart marker missing": (RESTARTED.replace(b"\xff\xd1", b""), Flag.MARKER),
    "an empty segment": (
        RESTARTED[: RESTARTED.index(b"\xff\xd0") + 2] + RESTARTED[RESTARTED.index(b"\xff\xd1") :],
        Flag.BITS_MISSING,
    ),
    "no scan": (GOOD[:SCAN] + GOOD[-2:], Flag.BITS_MISSING),
    "half a scan": (GOOD[: (SCAN + len(GOOD)) // 2] + GOOD[-2:], Flag.BITS_MISSING),
    "bytes after the scan": (GOOD[:-2] + bytes(3) + GOOD[-2:], Flag.BITS_LEFT_OVER),
    "a subsequence after the scan": (GOOD[:-2] + bytes(300) + GOOD[-2:], Flag.BITS_LEFT_OVER),
    "a value that wraps around": (_overflowing(40), Flag.OVERFLOW),
    "a DC value that wraps around": (
        coded(
            np.array([[32767] + [0] * 63, [32768] + [0] * 63]),
            (16, 8),
            None,
            random=np.random.default_rng(3),
            steps=bytes(64),  # so that the samples show nothing
        ),
        Flag.OVERFLOW,
    ),
    "too many zeros": (_too_many(), Flag.TOO_MANY_COEFFICIENTS),
    "codes that never synchronise": (never_synchronised(), Flag.NOT_SYNCHRONISED),
}


@pytest.mark.parametrize("what", FLAGGED)
def test_a_file_with_a_defect_is_flagged_and_its_neighbours_are_decoded(
    what: str, rig: JpegRig
) -> None:
    data, flag = FLAGGED[what]
    files = [GOOD, data, RESTARTED, data, GOOD]
    expected = [pillow(GOOD), None, pillow(RESTARTED), None, pillow(GOOD)]
    results = rig.run([whole(file) for file in files])
    for result, pixels in zip(results, expected, strict=False):
        if pixels is None:
            assert flag in Flag(result.flags)
        else:
            assert result.flags == 0
            assert np.array_equal(result.pixels, pixels)


def test_a_code_that_no_table_has_is_flagged(rig: JpegRig) -> None:
    """A code of only ones is not in any table."""
    data = bytearray(GOOD)
    data[SCAN + 100 : SCAN + 120] = b"\xff\0" * 10
    (result, *_) = rig.run([whole(bytes(data))])
    assert Flag.BAD_CODE in Flag(result.flags)


def test_every_flag_has_a_file() -> None:
    flagged = {flag for _, flag in FLAGGED.values()}
    assert flagged | {Flag.BAD_CODE} == set(Flag)


def test_a_value_just_below_the_largest_is_decoded(rig: JpegRig) -> None:
    assert check(rig, [_overflowing(30)], 8) == 1


def mutated(data: bytes, random: np.random.Generator) -> bytes:
    """Return the file with one to three defects."""
    out = bytearray(data)
    for _ in range(random.integers(1, 4)):
        at = int(random.integers(2, len(out)))
        match random.integers(4):
            case 0:
                out[at] ^= 1 << int(random.integers(8))
            case 1:
                out[at] = 0xFF
            case 2:
                del out[at : at + int(random.integers(1, 9))]
            case _:
                out[at:at] = random.bytes(3)
    return bytes(out)


@cache
def seeds_of_mutants() -> Sequence[bytes]:
    """Return small files of every kind."""
    picture = scene(80, 60)
    return (
        encoded(picture, subsampling=0, quality=60),
        encoded(picture, subsampling=2, quality=90),
        encoded(picture, subsampling=1, restart_marker_blocks=3, optimize=True),
        encoded(picture[..., 0], quality=40),
        encoded(noise(32, 32), subsampling=0, quality=75),
        rare(3),
    )


def check_mutants(rig: JpegRig, count: int, seed: int) -> Counter[str]:
    """Return what became of each mutant; mutants without a flag must have Pillow's pixels."""
    random, counts = np.random.default_rng(seed), Counter[str]()

    def suitable() -> Iterator[tuple[bytes, JpegImage]]:
        while True:
            files = seeds_of_mutants()
            data = mutated(files[int(random.integers(len(files)))], random)
            counts["mutants"] += 1
            try:
                image = whole(data)
            except UnsuitableError:
                counts["refused by its header"] += 1
                continue
            if rig.has_room(image):
                yield data, image
            else:
                counts["too large for this test"] += 1

    found = suitable()
    while counts["mutants"] < count:
        part = list(islice(found, rig.n))
        for (data, _), result in zip(part, rig.run([image for _, image in part]), strict=True):
            if result.flags:
                counts["flagged"] += 1
                continue
            expected = pillow(data)
            assert expected is not None, data.hex()
            assert np.array_equal(result.pixels, expected), data.hex()
            counts["equal"] += 1
    return counts


def test_what_is_not_flagged_of_500_broken_files_has_pillows_pixels(rig: JpegRig) -> None:
    counts = check_mutants(rig, 500, 0)
    assert min(counts["flagged"], counts["equal"], counts["refused by its header"]) > 80


@pytest.mark.slow
def test_what_is_not_flagged_of_20000_broken_files_has_pillows_pixels(rig: JpegRig) -> None:
    counts = check_mutants(rig, 20_000, 1)
    assert min(counts["flagged"], counts["equal"], counts["refused by its header"]) > 3000


def test_an_ac_symbol_takes_30_instructions() -> None:
    """Count the instructions on the shortest path through the loop, for a code of up to 9 bits that
    does not end a block."""
    kernel = next(each for each in INSTANTIATIONS if each.kernel == "jpeg_walk")
    try:
        code = disassemble(compile_kernel(kernel, "90a", CACHE))
    except DisassemblerNotFoundError as missing:
        pytest.skip(str(missing))
    (peek,) = (i for i, each in enumerate(code) if each.opcode.startswith("SHF.L.W"))
    loop = max((each for each in loops(code) if each.holds(peek)), key=lambda each: each.first)
    shortest = path(code, loop, lambda _: (-1,))
    assert sum(code[i].opcode.startswith("LDS") for i in shortest) == 1
    assert len(shortest) <= 30


DEFECTS = {
    "no flag for what is no code": ("huffman.cu", "if (symbol == NO_CODE) wrong |= BAD_CODE;", ""),
    "no flag for bits behind the end": (
        "huffman.cu",
        "if (left > 0 && slot.end == slot.last) wrong |= BITS_MISSING;",
        "",
    ),
    "no flag for bits left over": (
        "huffman.cu",
        "if (left == 0 && slot.last - at.bit > 7) wrong |= BITS_LEFT_OVER;",
        "",
    ),
    "a byte left over": ("huffman.cu", "slot.last - at.bit > 7", "slot.last - at.bit > 15"),
    "no flag for too many zeros": (
        "huffman.cu",
        "if (at.z > 64 && symbol >> 9 < 64) wrong |= TOO_MANY_COEFFICIENTS;",
        "",
    ),
    "no flag for a large DC value": (
        "huffman.cu",
        "if (number != short(number)) wrong |=",
        "if (0) wrong |=",
    ),
    "no flag for a marker": ("huffman.cu", "bool wrong = here.others != 0;", "bool wrong = false;"),
    "restarts in any order": ("huffman.cu", "here.bytes[i + 1] != 0xd0 + segment % 8", "false"),
    "any number of restarts": ("huffman.cu", "wrong = wrong || !expected;", ""),
    "no flag for walkers that never agree": (
        "huffman.cu",
        "if (!whole && last != 0) atomicOr",
        "if (false) atomicOr",
    ),
    "a link a subsequence too far": (
        "huffman.cu",
        "link = link_to(round, i);",
        "link = link_to(round + 1, i);",
    ),
    "a link to another block": (
        "huffman.cu",
        "link = link_to(round, i);",
        "link = link_to(round, i > 0 ? i - 1 : i);",
    ),
    "a twin that is none": (
        "huffman.cu",
        "->state & STATE) == mine)",
        "->state & 31) == (mine & 31))",
    ),
    "agreement about the bit alone": (
        "huffman.cu",
        "(others[i].state & STATE) == (record.state & STATE)",
        "(others[i].state & 31) == (record.state & 31)",
    ),
    "codes of 15 bits at most": (
        "huffman.cu",
        "for (int i = 0; i < 6; ++i) length",
        "for (int i = 0; i < 5; ++i) length",
    ),
    "stuffing kept": ("huffman.cu", "unsigned(before != 0xff && !restart)", "unsigned(!restart)"),
    "DC differences added across restarts": (
        "huffman.cu",
        "before.dc[i] - ahead.dc[i]",
        "before.dc[i]",
    ),
    "the bits of the number one place off": (
        "huffman.cu",
        "word << ((symbol & 31) - size)",
        "word << ((symbol & 31) - size + 1)",
    ),
    "no flag for a wrap at 16 bits": ("jpeg.cu", "if (!same) atomicOr", "if (false) atomicOr"),
    "another rounding of columns": ("jpeg.cu", "1 << (shift - 1)", "1 << (shift - 2)"),
    "biases 7 and 8 exchanged": ("jpeg.cu", "(sum + 8 - x % 2) >> 4", "(sum + 7 + x % 2) >> 4"),
    "biases 1 and 2 exchanged": ("jpeg.cu", "(sum + 1 + x % 2) >> 2", "(sum + 2 - x % 2) >> 2"),
    "rows' biases exchanged": ("jpeg.cu", "+ 1 + y % 2) >> 2", "+ 2 - y % 2) >> 2"),
    "the row above for the row below": ("jpeg.cu", "y % 2 ? 1 : -1", "y % 2 ? -1 : 1"),
    "samples of the padding": ("jpeg.cu", "0), width - 1)", "0), width)"),
    "two columns interpolated": ("jpeg.cu", "(wide && width <= 2)", "(wide && width <= 1)"),
    "colours exchanged": (
        "jpeg.cu",
        "to[0] = byte_of(luma + ((91881 * red",
        "to[0] = byte_of(luma + ((91881 * blue",
    ),
    "a flagged place decoded": ("jpeg.cu", "|| flags[blockIdx.y] != 0", ""),
}


@cache
def telling() -> Sequence[tuple[bytes, int]]:
    """Return files, each with eighths, that show the kernels' defects."""
    written = [synthetic(seed) for seed in (0, 1, 2, 3, 4, 6, 7, 12, 42, 48)]
    flagged = [(data, 8) for data, _ in FLAGGED.values()]
    narrow = [(encoded(scene(4, 30), subsampling=2), 8), (encoded(scene(3, 9), subsampling=1), 8)]
    long = [(encoded(scene(150, 90), subsampling=2), 8), (RESTARTED, 8), (GOOD, 8)]
    return [*written, *narrow, *long, *[(rare(seed), 8) for seed in range(10)], *flagged]


def decoded_by(device: CusimDevice) -> Sequence[Result]:
    """Return the results for these files."""
    rig = JpegRig(device, N, 1 << 17, 1 << 20, blocks=2)
    images = [whole(*file) for file in telling()]
    parts = (images[begin : begin + N] for begin in range(0, len(images), N))
    return [result for part in parts for result in rig.run(part)]


@pytest.mark.slow
@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_in_the_kernels_is_noticed(
    defect: str, device: CusimDevice, tmp_path: Path
) -> None:
    """A defect shows as other flags or other pixels."""
    right = decoded_by(device)
    broken = CusimDevice(FAST, Order.RANDOM, source_root=replaced(tmp_path, *DEFECTS[defect]))
    try:
        wrong = decoded_by(broken)
    except FaultError:
        return
    finally:
        broken.close()
    assert any(
        one.flags != other.flags or not np.array_equal(one.pixels, other.pixels)
        for one, other in zip(right, wrong, strict=True)
    )
