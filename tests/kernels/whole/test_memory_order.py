"""Kernels in which blocks see each other's stores late and in any order, unless a fence orders
them."""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

from cusim.build import ORDERED
from cusim.device import CusimDevice, Order
from kernels.device.compile import compile_kernel
from kernels.device.device import SOURCE_ROOT, Instantiation
from kernels.device.machine_code import DisassemblerNotFoundError, disassemble
from tests.support.cases import CASES, INSTANTIATIONS
from tests.support.kernels.kernel_case import KernelCase, run
from tests.support.kernels.mutations import replaced
from tests.support.kernels.resources import CACHE

RUNS = 10
"""The random orders for each case whose blocks communicate; each case has another order."""


def _splits(case: KernelCase) -> bool:
    return any("counters" in launch.operands for launch in case.launches)


def _sources(case: KernelCase) -> tuple[str, ...]:
    return tuple(dict.fromkeys(launch.instantiation.source for launch in case.launches))


def _one_of_each() -> list[KernelCase]:
    """Return one case per source, preferably one with a split sum."""
    cases = sorted(CASES, key=lambda case: (_sources(case), not _splits(case)))
    return [next(group) for _, group in groupby(cases, _sources)]


def _run_again_and_again(case: KernelCase, device: CusimDevice) -> None:
    for _ in range(RUNS if _splits(case) else 1):
        run(case, device)


@pytest.fixture(scope="module")
def device() -> Iterator[CusimDevice]:
    device = CusimDevice(ORDERED, Order.RANDOM)
    yield device
    device.close()


@pytest.mark.parametrize("case", _one_of_each(), ids=str)
def test_a_kernel_needs_no_more_order_than_it_asks_for(
    case: KernelCase, device: CusimDevice
) -> None:
    _run_again_and_again(case, device)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_kernel_needs_more_order_than_it_asks_for(case: KernelCase, device: CusimDevice) -> None:
    _run_again_and_again(case, device)


SPLIT = next(case for case in CASES if _splits(case))

UNORDERED = {
    "the order of the counter": ("count_up(counter)", "atomicAdd(counter, 1u)", 0),
    "past the L1 cache": ("__ldcg(reinterpret_cast<const", "*(reinterpret_cast<const", 0),
    "the barrier ahead": ("__syncthreads();\n  // Ordered", "// Ordered", 0),
    "the barrier behind": ("__syncthreads();\n  if (before", "if (before", 0),
}


@pytest.mark.parametrize("edit", UNORDERED.values(), ids=UNORDERED)
def test_a_split_sum_that_asks_for_less_is_caught(
    edit: tuple[str, str, int], tmp_path: Path
) -> None:
    device = CusimDevice(ORDERED, Order.RANDOM, source_root=replaced(tmp_path, "split.cuh", *edit))
    with pytest.raises(AssertionError):
        _run_again_and_again(SPLIT, device)
    device.close()


def _opcodes(instantiation: Instantiation, root: Path, cache: Path) -> list[str]:
    try:
        code = disassemble(compile_kernel(instantiation, "90a", cache, root))
    except DisassemblerNotFoundError as missing:
        pytest.skip(str(missing))
    return [each.opcode for each in code]


def _counts_in_order(
    instantiation: Instantiation, root: Path = SOURCE_ROOT, cache: Path = CACHE
) -> bool:
    """Return whether a split's counter is ordered, with exactly the necessary strength.

    There must be a fence before it. After it, and until the block's next barrier, no data from the
    L1 cache may be used; sequential consistency (MEMBAR.SC) would add a second fence. The block's
    other fences, which Hopper's asynchronous copies and products need, are not counted, and neither
    is the fence before the arrival at a cluster's barrier.
    """
    opcodes = _opcodes(instantiation, root, cache)
    (counter,) = (i for i, opcode in enumerate(opcodes) if opcode.startswith("ATOMG"))
    fences = [
        i
        for i, opcode in enumerate(opcodes)
        if opcode.startswith("MEMBAR")
        and not opcode.endswith(".CTA")
        and _first(opcodes[i:], "ATOMG", "UCGABAR_ARV") != "UCGABAR_ARV"
    ]
    ahead = [i for i in fences if i < counter and opcodes[i] == "MEMBAR.ALL.GPU"]
    behind = _first(opcodes[counter:], "CCTL.IVALL", "BAR", "UCGABAR_WAIT")
    return len(ahead) == len(fences) == 1 and behind == "CCTL.IVALL"


def _first(opcodes: list[str], *starts: str) -> str | None:
    """Return the start that the first matching opcode has; None if no opcode matches."""
    found = (start for opcode in opcodes for start in starts if opcode.startswith(start))
    return next(found, None)


SPLITTING = {
    launch.instantiation.kernel: launch.instantiation
    for case in CASES
    for launch in case.launches
    if "counters" in launch.operands
}


@pytest.mark.parametrize("kernel", SPLITTING.values(), ids=SPLITTING)
def test_a_split_is_counted_in_order(kernel: Instantiation) -> None:
    """The simulator has its own counter, so this needs machine code."""
    assert _counts_in_order(kernel)


@pytest.mark.parametrize("order", ["relaxed", "acquire", "release"])
def test_a_counter_that_orders_less_is_noticed(order: str, tmp_path: Path) -> None:
    root = replaced(tmp_path, "ptx.cuh", "atom.add.acq_rel", f"atom.add.{order}")
    in_a_cluster_too = SPLITTING["conv_tensor_tma"]
    for kernel in (next(iter(SPLITTING.values())), in_a_cluster_too):
        assert not _counts_in_order(kernel, root, tmp_path)


def test_two_fences_are_noticed(tmp_path: Path) -> None:
    fenced = "(__threadfence(), before = atomicAdd(counter, 1u), __threadfence())"
    root = replaced(tmp_path, "split.cuh", "before = count_up(counter)", fenced)
    assert not _counts_in_order(next(iter(SPLITTING.values())), root, tmp_path)


TOP_K = [each for each in INSTANTIATIONS if each.kernel == "top_k"]


def _fenced(instantiation: Instantiation, root: Path = SOURCE_ROOT, cache: Path = CACHE) -> bool:
    """Return whether a fence precedes the last store, which the whole system sees.

    The fence comes after the last barrier, and all other stores come before that barrier, so the
    fence covers the stores of the whole block.
    """
    opcodes = _opcodes(instantiation, root, cache)
    (store,) = (i for i, opcode in enumerate(opcodes) if opcode.startswith("STG.E.STRONG.SYS"))
    stores = [i for i, opcode in enumerate(opcodes) if opcode.split(".")[0] == "STG"]
    barrier = max(i for i, opcode in enumerate(opcodes) if opcode.split(".")[0] == "BAR")
    fences = {opcode for opcode in opcodes[barrier:store] if opcode.startswith("MEMBAR")}
    alone = [i for i in stores if i > barrier] == [store]
    return alone and any(opcode.endswith(".SYS") for opcode in fences)


@pytest.mark.parametrize("instantiation", TOP_K, ids=lambda each: each.expression)
def test_what_a_host_waits_for_is_written_behind_all_else(instantiation: Instantiation) -> None:
    """The simulator's host sees a launch only after its end, so this needs machine code."""
    assert _fenced(instantiation)


TOO_SOON = {
    "no fence": ("__threadfence_system();", ""),
    "a fence of the device": ("__threadfence_system();", "__threadfence();"),
    "no barrier ahead": ("__syncthreads();\n  if (threadIdx.x == 0) {", "if (threadIdx.x == 0) {"),
}


@pytest.mark.parametrize("edit", TOO_SOON.values(), ids=TOO_SOON)
def test_a_host_that_could_read_too_soon_is_noticed(edit: tuple[str, str], tmp_path: Path) -> None:
    root = replaced(tmp_path, "top_k.cu", *edit)
    assert not _fenced(TOP_K[0], root, tmp_path)
