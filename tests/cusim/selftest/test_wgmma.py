"""wgmma compared with matrices in NumPy, its descriptors, and NVRTC's machine code for the same
source."""

import re
import struct
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from cusim.build import BUILDS, ORDERED, PLAIN, Build
from cusim.device import CusimDevice, Order
from kernels.device.compile import compile_kernel
from kernels.device.device import SOURCE_ROOT, FaultError
from kernels.device.machine_code import disassemble
from tests.cusim.selftest.defects import multiplies_by_warpgroups
from tests.cusim.selftest.launching import (
    KERNELS,
    Passed,
    instantiation,
    launch,
    opened,
    unwritten,
)
from tests.support.kernels import ptx

FORMS = [
    (kind, columns, registers)
    for kind in ("F16", "TF32", "U8S8")
    for columns, registers in ((32, True), (64, False), (128, False), (128, True))
] + [("F16", columns, False) for columns in (16, 112)]


@pytest.mark.parametrize(("kind", "columns", "registers"), FORMS)
def test_every_form_multiplies_in_every_order(kind: str, columns: int, registers: bool) -> None:
    for order in Order:
        device = opened(PLAIN, order)
        assert multiplies_by_warpgroups(device, "NONE", kind, columns, registers=registers)
        device.close()


@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.name)
def test_a_plain_store_without_a_fence_is_caught_where_stores_are_seen(build: Build) -> None:
    device = opened(build)
    if build is ORDERED:
        with pytest.raises(FaultError, match=r"stored at .*, but no fence\.proxy\.async follows"):
            multiplies_by_warpgroups(device, "PLAIN_STORE")
    else:
        assert multiplies_by_warpgroups(device, "PLAIN_STORE")
    device.close()


def test_tf32_factors_are_truncated_and_sums_too(device: CusimDevice) -> None:
    a = np.full((128, 32), 1 + 2.0**-10 - 2.0**-20, np.float32)  # nearly the next TF32 number
    b = np.ones((32, 32), np.float32)
    kernel = instantiation("wgmma.cu", "multiply", kind="Kind::TF32", n=32, registers=False)
    arguments: list[Passed] = [a, b, unwritten((128, 32)), np.int32(1), np.int32(0)]
    y = launch(device, kernel, (1, 1, 1), (256, 1, 1), arguments, 2 * (128 + 32) * 128)[2]
    assert (y == 32).all()


def _laid_out(matrix: NDArray[np.float16], swizzle: int) -> tuple[NDArray[np.uint8], int, int]:
    """Return rows of 32 bytes as they are stored, and the offsets along K and between groups of 8
    rows.

    In a swizzled row with more than 32 bytes, these are the second 32 bytes.
    """
    rows = matrix.view(np.uint8).reshape(len(matrix), 2, 16)
    count = len(rows)
    if swizzle == 0:  # matrices of 8 rows x 16 bytes, those of the second 16 bytes behind all
        memory = rows.reshape(count // 8, 8, 2, 16).transpose(2, 0, 1, 3)
        return np.ascontiguousarray(memory).reshape(-1), count * 16, 128
    vectors = 16 >> swizzle  # of a row
    flips = {1: np.arange(count), 2: np.arange(count) // 2, 3: np.arange(count) // 4}[swizzle]
    laid = np.full((count, vectors, 16), 0xFF, np.uint8)
    for i in range(2):
        vector = i + (2 if vectors > 2 else 0)
        laid[np.arange(count), vector ^ flips % vectors] = rows[:, i]
    return laid.reshape(-1), 16, 8 * vectors * 16


@pytest.mark.parametrize("swizzle", [0, 1, 2, 3], ids=["none", "128", "64", "32"])
def test_a_descriptor_says_where_rows_lie(device: CusimDevice, swizzle: int) -> None:
    random = np.random.default_rng(swizzle)
    a, b = (random.integers(-9, 10, (rows, 16)).astype(np.float16) for rows in (64, 32))
    memory = bytearray()
    descriptors = []
    for matrix in (a, b):
        memory += bytes(-len(memory) % 1024)
        laid, leading, stride = _laid_out(matrix, swizzle)
        start = len(memory) + (32 if swizzle in (1, 2) else 0)
        descriptors.append(start >> 4 | (leading >> 4) << 16 | (stride >> 4) << 32 | swizzle << 62)
        memory += laid.tobytes()
    tiles = np.frombuffer(bytes(memory), np.uint8)
    arguments: list[Passed] = [
        tiles,
        np.int32(tiles.size // 16),
        struct.pack("2Q", *descriptors),
        unwritten((64, 32)),
    ]
    kernel = instantiation("wgmma.cu", "multiply_described")
    y = launch(device, kernel, (1, 1, 1), (128, 1, 1), arguments, tiles.size)[-1]
    assert (y == a.astype(np.float32) @ b.astype(np.float32).T).all()


@pytest.mark.parametrize("registers", [False, True], ids=["shared", "registers"])
@pytest.mark.parametrize("kind", ["F16", "TF32", "U8S8"])
def test_a_compiler_takes_the_source_and_lets_products_overlap(
    kind: str, registers: bool, tmp_path: Path
) -> None:
    kernel = instantiation(
        "wgmma.cu", "multiply_rightly", kind=f"Kind::{kind}", n=64, registers=registers
    )
    headers = {path.name: path.read_text(encoding="utf-8") for path in SOURCE_ROOT.glob("*.cuh")}
    source = (KERNELS / kernel.source).read_text(encoding="utf-8")
    for name, text in {**headers, kernel.source: source}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    cubin = compile_kernel(kernel, "90a", tmp_path / "cache", tmp_path)
    code = Counter(each.opcode for each in disassemble(cubin))
    assert sum(count for name, count in code.items() if re.match("[HI]GMMA", name)) == 4
    assert code["WARPGROUP.ARRIVE"] == code["WARPGROUP.DEPBAR.LE"] == 1
    assert cubin.resources.spill_stores == cubin.resources.spill_loads == 0
    # ptxas warns so where it waits for each product.
    assert "C75" not in ptx.made(kernel, tmp_path).log
