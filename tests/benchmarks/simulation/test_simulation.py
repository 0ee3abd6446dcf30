"""The simulator: its server, the schedulers compared, the criterion."""

import asyncio
import json
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.rows import read
from benchmarks.simulation import __main__ as simulate
from benchmarks.simulation import comparison, workloads
from benchmarks.simulation.comparison import Comparison, Result, compare, summary
from benchmarks.simulation.schedulers import (
    CONVOY,
    SCHEDULERS,
    Clipper,
    Convoy,
    FixedDelay,
    Nexus,
    TritonDefault,
)
from benchmarks.simulation.server import Item, Outcome, Scheduler, Workload
from benchmarks.simulation.server import simulate as play
from benchmarks.simulation.workloads import PROFILES, Point, capacity, sweep
from service import errors as service_errors
from service.batching.batcher import Batcher
from service.batching.latency import Latency
from tests.support.service import virtual_time
from tests.support.service.desk import submit
from tests.support.service.virtual_time import until

ONE_TO_FOUR = (1.0, 1.5, 2.0, 2.5)


def arriving(*moments: float, timeout: float = inf) -> Workload:
    return Workload([Item(moment, moment + timeout) for moment in moments])


def exactly(scheduler: Scheduler, workload: Workload) -> Outcome:
    return play(scheduler, ONE_TO_FOUR, workload, noise=0.0)


# --- the server ----------------------------------------------------------------------------------


def test_who_comes_while_a_batch_runs_waits_for_its_end() -> None:
    outcome = exactly(TritonDefault(4), arriving(0.0, 0.25, 0.75))
    assert outcome.sizes == [1, 2]
    assert outcome.latencies == [1.0, 2.25, 1.75]
    assert (outcome.offered, outcome.refused, outcome.late, outcome.ended) == (3, 0, 0, 2.5)


def test_who_comes_at_the_same_moment_is_seen_together() -> None:
    assert exactly(TritonDefault(4), arriving(0.0, 0.0, 0.0)).sizes == [3]


def test_an_answer_after_the_deadline_counts_as_late() -> None:
    outcome = exactly(TritonDefault(4), arriving(0.0, 0.25, timeout=1.5))
    assert (len(outcome.latencies), outcome.late) == (1, 1)


def test_clients_of_a_closed_loop_send_again_after_their_answers() -> None:
    workload = Workload(clients=2, think=lambda _: 0.5, requests=6)
    outcome = exactly(TritonDefault(4), workload)
    assert outcome.offered == 6
    assert outcome.sizes == [2, 2, 2]
    assert outcome.ended == 3 * (0.5 + 1.5)


def test_noise_changes_how_long_batches_take_but_not_who_comes_when() -> None:
    times = [
        play(TritonDefault(4), ONE_TO_FOUR, arriving(0.0, 10.0), seed=seed, noise=0.1).latencies
        for seed in (1, 1, 2)
    ]
    assert times[0] == times[1] != times[2]
    assert all(0.5 < time < 2 for times_ in times for time in times_)


# --- the schedulers ------------------------------------------------------------------------------


def test_a_fixed_delay_waits_for_company_until_the_oldest_has_waited_so_long() -> None:
    outcome = exactly(FixedDelay(4, 0.5), arriving(0.0, 0.3, 0.6))
    assert outcome.latencies == [2.0, 1.7, 2.4]
    assert outcome.sizes == [2, 1]


def test_a_fixed_delay_does_not_hold_up_a_full_batch() -> None:
    assert exactly(FixedDelay(4, 9.0), arriving(0.0, 0.0, 0.0, 0.1)).latencies[-1] == 2.5


def test_a_fixed_delay_drops_who_is_late_already() -> None:
    outcome = exactly(FixedDelay(1, 0.0), arriving(0.0, 0.1, 0.2, timeout=1.5))
    assert (len(outcome.latencies), outcome.late, outcome.refused) == (1, 1, 1)


def test_clipper_grows_its_batches_while_they_are_quick_enough_and_shrinks_them_after() -> None:
    outcome = exactly(Clipper(4, objective_s=1.7), arriving(*[0.0] * 30))
    assert outcome.sizes[:5] == [1, 2, 3, 2, 3], "2.0 s are too long; 3 x 0.9 = 2.7"


def test_nexus_drops_whom_a_whole_batch_cannot_carry_in_time() -> None:
    """2 L(4) <= 5: batches of four; at 2.5 the first of the rest has 1.5 s left, too few for 4."""
    waiting = [Item(0.0)] * 4 + [Item(0.1, 4.0), *[Item(0.2, 5.5)] * 4]
    outcome = exactly(Nexus(ONE_TO_FOUR, 5.0), Workload(waiting))
    assert (outcome.sizes, outcome.refused, outcome.late) == ([4, 4], 1, 0)


def test_nexus_holds_its_batches_to_half_the_objective() -> None:
    assert exactly(Nexus(ONE_TO_FOUR, 3.1), arriving(*[0.0] * 5)).sizes == [2, 2, 1]
    assert exactly(Nexus(ONE_TO_FOUR, 0.1), arriving(*[0.0] * 2)).sizes == [1, 1]


@pytest.mark.parametrize("load", [0.3, 0.7, 1.1])
@pytest.mark.parametrize("timeout", [inf, 3.0])
@pytest.mark.parametrize("engines", [1, 2, 3])
def test_the_policy_simulated_is_the_one_that_serves(
    load: float, timeout: float, engines: int
) -> None:
    """The batcher in virtual time dispatches the same batches and refuses the same requests."""
    point = Point("steps", "Poisson", load, timeout, engines)
    workload = point.requests(400, seed=3)
    latencies = [Latency(tuple(point.seconds))] * engines
    simulated = play(Convoy(*latencies), point.seconds, workload, noise=0.0, engines=engines)
    sizes: list[int] = []
    refused = 0

    async def run(items: Sequence[Item]) -> Sequence[Item]:
        sizes.append(len(items))
        await asyncio.sleep(point.seconds[len(items) - 1])
        return items

    async def ask(batcher: Batcher[Item, Item], item: Item) -> None:
        nonlocal refused
        await until(item.arrived)
        try:
            await submit(batcher, [item], item.urgency)
        except service_errors.DeadlineError:
            refused += 1

    async def main() -> None:
        batcher = Batcher[Item, Item](
            *[run] * engines,
            max_batch=8,
            latency=Latency(tuple(point.seconds)),
            clock=virtual_time.now,
            timer_error_s=0,
        )
        await asyncio.gather(*(ask(batcher, item) for item in workload.arrivals))

    virtual_time.run(main())
    assert (sizes, refused) == (simulated.sizes, simulated.refused)


# --- the workloads -------------------------------------------------------------------------------


@pytest.mark.parametrize("workload", ["Poisson", "waves", "bursts"])
def test_arrivals_come_in_order_at_the_rate_of_the_load(workload: str) -> None:
    point = Point("flat", workload, 0.5)
    moments = [item.arrived for item in point.requests(50_000, seed=1).arrivals]
    assert moments == sorted(moments)
    rate = len(moments) / moments[-1]
    assert rate == pytest.approx(0.5 * capacity(point.seconds), rel=0.1)


def test_the_sweep_has_every_kind_of_arrival_at_every_profile() -> None:
    points = list(sweep())
    assert len(set(points)) == len(points)
    for profile in PROFILES:
        mine = [point for point in points if point.profile == profile]
        assert {point.load for point in mine if point.closed} == set(workloads.CLIENTS)
        assert {point.timeout for point in mine} == {inf, *workloads.TIMEOUTS}


# --- the criterion -------------------------------------------------------------------------------


def made_up(point: Point, **ours: float) -> Comparison:
    """All schedulers give the same, except ours."""
    alike = Result(p50_ms=1.0, p99_ms=2.0, throughput=3.0, goodput=0.5, batch=1.0)
    results = dict.fromkeys(SCHEDULERS, alike)
    results[CONVOY] = Result(**{**vars(alike), **ours})
    return Comparison(point, results)


def test_a_score_is_the_mean_of_what_counts() -> None:
    worse = made_up(Point("flat", "Poisson", 0.5), p99_ms=2.0 * 1.05**3, goodput=0.1)
    assert list(worse.scores().values()) == pytest.approx([1 / 1.05] * 6)
    assert not worse.beaten_by()
    assert worse.trades().keys() == {"p99"}
    assert made_up(Point("flat", "Poisson", 0.5), throughput=3.0 * 0.94**3).beaten_by()
    assert not made_up(Point("flat", "Poisson", 0.5)).trades()


def test_with_deadlines_goodput_alone_counts() -> None:
    point = Point("flat", "Poisson", 0.5, 3.0)
    scores = made_up(point, p99_ms=99.0, goodput=0.55).scores()
    assert list(scores.values()) == pytest.approx([1.1] * 6)
    assert made_up(point, goodput=0.47).beaten_by()


# Where each of the policy's parts shows: together, in steps, in a burst, with deadlines.
TELLING = [
    Point("flat", "closed, quick", 8),
    Point("flat", "closed, slow", 4),
    Point("flat", "bursts", 0.1),
    Point("flat", "Poisson", 0.5),
    Point("linear", "Poisson", 0.5),
    Point("steps", "Poisson", 0.7),
    Point("steps", "closed, quick", 6),
    Point("flat", "Poisson", 1.2, 3.0),
    Point("flat", "bursts", 0.8, 1.5),
    Point("short", "closed, slow", 8),
]


def test_ours_is_beaten_nowhere_that_tells_and_ahead_of_each_over_all() -> None:
    comparisons = [compare(point, 1500, [0]) for point in TELLING]
    assert {each.point: each.beaten_by() for each in comparisons if each.beaten_by()} == {}
    assert min(summary(comparisons).values()) > 1.05


def test_eight_steady_clients_travel_together_only_with_us_or_a_delay() -> None:
    results = compare(Point("flat", "closed, quick", 8), 1500, [0]).results
    assert results[CONVOY].batch > 7.5
    assert results["delay 0"].batch == pytest.approx(4, abs=0.2)
    assert results[CONVOY].throughput > 1.4 * results["Triton"].throughput
    assert results[CONVOY].p50_ms < 0.7 * results["Triton"].p50_ms


@pytest.mark.slow
@pytest.mark.parametrize("profile", PROFILES)
def test_ours_is_beaten_nowhere_by_more_than_a_twentieth_and_wins(profile: str) -> None:
    """The criterion of `comparison.py`, over the whole sweep of a profile."""
    comparisons = [compare(point, 4000, [0]) for point in sweep() if point.profile == profile]
    assert {each.point: each.beaten_by() for each in comparisons if each.beaten_by()} == {}
    assert min(summary(comparisons).values()) > 1


# --- the command ---------------------------------------------------------------------------------


def test_the_command_shows_and_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    points = [Point("flat", "closed, quick", 8), Point("flat", "Poisson", 1.2, 3.0)]
    monkeypatch.setattr(simulate, "sweep", lambda *_: points)
    rows = tmp_path / "rows.json"
    arguments = ["--requests", "1500", "--seeds", "2", "--processes", "1"]
    simulate.main([*arguments, "--record", str(rows)])
    written = read(rows)
    assert [(row["workload"], row["deadline_l8"]) for row in written] == [
        ("closed, quick", None),
        ("Poisson", 3.0),
    ]
    assert set(written[0]["results"]) == set(SCHEDULERS)
    assert written[0]["results"][CONVOY]["batch"][0] > 7
    shown = capsys.readouterr().out
    assert "\nmet: the worst score of 2 points" in shown


def test_recorded_rows_have_a_list_over_the_loads_for_every_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    points = [Point("flat", "Poisson", load) for load in (0.1, 0.5)]
    points.append(Point("flat", "Poisson", 0.5, 3.0))
    comparisons = [made_up(points[0], p50_ms=0.25), *map(made_up, points[1:])]
    monkeypatch.setattr(simulate, "run", lambda *_: comparisons)
    written: list[dict[str, Any]] = []
    monkeypatch.setattr(simulate, "append", lambda _, rows: written.extend(rows))
    simulate.main(["--record", "--requests", "7"])
    first, second = json.loads(json.dumps(written))
    assert (first["loads"], first["deadline_l8"], first["requests"]) == ([0.1, 0.5], None, 7)
    assert first["results"][CONVOY]["p50_ms"] == [0.25, 1.0]
    assert (second["loads"], second["deadline_l8"]) == ([0.5], 3.0)


def test_a_criterion_that_is_not_met_is_an_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    beaten = made_up(Point("flat", "Poisson", 0.5), p50_ms=9.0)
    monkeypatch.setattr(simulate, "run", lambda *_: [beaten])
    with pytest.raises(SystemExit) as left:
        simulate.main([])
    assert left.value.code == 1
    shown = capsys.readouterr().out
    assert "BEATEN at flat, Poisson, load 0.5" in shown
    assert "NOT MET" in shown


def test_a_run_is_the_same_again() -> None:
    point = Point("flat", "waves", 0.5)
    assert comparison.run(point, CONVOY, 500, [1]) == comparison.run(point, CONVOY, 500, [1])
    assert np.isfinite(comparison.run(point, CONVOY, 500, [1]).p99_ms)
