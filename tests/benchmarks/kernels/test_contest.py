"""Contests among candidates with made-up times."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from benchmarks.kernels.contest import Cache, CandidateError, Outcome, contest
from kernels.tuning.timing import Timing


@dataclass
class MadeUp:
    """A candidate that takes `us` with cold or warm caches, and counts how often it was timed."""

    name: str
    us: Mapping[Cache, float]
    refuses: str = ""
    replay_us: float = 0.0  # what a replay costs by itself
    workspace_bytes: int | None = 0
    timed: list[tuple[Cache, int, int]] = field(default_factory=list)

    def check(self) -> None:
        if self.refuses == "to run":
            raise CandidateError("too large")

    def time(self, cache: Cache, /, *, copies: int, replays: int) -> Timing:
        if self.refuses == cache.value:
            raise CandidateError("no memory")
        self.timed.append((cache, copies, replays))
        us = self.us[cache] + self.replay_us / copies
        return Timing(us, us, us)


def made_up(name: str, warm: float, cold: float | None = None, **options: Any) -> MadeUp:
    return MadeUp(name, {Cache.WARM: warm, Cache.COLD: cold or warm}, **options)


def names(outcome: Outcome) -> dict[Cache, str]:
    return {cache: winner.name for cache, winner in outcome.winners.items()}


def test_the_fastest_warm_and_the_fastest_cold_win_with_all_replays() -> None:
    candidates = [
        made_up("a", 10, 30),
        made_up("b", 11, 20, workspace_bytes=1024),
        made_up("c", 12, 25),
    ]
    outcome = contest(candidates)
    assert names(outcome) == {Cache.WARM: "a", Cache.COLD: "b"}
    assert outcome.winners[Cache.COLD].timing == Timing(20, 20, 20)
    assert outcome.winners[Cache.COLD].workspace_bytes == 1024
    assert (Cache.WARM, 20, 200) in candidates[0].timed
    assert (Cache.COLD, 20, 200) in candidates[1].timed
    assert (Cache.COLD, 20, 200) not in candidates[0].timed
    assert outcome.tried == 3
    assert outcome.refused == {}


def test_only_the_three_fastest_are_timed_cold() -> None:
    candidates = [made_up(str(us), us) for us in (14, 12, 10, 11, 13)]
    contest(candidates)
    cold = {each.name for each in candidates for cache, *_ in each.timed if cache is Cache.COLD}
    assert cold == {"10", "11", "12"}


def test_what_is_slow_when_probed_is_not_run_often() -> None:
    fast, slow, fair = made_up("fast", 10), made_up("slow", 15.1), made_up("fair", 14.9)
    contest([fast, slow, fair])
    assert slow.timed == [(Cache.WARM, 2, 2)]
    assert (Cache.WARM, 5, 10) in fair.timed


def test_what_a_replay_costs_by_itself_drops_no_candidate() -> None:
    candidates = [made_up(name, 2, replay_us=7) for name in ("first", "second")]
    contest(candidates)  # probes take 5.5 µs a copy, screens 3.4
    assert (Cache.WARM, 5, 10) in candidates[1].timed


def test_what_cannot_run_says_why_and_stops_nothing() -> None:
    candidates = [
        made_up("large", 1, refuses="to run"),
        made_up("cold", 2, refuses="cold"),
        made_up("right", 3),
    ]
    outcome = contest(candidates)
    assert outcome.refused == {"large": "too large", "cold": "no memory"}
    assert candidates[0].timed == []
    assert names(outcome) == {Cache.WARM: "cold", Cache.COLD: "right"}


def test_a_winner_that_fails_in_the_end_leaves_the_next_one_the_place() -> None:
    class Fails(MadeUp):
        def time(self, cache: Cache, /, *, copies: int, replays: int) -> Timing:
            if replays == 200:
                raise CandidateError("not any more")
            return super().time(cache, copies=copies, replays=replays)

    us = {Cache.WARM: 1.0, Cache.COLD: 1.0}
    outcome = contest([Fails("first", us), made_up("second", 1.2)])
    assert names(outcome) == {Cache.WARM: "second", Cache.COLD: "second"}
    assert outcome.refused == {"first": "not any more"}


@pytest.mark.parametrize("candidates", [[], [made_up("large", 1, refuses="to run")]])
def test_where_nothing_can_run_nothing_wins(candidates: list[MadeUp]) -> None:
    outcome = contest(candidates)
    assert outcome.winners == {}
    assert outcome.tried == len(candidates)
