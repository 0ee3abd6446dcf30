"""Floods in the simulator of policies: an honest client's share of the engine and its p50."""

import pytest

from benchmarks.simulation.workloads import PROFILES
from tests.support.benchmarks import hostile
from tests.support.benchmarks.hostile import HABITS, SLACK, Row, bound, simulate


def test_an_honest_client_keeps_its_part_of_the_engine_and_of_its_p50() -> None:
    rows = list(hostile.rows((1, 2, 7)))
    assert len(rows) == 3 * 3 * 3
    assert [row for row in rows if not row.met] == []
    beyond = {
        (row.profile, row.habit, row.floods)
        for row in rows
        if row.growth > SLACK * (row.floods + 1)
    }
    assert beyond <= {("flat", "asks again at once", 1)}, "where small batches waste the engine"


@pytest.mark.parametrize("profile", ["flat", "linear", "steps"])
def test_without_turns_a_flood_of_one_takes_it_away(profile: str) -> None:
    habit = HABITS["thinks"]
    alone = simulate(PROFILES[profile], habit, 0).p50_s
    assert simulate(PROFILES[profile], habit, 1, fair=False).p50_s > 10 * alone


def test_the_bound_is_k_plus_1_or_two_batches_that_leave_the_others_their_share() -> None:
    assert bound(PROFILES["linear"], 1) == 2.0
    assert bound(PROFILES["flat"], 1) == pytest.approx(2 * PROFILES["flat"][2] / 0.001)
    assert bound(PROFILES["flat"], 7) == 8.0


def test_a_row_is_met_by_its_p50_and_its_share() -> None:
    met = Row("flat", "wants the engine", 1, 2.0, 2.0, 0.5, 9.0)
    assert met.met
    assert not met._replace(share=0.4).met
    assert not met._replace(growth=2.2).met
