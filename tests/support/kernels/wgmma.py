"""Contains code that the tests of wgmma kernels share: their machine code, and the defects that
each of these kernels could have."""

from collections import Counter
from collections.abc import Sequence

from kernels.device.compile import Cubin, compile_all
from kernels.device.device import Instantiation
from kernels.device.machine_code import Instruction, disassemble
from tests.support.kernels import ptx
from tests.support.kernels.resources import CACHE

OF_PRODUCTS = {
    "pixels of the first warpgroup for all": ("warp / 4 * (64 * ROW)", "0 * warp"),
    "tiles aligned to 128 bytes": ("SWIZZLED_SHARED", "DYNAMIC_SHARED"),
    "no zeros for a part without chunks": ("clear(sums);  // no product", ";  // no product"),
}

OF_CLUSTERS = {
    "the first rows for all": ("first_row = min(split * each, exist)", "first_row = 0"),
    "rows of others, not added up": (
        "end = first_pixel + first_row + count",
        "end = first_pixel + exist",
    ),
    "rows that do not divide": ("exist + splits - 1, sizes", "exist, sizes"),
    "a workspace that is not there": ("in_cluster ? 1 : splits", "splits"),
}
"""Defects in the code with which the blocks of a cluster add the parts of sums."""


def machine_code(
    kernel: Instantiation, waiting: Sequence[bool]
) -> tuple[Cubin, tuple[Instruction, ...], Counter[str]]:
    """Compile a kernel for Hopper. Return the cubin, its instructions, and the count of each
    opcode.

    `waiting` has an entry for each product, which is true if the product waits for earlier
    products. Fails if the machine code differs, or if an instruction other than wgmma multiplies.
    Also fails if ptxas warned that it lets every product wait (C7510 to C7515).
    """
    ((_, cubin),) = compile_all([kernel], [ptx.ARCHITECTURE], CACHE).items()
    assert cubin.resources.spill_stores == cubin.resources.spill_loads == 0
    log = ptx.made(kernel).log
    assert "registers" in log
    assert "C75" not in log
    listed = disassemble(cubin)
    assert ["gsb0" in each.operands for each in listed if each.base == "HGMMA"] == list(waiting)
    code = Counter(each.opcode for each in listed)
    assert not any(opcode.startswith("HMMA") for opcode in code)
    loads = sum(count for opcode, count in code.items() if opcode.startswith("LDSM"))
    assert loads == (4 if "TF32" in kernel.expression else 0)  # of pixels
    return cubin, listed, code
