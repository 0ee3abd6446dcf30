"""The policy's decisions, with examples and with random views of the queue."""

import sys
from itertools import pairwise
from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulation.bounds import clairvoyant
from service.batching.latency import Latency
from service.batching.policy import (
    DEFAULT_PRIORITY,
    LOWEST_PRIORITY,
    NO_HURRY,
    PATIENCE_S,
    SHORT_S,
    Claim,
    Decision,
    Slot,
    Urgency,
    View,
    _fitting,
    completion,
    decide,
    due,
    urgency_of,
)
from service.batching.traffic import Prospect

FLAT = Latency(tuple(1 + 0.6 * (n - 1) / 7 for n in range(1, 9)))
LINEAR = Latency(tuple(0.2 + 0.8 * n for n in range(1, 9)))
STEPS = Latency((1.0,) * 4 + (1.8,) * 4)


def deadlines(*moments: float) -> list[Claim]:
    return [Claim(1, moment) for moment in moments]


# --- size ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("latency", "depth", "size"),
    [
        (FLAT, 1, 1),
        (FLAT, 7, 7),
        (FLAT, 20, 8),
        (LINEAR, 5, 5),
        (STEPS, 4, 4),
        (STEPS, 5, 4),  # the fifth would make the others wait as long again
        (STEPS, 6, 4),
        (STEPS, 8, 8),  # and here it is worth it
        (STEPS, 9, 8),
        (Latency.unknown(8), 5, 5),
    ],
)
def test_the_most_efficient_batch_that_can_be_filled_goes_at_once(
    latency: Latency, depth: int, size: int
) -> None:
    assert decide(View(0.0, depth, latency)) == Decision(size)


def test_with_time_to_spare_a_linear_engine_runs_smaller_batches() -> None:
    assert decide(View(0.0, 4, LINEAR, idle=0.5)) == Decision(2)
    assert decide(View(0.0, 4, LINEAR, idle=0.05)) == Decision(4)
    assert decide(View(0.0, 9, LINEAR, idle=0.5)) == Decision(4)
    assert decide(View(0.0, 90, LINEAR, idle=0.2)) == Decision(8), "what it loses delays ninety"
    assert decide(View(0.0, 8, STEPS, idle=0.1)) == Decision(8)
    assert decide(View(0.0, 8, STEPS, idle=0.7)) == Decision(4)
    assert decide(View(0.0, 4, FLAT, idle=0.5)) == Decision(4)


def test_however_idle_the_engine_a_split_saves_more_than_it_delays() -> None:
    assert decide(View(0.0, 4, LINEAR, idle=0.9)) == Decision(2), "then 2: 1 and 3 take longer"
    assert decide(View(0.0, 8, FLAT, idle=0.9)) == Decision(8), "two batches take longer than one"


def test_a_batch_that_is_hardly_more_efficient_is_not_preferred_to_a_larger_one() -> None:
    assert decide(View(0.0, 4, Latency((1.0, 1.5, 2.0, 2.71)))) == Decision(4), "3 would gain 1.6%"
    assert decide(View(0.0, 4, Latency((1.0, 1.5, 2.0, 2.8)))) == Decision(3), "3 gain 5%"


def test_now_and_then_a_batch_takes_all_so_that_no_size_goes_stale() -> None:
    sizes = [decide(View(0.0, 5, STEPS, batches=n)).dispatch for n in (128, 255, 256, 257)]
    assert sizes == [4, 4, 5, 4]


def test_nothing_is_dispatched_while_a_batch_runs_or_nobody_waits() -> None:
    assert decide(View(0.0, 5, FLAT, busy_until=0.5)) == Decision()
    assert decide(View(0.0, 0, FLAT)) == Decision()


# --- moment --------------------------------------------------------------------------------------


def returning(since: float, more: float, by: float) -> list[Prospect]:
    return [Prospect(since, more, ((by, more),))]


def waiting(until: float, enough: int) -> Decision:
    return Decision(look_again=until, enough=enough)


def test_the_other_half_of_a_cohort_is_waited_for() -> None:
    """Four clients wait, and four clients that were just answered return within 0.1. One batch of
    eight ends sooner than two of four: L(8) + 0.1 < 2 L(4)."""
    assert decide(View(5.0, 4, FLAT, prospects=returning(5.0, 4, 5.1))) == waiting(5.1, 8)


def test_nobody_is_waited_for_where_it_would_take_longer() -> None:
    assert decide(View(5.0, 4, FLAT, prospects=returning(5.0, 4, 6.0))) == Decision(4)
    assert decide(View(5.0, 4, LINEAR, prospects=returning(5.0, 4, 5.1))) == Decision(4)
    assert decide(View(5.0, 1, FLAT, prospects=returning(5.0, 0.4, 5.1))) == Decision(1)


def test_where_batches_are_short_nobody_is_waited_for() -> None:
    for l1, waits in ((SHORT_S * 0.99, False), (SHORT_S * 1.01, True)):
        latency = Latency(tuple(l1 * seconds for seconds in FLAT.seconds))
        coming = returning(5.0, 4, 5 + 0.1 * l1)
        decision = decide(View(5.0, 4, latency, prospects=coming))
        assert (decision.dispatch == 0) == waits


def test_a_wait_is_judged_by_the_best_batch_of_those_that_will_wait_then() -> None:
    # Three more would make six, in 1.8 L(1); the first of them makes four, in one.
    assert decide(View(5.0, 3, STEPS, prospects=returning(5.0, 3, 5.1))) == waiting(5.1, 4)


def test_a_full_batch_waits_for_nobody() -> None:
    assert decide(View(5.0, 8, FLAT, prospects=returning(5.0, 8, 5.01))) == Decision(8)


def test_the_last_straggler_is_waited_for_though_seven_are_nearly_as_efficient() -> None:
    view = View(5.4, 7, FLAT, prospects=returning(5.0, 1, 5.5))
    assert decide(view) == waiting(5.5, 8)


def test_two_batches_that_need_no_waiting_may_beat_one_that_does() -> None:
    """Four clients wait, and eight return after 0.5. A batch of four now and then a batch of eight
    answer 12 in 2.86; waiting for eight answers 8 in 2.1."""
    assert decide(View(5.0, 4, FLAT, prospects=returning(5.0, 8, 5.5))) == Decision(4)
    assert decide(View(5.0, 4, FLAT, prospects=returning(5.0, 8, 5.1))) == waiting(5.1, 8)


# --- order ---------------------------------------------------------------------------------------


def test_equals_go_in_the_order_of_their_arrival() -> None:
    assert due(1.0) < due(1.001)
    assert due(1.0, Urgency(inf, 0)) == due(1.0, Urgency(inf, DEFAULT_PRIORITY)) == due(1.0)


def test_a_higher_priority_and_a_nearer_deadline_go_first() -> None:
    order = [
        due(1.0, Urgency(1.1, 1)),
        due(1.0, Urgency(inf, 1)),
        due(1.0, Urgency(1.1)),
        due(1.0, Urgency(1.2)),
        due(1.0),
        due(1.0, Urgency(inf, 3)),
        due(1.0, Urgency(inf, 4)),
    ]
    assert all(first < second for first, second in pairwise(order))


def test_a_far_deadline_puts_nobody_back() -> None:
    assert due(1.0, Urgency(1000.0)) == due(1.0)


def test_beyond_the_lowest_there_is_no_lower_priority() -> None:
    assert due(1.0, Urgency(inf, 10**9)) == due(1.0, Urgency(inf, 9)) > due(1.0, Urgency(inf, 8))


urgencies = st.builds(Urgency, st.just(inf) | st.floats(0, 1e4), st.integers(0, 20))


@given(st.floats(0, 100), urgencies, st.floats(0, 100), urgencies)
def test_nobody_is_overtaken_by_who_comes_too_much_later(
    first: float, mine: Urgency, second: float, other: Urgency
) -> None:
    """A request can be overtaken for at most PATIENCE_S per level of priority, plus PATIENCE_S
    because of a deadline."""
    levels = LOWEST_PRIORITY - 1
    latest = first + (levels + 1) * PATIENCE_S
    mine = mine._replace(deadline=max(mine.deadline, first))
    if second > latest and other.deadline >= second:
        assert due(first, mine) <= due(second, other)


def test_a_timeout_is_counted_from_when_the_request_began() -> None:
    assert urgency_of(3.0, 0.5, 0) == Urgency(3.5, 0)
    assert urgency_of(3.0, None, 1) == Urgency(inf, 1)
    assert urgency_of(3.0, None, 0) is NO_HURRY


# --- deadlines -----------------------------------------------------------------------------------


def test_who_cannot_make_it_even_alone_is_refused_at_once() -> None:
    view = View(10.0, 3, FLAT, claims=deadlines(10.9, 12.0, inf))
    assert decide(view) == Decision(2, inf, (0,))
    assert decide(View(10.0, 1, FLAT, claims=deadlines(11.0))) == Decision(1), "just in time"


def test_while_a_batch_runs_those_are_refused_who_cannot_make_it_after_it() -> None:
    view = View(10.0, 3, FLAT, busy_until=10.5, claims=deadlines(11.4, 11.6, inf))
    assert decide(view) == Decision(0, 10.6, (0,))


def test_a_batch_that_takes_too_long_lets_down_who_waits_for_it() -> None:
    view = View(10.6, 2, FLAT, busy_until=10.5, claims=deadlines(11.6, 11.7))
    decision = decide(view)
    assert decision.refused == (0,)
    assert decision.look_again == pytest.approx(10.7)


def test_a_batch_is_no_larger_than_its_deadlines_allow() -> None:
    """L(4) = 1.26 and L(5) = 1.34. The first image is due at 1.3, so with a fifth image it would be
    late."""
    view = View(0.0, 8, FLAT, claims=deadlines(1.3, *[9.0] * 7))
    assert decide(view) == Decision(4)


def test_a_batch_that_is_just_in_time_is_in_time() -> None:
    for n in range(1, 9):
        last = 10.0 + FLAT.within(n)
        assert _fitting(FLAT, [last] * 8, 10.0) == n
        assert _fitting(FLAT, [last - 1e-9] * 8, 10.0) == n - 1


def test_the_margin_for_urgent_items_grows_with_the_errors_seen() -> None:
    uncertain = FLAT._replace(error=0.05)
    assert decide(View(0.0, 8, uncertain, claims=deadlines(1.3, *[9.0] * 7))) == Decision(3)


def test_one_is_given_up_where_that_saves_more() -> None:
    """The first image's deadline allows only a batch of one. After it, the other eight images would
    be late: L(1) + L(8) > 2.5."""
    view = View(0.0, 9, FLAT, claims=deadlines(1.05, *[2.5] * 8))
    assert decide(view) == Decision(8, inf, (0,))


def test_one_is_not_given_up_where_all_can_make_it() -> None:
    view = View(0.0, 9, FLAT, claims=deadlines(1.05, *[2.7] * 8))
    assert decide(view) == Decision(1)


def test_one_is_given_up_for_those_that_are_expected() -> None:
    """One image arrives every 0.2. A batch of seven and the arrivals after it answer more than a
    batch of one followed by a batch of seven."""
    claims = deadlines(1.05, *[2.65] * 7)
    assert decide(View(0.0, 8, FLAT, claims=claims)) == Decision(1)
    assert decide(View(0.0, 8, FLAT, claims=claims, rate=0.01)) == Decision(1)
    assert decide(View(0.0, 8, FLAT, claims=claims, rate=5.0)) == Decision(7, inf, (0,))


def test_two_engines_that_are_free_need_not_give_up_what_one_would() -> None:
    claims = deadlines(1.05, *[2.5] * 8)
    alone = View(0.0, 9, FLAT, claims=claims)
    assert decide(alone).refused == (0,)
    assert decide(alone._replace(others=(Slot(0.0, FLAT),))) == Decision(1)
    assert decide(alone._replace(others=(Slot(2.0, FLAT),))).refused == (0,)


def test_what_a_plan_takes_is_bounded_however_many_wait_and_fit() -> None:
    """A thousand images wait, 64 fit into a batch, and more arrive. The cost is counted in calls,
    whose number is the same on any machine.

    With eight times the effort there would be 55,000 calls, and with eight times as many parts and
    plans 2,700,000.
    """
    latency = Latency(tuple(1 + 0.05 * n for n in range(64)))
    claims = deadlines(*(4 + 0.01 * n for n in range(1000)))
    made = 0

    def count(_frame: object, event: str, _what: object) -> None:
        nonlocal made
        made += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        decision = decide(View(0.0, 1000, latency, claims=claims, rate=100.0))
    finally:
        sys.setprofile(None)
    assert decision.dispatch
    assert made < 22_000


@pytest.mark.parametrize("seed", range(30))
def test_the_first_batch_begins_a_plan_by_which_the_most_are_in_time(seed: int) -> None:
    draw = Random(seed)
    most = Latency((1.0, 1.5, 2.0, 2.5))
    patience = draw.uniform(2.6, 6)
    came = sorted(-draw.uniform(0, patience - 1) for _ in range(draw.randint(5, 12)))
    decision = decide(View(0.0, len(came), most, claims=deadlines(*(t + patience for t in came))))
    left = came[len(decision.refused) :]
    took = most.of(decision.dispatch)
    rest = left[decision.dispatch :]
    assert took <= left[0] + patience, "in time"
    # Times are counted from the end of the first batch: none begins before it.
    after = clairvoyant([t - took for t in rest], patience, most.seconds, begin=0.0)
    whole = clairvoyant(came, patience, most.seconds, begin=0.0)
    assert decision.dispatch + after == whole


def test_where_everybody_is_refused_nothing_is_dispatched() -> None:
    assert decide(View(0.0, 2, FLAT, claims=deadlines(0.5, 0.6))) == Decision(0, inf, (0, 1))


def test_nobody_waits_for_company_beyond_a_deadline() -> None:
    prospects = returning(0.0, 4, 0.1)
    view = View(0.0, 4, FLAT, prospects=prospects, claims=deadlines(*[1.72] * 4))
    assert decide(view).look_again == 0.1
    view = View(0.0, 4, FLAT, prospects=prospects, claims=deadlines(*[1.68] * 4))
    assert decide(view) == Decision(4)


def test_a_request_of_more_than_a_batch_needs_the_time_of_all_its_batches() -> None:
    assert decide(View(0.0, 9, FLAT, claims=[Claim(9, 2.5)])).refused == (0,)
    assert decide(View(0.0, 9, FLAT, claims=[Claim(9, 2.7)])) == Decision(8)


def test_completion_counts_what_runs_and_what_goes_before() -> None:
    assert completion(View(5.0, 0, FLAT), 0, 1) == 6.0
    assert completion(View(5.0, 0, FLAT, busy_until=5.5), 0, 1) == 6.5
    assert completion(View(5.0, 0, FLAT, busy_until=4.0), 0, 8) == pytest.approx(6.6)
    assert completion(View(5.0, 0, FLAT), 8, 1) == pytest.approx(5 + 1.6 + 1)
    assert completion(View(5.0, 0, FLAT), 15, 2) == pytest.approx(5 + 2 * 1.6 + 1)


# --- any view ------------------------------------------------------------------------------------

latencies = st.builds(
    lambda steps, error: Latency(tuple(sum(steps[: n + 1]) for n in range(len(steps))), error),
    st.lists(st.floats(0.01, 2), min_size=1, max_size=8),
    st.floats(0, 0.5),
)
prospects = st.lists(
    st.builds(
        lambda since, more, after: Prospect(
            10 - since, more, tuple((10 - since + a, more * (n + 1) / 3) for n, a in after)
        ),
        st.floats(0, 1),
        st.floats(0, 20),
        st.lists(st.floats(0, 2), max_size=3).map(lambda some: list(enumerate(sorted(some)))),
    ),
    max_size=2,
)
# Not `builds`, which fills a named tuple's fields with defaults as well.
claims = st.lists(
    st.tuples(st.integers(1, 10), st.floats(9, 25) | st.just(inf)).map(lambda pair: Claim(*pair)),
    max_size=12,
)


@given(latencies, st.integers(1, 30), st.floats(0, 1), st.integers(0, 200), prospects)
def test_an_idle_engine_is_given_a_batch_or_a_moment_to_come(
    latency: Latency, depth: int, idle: float, batches: int, expected: list[Prospect]
) -> None:
    decision = decide(View(10.0, depth, latency, None, idle, batches, expected))
    assert decision.refused == ()
    if decision.look_again < inf:
        assert decision.dispatch == 0
        assert depth < decision.enough <= latency.max_batch
        assert decision.look_again > 10.0
        assert any(decision.look_again == until for _, _, by in expected for until, _ in by)
    else:
        assert 1 <= decision.dispatch <= min(depth, latency.max_batch)


@given(latencies, claims, st.none() | st.floats(9, 14), prospects)
def test_only_who_has_a_deadline_is_refused_and_whoever_is_left_is_looked_after(
    latency: Latency, wanted: list[Claim], busy_until: float | None, expected: list[Prospect]
) -> None:
    depth = sum(claim.items for claim in wanted)
    view = View(10.0, depth, latency, busy_until, 0.0, 1, expected, wanted)
    decision = decide(view)
    assert len(set(decision.refused)) == len(decision.refused)
    assert all(wanted[place].deadline < inf for place in decision.refused)
    left = [claim for place, claim in enumerate(wanted) if place not in decision.refused]
    items = sum(claim.items for claim in left)
    assert decision.dispatch <= min(items, latency.max_batch)
    if busy_until is not None:
        assert decision.dispatch == 0
        soonest = min((c.deadline - latency.of(c.items) for c in left), default=inf)
        assert decision.look_again == soonest, "who is let down is told at once"
    elif left:
        assert decision.dispatch or 10.0 < decision.look_again < inf


@given(latencies, claims)
def test_everybody_in_a_batch_is_expected_in_time(latency: Latency, wanted: list[Claim]) -> None:
    latency = latency._replace(error=0.0)
    singles = [Claim(1, claim.deadline) for claim in wanted]
    decision = decide(View(10.0, len(singles), latency, claims=singles))
    left = [claim for place, claim in enumerate(singles) if place not in decision.refused]
    if decision.dispatch:
        done = 10.0 + latency.of(decision.dispatch)
        assert all(claim.deadline >= done for claim in left[: decision.dispatch])


# --- several engines -----------------------------------------------------------------------------


def test_engines_that_are_idle_together_share_what_waits() -> None:
    idle = Slot(0.0, LINEAR)
    assert decide(View(0.0, 8, LINEAR, idle=0.1, others=(idle,))) == Decision(4)
    assert decide(View(0.0, 8, LINEAR, idle=0.1, others=(idle,) * 3)) == Decision(2)
    assert decide(View(0.0, 8, LINEAR, idle=0.1, others=(Slot(5.0, LINEAR),))) == Decision(8)
    assert decide(View(0.0, 30, LINEAR, idle=0.1, others=(idle,))) == Decision(8)


def test_busy_engines_do_not_share_what_takes_longer_in_two_batches() -> None:
    others = (Slot(0.0, FLAT),)
    assert decide(View(0.0, 8, FLAT, idle=0.1, others=others)) == Decision(8)
    assert decide(View(0.0, 8, FLAT, idle=0.5, others=others)) == Decision(4)


def test_nothing_waits_for_arrivals_that_another_engine_is_free_to_take() -> None:
    soon = Prospect(0.0, 7.0, ((0.1, 7.0),))
    waits = Decision(look_again=0.1, enough=8)
    assert decide(View(0.0, 1, FLAT, prospects=[soon])) == waits
    assert decide(View(0.0, 1, FLAT, prospects=[soon], others=(Slot(0.5, FLAT),))) == waits
    for free in (0.0, 0.05):
        view = View(0.0, 1, FLAT, prospects=[soon], others=(Slot(free, FLAT),))
        assert decide(view) == Decision(1)


def test_what_waits_is_done_by_the_engines_that_are_free_first() -> None:
    fast, slow = Latency((1.0,)), Latency((3.0,))
    view = View(0.0, 0, slow, others=(Slot(0.5, fast),))
    # The fast one ends its batches at 1.5, 2.5 and 3.5; the slow one its first at 3.
    assert [completion(view, 0, items) for items in (1, 2, 3, 4)] == [3.0, 3.0, 3.0, 3.5]
    assert completion(View(0.0, 0, FLAT, others=(Slot(9.0, FLAT),)), 0, 8) == FLAT.of(8)


def test_who_is_refused_on_one_engine_is_in_time_on_two() -> None:
    claims = [Claim(1, 1.0), Claim(1, 1.0), Claim(1, 2.0), Claim(1, 2.0)]
    single = Latency((1.0,))
    assert decide(View(0.0, 4, single, claims=claims)).dispatch == 1
    busy = View(0.0, 4, single, busy_until=0.5, claims=claims)
    assert decide(busy).refused == (0, 1)
    both = View(0.0, 4, single, claims=claims, others=(Slot(0.0, single),))
    assert decide(both) == Decision(1)


@given(
    st.lists(st.floats(0.1, 5.0), min_size=1, max_size=4),
    st.lists(st.floats(0.0, 5.0), max_size=3),
    st.integers(1, 40),
)
def test_one_engine_more_never_makes_an_estimate_much_later(
    seconds: list[float], free: list[float], items: int
) -> None:
    """Sharing items between engines early may cost at most one additional batch at the end."""
    latency = Latency(tuple(sorted(seconds)))
    others = tuple(Slot(moment, latency) for moment in sorted(free))
    done = completion(View(0.0, 0, latency, others=others), 0, items)
    alone = completion(View(0.0, 0, latency), 0, items)
    assert 0 < done <= alone + max(latency.seconds) * len(latency.seconds) + 1e-9
