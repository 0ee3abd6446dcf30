"""Kernels that overlap with the one before: in machine code they wait before they read."""

import pytest

from kernels.device.compile import compile_kernel
from kernels.device.device import Instantiation
from kernels.device.machine_code import DisassemblerNotFoundError, disassemble
from tests.support.cases import INSTANTIATIONS
from tests.support.kernels.resources import CACHE

ONE_OF_EACH = {(each.source, each.kernel): each for each in reversed(INSTANTIATIONS)}

_GLOBAL = ("LDG.", "LDGSTS", "LD.", "STG", "ST.", "ATOM", "RED", "UBLKCP")
_COPY = "LDGSTS"  # to shared memory
_WEIGHTS_FIRST = ("conv_coalesced", "conv_tensor", "conv_tensor_patch", "conv_tensor_winograd")
"""Kernels that copy weights to shared memory before they wait."""


@pytest.mark.parametrize("instantiation", ONE_OF_EACH.values(), ids=lambda each: each.kernel)
def test_no_load_or_store_is_before_the_wait(instantiation: Instantiation) -> None:
    """The compiler may move loads it takes to be of constants; it must not move them so far."""
    try:
        code = disassemble(compile_kernel(instantiation, "90a", CACHE))
    except DisassemblerNotFoundError as missing:
        pytest.skip(str(missing))
    opcodes = [each.opcode for each in code]
    (wait,) = (i for i, opcode in enumerate(opcodes) if opcode.startswith("ACQBULK"))
    assert any(opcode.startswith("PREEXIT") for opcode in opcodes[:wait])
    before = {opcode for opcode in opcodes[:wait] if opcode.startswith(_GLOBAL)}
    copies = {opcode for opcode in before if opcode.startswith(_COPY)}
    assert before == copies
    assert bool(copies) == (instantiation.kernel in _WEIGHTS_FIRST)
