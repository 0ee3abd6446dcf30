"""Kernels that overlap with earlier launches: their early reads, in source and machine code."""

import re
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from cusim.device import CusimDevice
from kernels.device.compile import compile_kernel
from kernels.device.device import SOURCE_ROOT, FaultError, Instantiation, Trigger, Variant
from kernels.device.machine_code import DisassemblerNotFoundError, disassemble
from kernels.device.signature import parameters
from tests.support.cases import CASES, INSTANTIATIONS
from tests.support.kernels.kernel_case import WEIGHTS, KernelCase, run
from tests.support.kernels.mutations import mutant, replaced
from tests.support.kernels.resources import CACHE

ONE_OF_EACH = {(each.source, each.kernel): each for each in reversed(INSTANTIATIONS)}

_GLOBAL = ("LDG.", "LDGSTS", "LD.", "STG", "ST.", "ATOM", "RED", "UBLKCP")
_COPY = "LDGSTS"  # to shared memory
_PREFETCH = "CCTL.E.PF2"  # prefetch.global.L2
_WEIGHTS_FIRST = (
    *("conv_direct", "conv_winograd", "conv_coalesced", "conv_integer"),
    *("conv_tensor", "conv_tensor_patch", "conv_tensor_winograd", "conv_integer_patch"),
)
"""Kernels that copy weights to shared memory before they wait, if they normalise no layer."""

_LATE = (*_WEIGHTS_FIRST, "chain")
"""Kernels that can let the next launch begin as soon as their sums are complete."""

_SOME_LATE = ("conv_direct", "conv_tensor", "chain")
"""Kernels for which the ordinary suite tests this; each is compiled three times."""

_WAITS = {"conv_winograd": 2, "conv_tensor_tma": 2}
"""The number of waits in a kernel's code, if not one: each thread of either role waits once."""


@pytest.mark.parametrize(
    "instantiation",
    [
        pytest.param(each, marks=[pytest.mark.slow] * (each.kernel not in _SOME_LATE))
        for each in ONE_OF_EACH.values()
        if each.kernel in _LATE
    ],
    ids=lambda each: each.kernel,
)
def test_the_next_kernel_begins_when_the_launch_says(instantiation: Instantiation) -> None:
    """PREEXIT is the trigger, ACQBULK the wait."""

    def places(trigger: Trigger) -> tuple[list[int], int]:
        cubin = compile_kernel(replace(instantiation, trigger=trigger), "90a", CACHE)
        opcodes = [each.opcode for each in disassemble(cubin)]
        wait, *_ = (i for i, opcode in enumerate(opcodes) if opcode.startswith("ACQBULK"))
        return [i for i, opcode in enumerate(opcodes) if opcode.startswith("PREEXIT")], wait

    try:
        (start,), wait = places(Trigger.START)
    except DisassemblerNotFoundError as missing:
        pytest.skip(str(missing))
    assert start < wait
    late, wait = places(Trigger.EPILOGUE)
    assert late
    assert min(late) > wait
    assert places(Trigger.END)[0] == []


def _reads_no_weights(kernel: Instantiation) -> bool:
    declared = parameters(SOURCE_ROOT / kernel.source, kernel.kernel)
    return not any(each.restricted for each in declared)


def _hold(kernel: Instantiation, root: Path = SOURCE_ROOT) -> None:
    try:
        code = disassemble(compile_kernel(kernel, "90a", CACHE, root))
    except DisassemblerNotFoundError as missing:
        pytest.skip(str(missing))
    opcodes = [each.opcode for each in code]
    wait, *others = (i for i, opcode in enumerate(opcodes) if opcode.startswith("ACQBULK"))
    late = Variant.LATE_WEIGHTS in kernel.variants
    assert 1 + len(others) == _WAITS.get(kernel.kernel, 1) + late
    assert any(opcode.startswith("PREEXIT") for opcode in opcodes[:wait])
    before = {opcode for opcode in opcodes[:wait] if opcode.startswith(_GLOBAL)}
    copies = {opcode for opcode in before if opcode.startswith(_COPY)}
    assert before == copies
    has_registers = "Prologue::LAYER_NORM" not in kernel.expression
    weights_first = kernel.kernel in _WEIGHTS_FIRST and has_registers
    assert bool(copies) == (weights_first and not late)
    prefetches = kernel.kernel in (*_WEIGHTS_FIRST, "linear")
    assert (_PREFETCH in opcodes[:wait]) == (prefetches and Variant.PREFETCH in kernel.variants)
    if _reads_no_weights(kernel):
        unordered = {opcode for opcode in opcodes if ".CONSTANT" in opcode}
        assert not unordered, "the wait orders nothing for these loads"


@pytest.mark.parametrize("kernel", ONE_OF_EACH.values(), ids=lambda each: each.kernel)
def test_in_machine_code_no_access_is_before_the_wait_and_every_load_behind_it_is_ordered(
    kernel: Instantiation,
) -> None:
    """The compiler may move loads that it assumes to read constants, but not before the wait."""
    _hold(kernel)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", INSTANTIATIONS, ids=str)
def test_so_it_is_in_every_instantiation(kernel: Instantiation) -> None:
    _hold(kernel)


@pytest.mark.parametrize("variant", Variant)
@pytest.mark.parametrize("kernel", _WEIGHTS_FIRST)
def test_what_kernels_do_ahead_of_the_wait_has_switches(kernel: str, variant: Variant) -> None:
    (one,) = (each for each in ONE_OF_EACH.values() if each.kernel == kernel)
    _hold(replace(one, variants=(variant,)))


def test_some_kernels_read_no_weights() -> None:
    assert {each.kernel for each in ONE_OF_EACH.values() if _reads_no_weights(each)} >= {
        *("binary", "global_pool", "lrn", "map", "pool", "reduce", "softmax", "top_k"),
        *("winograd_data", "winograd_inverse"),
    }


def test_only_weights_are_declared_with_restrict() -> None:
    restricted = {
        (launch.instantiation.kernel, operand)
        for case in CASES
        for launch in case.launches
        for operand in launch.restricted
    }
    assert restricted
    assert {operand for _, operand in restricted} <= WEIGHTS


RESTRICTED = "pooling.cu", "pool(const T* x", "pool(const T* __restrict__ x"
POOL = next(case for case in CASES if case.launches[0].instantiation.kernel == "pool")


BEHIND = "  wait_for_previous();\n"
STAGES = "#pragma unroll 1\n  for (int stage = 0; stage < STAGES - 1; ++stage) {\n"
COPIES = {
    "implicit_gemm.cu": f"""{STAGES}    if (first_chunk + stage < last_chunk) {{
      copy_x(stage);
      if constexpr (!AHEAD) copy_weights(stage);
    }}
    cp_async_commit();
  }}
""",
    "tensor_gemm.cu": f"""{STAGES}    if (first_chunk + stage < last_chunk) copy_x(stage);
    cp_async_commit();
  }}
""",
    "tensor_patch.cu": """  unsigned char *patch = patches, *next = patches + sizes.patch_bytes;
  copy_patch(first_slice, patch);
""",
    "tensor_winograd.cu": "  if (first_chunk < last_chunk) copy_pixels(first_chunk, 0);\n",
    "winograd.cu": "    if (chunks > 0) copy(0);\n",
}
"""The first lines after the wait, by source: they copy activations to shared memory."""

_MAY_READ = re.compile(r"wait_for_previous\(\);|follow_previous\(\);")

WAITS = [
    (source, place.start(), place.end())
    for source in sorted({kernel.source for kernel in ONE_OF_EACH.values()})
    for place in _MAY_READ.finditer((SOURCE_ROOT / source).read_text(encoding="utf-8"))
]
"""Return the positions of all waits, by source."""


_NOTICED = "before it waited|no thread waited|out of bounds|misaligned address|illegal address"
"""The simulator's messages. A plain early load shows by its value: as an offset or a length, it is
an address that does not exist."""


def _assert_noticed(source: str, root: Path) -> None:
    device = CusimDevice(source_root=root)
    of_each = {
        case.launches[-1].instantiation.kernel: case
        for case in CASES
        if any(launch.instantiation.source == source for launch in case.launches)
    }
    with closing(device), pytest.raises((AssertionError, FaultError), match=_NOTICED):
        _run_all(of_each.values(), device)


def _run_all(cases: Iterable[KernelCase], device: CusimDevice) -> None:
    for case in cases:
        run(case, device)


@pytest.mark.parametrize("source", COPIES)
def test_activations_copied_ahead_of_the_wait_are_noticed(source: str, tmp_path: Path) -> None:
    copies = COPIES[source]
    wait = "  " + BEHIND if source == "winograd.cu" else BEHIND
    text = (SOURCE_ROOT / source).read_text(encoding="utf-8")
    waiting = re.search(rf"wait_for_previous\(\);.*\n{re.escape(copies)}", text)
    assert waiting is not None
    _assert_noticed(source, replaced(tmp_path, source, waiting[0], copies + wait))


@pytest.mark.slow
@pytest.mark.parametrize("place", WAITS, ids=lambda place: f"{place[0]}:{place[1]}")
def test_a_dropped_wait_is_noticed(place: tuple[str, int, int], tmp_path: Path) -> None:
    source, begin, end = place
    follows = (SOURCE_ROOT / source).read_text(encoding="utf-8")[begin:end].startswith("follow")
    root = mutant(tmp_path, source, begin, end, "let_next_begin();" if follows else ";")
    _assert_noticed(source, root)


def test_a_load_that_no_wait_orders_is_seen_in_machine_code(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="orders nothing"):
        _hold(POOL.launches[0].instantiation, replaced(tmp_path, *RESTRICTED))


def test_a_load_that_no_wait_orders_gives_a_wrong_result(tmp_path: Path) -> None:
    device = CusimDevice(source_root=replaced(tmp_path, *RESTRICTED))
    with pytest.raises(AssertionError, match="out of bounds"):
        run(POOL, device)
    device.close()
