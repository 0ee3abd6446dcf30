"""The layout of buffers according to their lifetimes."""

from time import thread_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.arena import ALIGNMENT, Lifetime, aligned, lay_out
from tests.support.models.plans import lower_bound
from tests.support.models.slowness import idle_core

LIFETIMES = st.lists(
    st.tuples(st.integers(1, 5000), st.integers(0, 30), st.integers(0, 12)), max_size=25
).map(
    lambda rows: [
        Lifetime(str(i), nbytes, first, first + more)
        for i, (nbytes, first, more) in enumerate(rows)
    ]
)


@given(LIFETIMES)
def test_buffers_alive_together_never_overlap(lifetimes: list[Lifetime]) -> None:
    arena = lay_out(lifetimes)
    for i, a in enumerate(lifetimes):
        begin = arena.offsets[a.name]
        assert begin % ALIGNMENT == 0
        assert 0 <= begin <= begin + a.nbytes <= arena.nbytes
        for b in lifetimes[:i]:
            other = arena.offsets[b.name]
            apart = begin + a.nbytes <= other or other + b.nbytes <= begin
            assert apart or not a.meets(b)


@given(LIFETIMES)
def test_no_layout_is_smaller_than_the_bound_or_larger_than_no_sharing(
    lifetimes: list[Lifetime],
) -> None:
    total = sum(aligned(life.nbytes) for life in lifetimes)
    assert lower_bound(lifetimes) <= lay_out(lifetimes).nbytes <= total


def test_a_chain_takes_its_two_largest_neighbours() -> None:
    sizes = [1024, 4096, 2048, 512, 8192, 256]
    chain = [Lifetime(str(i), size, i, i + 1) for i, size in enumerate(sizes)]
    assert lower_bound(chain) == 512 + 8192
    assert lay_out(chain).nbytes == 512 + 8192


def test_no_buffers_take_no_bytes() -> None:
    assert lay_out([]).nbytes == 0


def test_ten_thousand_buffers_are_laid_out_in_seconds() -> None:
    chain = [Lifetime(str(i), 256 * (1 + i % 7), i, i + 1) for i in range(10_000)]
    with idle_core(thread_time) as spent:
        assert lay_out(chain).nbytes == lower_bound(chain)
    assert spent.seconds < 8  # 1.3 s, a loop over all pairs 25 s


def test_a_buffer_without_bytes_or_life_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 byte, and first <= last"):
        Lifetime("a", 0, 0, 1)
    with pytest.raises(ValueError, match="at least 1 byte, and first <= last"):
        Lifetime("a", 1, 2, 1)
