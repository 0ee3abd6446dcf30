"""A defect anywhere in a kernel fails its cases, except for mutations that change nothing."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from cusim.build import ASAN, ORDERED, PLAIN, Build
from cusim.device import CusimDevice, Order
from kernels.device.device import DeviceError
from tests.support.cases import CASES
from tests.support.kernels.kernel_case import run
from tests.support.kernels.mutations import (
    CHOSEN_BY_HAND,
    COUNT,
    SEED,
    Mutation,
    by_name,
    choose,
    concerned,
    tried,
)

EACH = 3  # instantiations of each kernel concerned, so that a mutation takes seconds

SURVIVORS = {
    "coalesced.cu: constexpr int UNROLLED = TAPS_S == 1 ? 2 : 1;  // enough products to load the "
    "next step's behind: == becomes !=": "how far a loop is unrolled changes no result",
    "channels.cuh: if (vectors && exist >= 4) return load<4>(from);: >= becomes >": (
        "the last whole vector is loaded by the element: the same numbers"
    ),
    "implicit_gemm.cu: constexpr int X_PITCH = BK % 32 == 16 ? BK : BK + 4;: == becomes !=": (
        "a pitch changes only bank conflicts, which accesses.tsv shows"
    ),
    "coalesced.cu: const int chunks = (sizes.channels + CHUNK - 1) / CHUNK;: - becomes +": (
        "a chunk more, of zeros: time, but no result"
    ),
    "depthwise.cu: for (int i = 1; i < RUN; ++i): < becomes <=": (
        "the choice among RUN sums looks at one that none asks for"
    ),
    "block.cuh: if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;: == becomes !=": (
        "all lanes of a warp have its value: any of them may write it"
    ),
    "epilogue.cuh: const bool whole = vectors && channel + 4 <= end;: <= becomes <": (
        "the last whole vector is written by the element: the same numbers"
    ),
}
"""Mutations that no case notices, with the reasons."""


BARRIERS = {name: each for name, each in by_name().items() if each.drops_a_barrier}

FLAG = next(name for name in BARRIERS if name.startswith("top_k.cu") and name.endswith("(place 3)"))
"""Mutations of data that the host reads, which machine code shows: test_memory_order.py."""


def caught(
    mutation: Mutation,
    folder: Path,
    each: int = EACH,
    builds: Sequence[Build] = (PLAIN, ASAN, ORDERED),
) -> bool:
    """Return whether a case fails or does not compile in one of the builds."""
    root = mutation.planted(folder)
    cases = concerned(mutation, CASES, each)
    for build in builds:
        device = CusimDevice(build, Order.RANDOM, source_root=root, timeout_s=60)
        try:
            for case in cases:
                run(case, device)
        except (AssertionError, DeviceError):
            return True
        finally:
            device.close()
    return False


@pytest.mark.slow
@pytest.mark.parametrize("name", tried())
def test_a_mutation_is_caught_unless_it_changes_nothing(name: str, tmp_path: Path) -> None:
    assert caught(by_name()[name], tmp_path) == (name not in SURVIVORS)


@pytest.mark.slow
@pytest.mark.parametrize("name", BARRIERS)
def test_no_barrier_can_be_left_out(name: str, tmp_path: Path) -> None:
    """A warp that runs ahead to the next barrier shows the defect, in a build without
    sanitizers."""
    assert caught(BARRIERS[name], tmp_path, len(CASES), [PLAIN]) == (name != FLAG)


def test_every_mutation_of_the_table_can_be_planted_and_every_survivor_is_in_it() -> None:
    assert len(set(tried())) == COUNT + len(CHOSEN_BY_HAND)
    assert set(tried()) >= set(CHOSEN_BY_HAND)
    assert set(tried()) <= by_name().keys(), "python -m tests.support.kernels.mutations"
    assert SURVIVORS.keys() <= set(tried())


def test_the_same_mutations_of_many_files_are_chosen_again() -> None:
    names = choose(COUNT, SEED)
    assert names == choose(COUNT, SEED)
    assert len({name.partition(":")[0] for name in names}) >= COUNT // 3
