"""The steps that may run concurrently."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from models.schedule.branches import (
    Access,
    After,
    Part,
    all_before,
    dependencies,
    in_order,
    streams,
    windows,
)

PARTS = st.one_of(
    st.sampled_from("abc").map(Part),
    st.builds(
        lambda root, begin, size: Part(root, begin, begin + size, 16),
        st.sampled_from("abc"),
        st.integers(0, 12),
        st.integers(1, 4),
    ),
)
ACCESSES = st.lists(
    st.builds(Access, st.frozensets(PARTS, max_size=2), st.frozensets(PARTS, max_size=2)),
    min_size=1,
    max_size=14,
)


def ancestors(after: After) -> list[set[int]]:
    """Return all steps before each step."""
    found: list[set[int]] = []
    for each in after:
        found.append(set(each).union(*(found[other] for other in each)))
    return found


def touches(access: Access) -> list[tuple[Part, bool]]:
    """Return parts of buffers, and whether they are written."""
    return [(p, False) for p in access.reads] + [(p, True) for p in access.writes]


def conflict(one: Access, other: Access) -> bool:
    """Return whether a byte that one step writes is accessed by the other, byte by byte."""

    def bytes_of(part: Part) -> set[int]:
        return set(range(part.begin, part.end)) if part.pitch else set(range(16))

    return any(
        (a_writes or b_writes) and a.root == b.root and bytes_of(a) & bytes_of(b)
        for a, a_writes in touches(one)
        for b, b_writes in touches(other)
    )


@given(ACCESSES)
def test_steps_that_touch_the_same_bytes_keep_their_order_and_no_others(
    accesses: Sequence[Access],
) -> None:
    after = dependencies(accesses)
    before = ancestors(after)
    last = len(accesses) - 1
    for step in range(last):
        for other in range(step):
            if conflict(accesses[step], accesses[other]):
                assert other in before[step]
        for direct in after[step]:
            assert direct == 0 or conflict(accesses[step], accesses[direct])
            assert not any(direct in before[each] for each in after[step])
        assert step == 0 or 0 in before[step]
    assert before[last] == set(range(last))


def test_parts_of_different_pitch_may_meet() -> None:
    assert Part("a", 0, 4, 16).meets(Part("a", 8, 12, 32))
    assert not Part("a", 0, 4, 16).meets(Part("a", 8, 12, 16))
    assert not Part("a").meets(Part("b"))


@given(ACCESSES)
def test_a_step_outside_anothers_window_never_meets_it(accesses: Sequence[Access]) -> None:
    after = dependencies(accesses)
    before, places = ancestors(after), windows(all_before(after))
    for step, (first, last) in enumerate(places):
        assert first <= step <= last
        for other, (begin, end) in enumerate(places):
            if end < first:
                assert other in before[step]
            assert (begin, end) != (first, last) or step == other or other not in before[step]


def test_windows_of_a_chain_are_its_places() -> None:
    assert windows(all_before(in_order(4))) == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert dependencies([Access(frozenset(), frozenset({Part("a")}))] * 3) == in_order(3)


@given(ACCESSES)
def test_streams_make_no_step_wait_for_more_than_it_must(accesses: Sequence[Access]) -> None:
    after = dependencies(accesses)
    before, chosen = ancestors(after), streams(after)
    last: dict[int, int] = {}
    for step, stream in enumerate(chosen):
        if stream in last:
            assert last[stream] in before[step]
        last[stream] = step
    assert chosen[0] == chosen[-1] == 0
    assert set(chosen) == set(range(max(chosen) + 1))


def test_two_branches_take_two_streams() -> None:
    fork = (frozenset[int](), frozenset({0}), frozenset({0}), frozenset({1}), frozenset({2, 3}))
    assert streams(fork) == [0, 0, 1, 0, 0]
    assert windows(all_before(fork)) == [(0, 0), (1, 2), (1, 3), (2, 3), (4, 4)]
