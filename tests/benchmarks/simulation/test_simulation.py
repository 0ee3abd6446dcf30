"""The simulator: its server, its workloads, and its use of the served policy."""

import asyncio
from collections.abc import Sequence
from math import inf

import numpy as np
import pytest

from benchmarks.simulation import __main__ as command
from benchmarks.simulation import gaps
from benchmarks.simulation.gaps import Gap
from benchmarks.simulation.schedulers import AtOnce, Convoy, measured
from benchmarks.simulation.server import Item, Outcome, Scheduler, Workload
from benchmarks.simulation.server import simulate as play
from benchmarks.simulation.workloads import PROFILES, capacity, poisson
from service import errors as service_errors
from service.batching.batcher import Batcher
from service.batching.latency import Latency
from tests.support.service import virtual_time
from tests.support.service.desk import submit
from tests.support.service.virtual_time import until

ONE_TO_FOUR = (1.0, 1.5, 2.0, 2.5)


def arriving(*moments: float, timeout: float = inf) -> Workload:
    return Workload([Item(moment, moment + timeout) for moment in moments])


def bursts(rate: float, count: int, within_s: float) -> Workload:
    """Return bursts of about 8 arrivals within some seconds, which begin at Poisson times."""
    draw = np.random.default_rng(0)
    moments: list[float] = []
    now = 0.0
    while len(moments) < count:
        now += draw.exponential(8 / rate)
        moments += list(now + draw.uniform(0, within_s, draw.poisson(7) + 1))
    return arriving(*sorted(moments)[:count])


def exactly(scheduler: Scheduler, workload: Workload) -> Outcome:
    return play(scheduler, ONE_TO_FOUR, workload, noise=0.0)


# --- the server ----------------------------------------------------------------------------------


def test_who_comes_while_a_batch_runs_waits_for_its_end() -> None:
    outcome = exactly(AtOnce(4), arriving(0.0, 0.25, 0.75))
    assert outcome.sizes == [1, 2]
    assert outcome.latencies == [1.0, 2.25, 1.75]
    assert (outcome.offered, outcome.refused, outcome.late, outcome.ended) == (3, 0, 0, 2.5)


def test_who_comes_at_the_same_moment_is_seen_together() -> None:
    assert exactly(AtOnce(4), arriving(0.0, 0.0, 0.0)).sizes == [3]


def test_an_answer_after_the_deadline_counts_as_late() -> None:
    outcome = exactly(AtOnce(4), arriving(0.0, 0.25, timeout=1.5))
    assert (len(outcome.latencies), outcome.late) == (1, 1)


def test_clients_of_a_closed_loop_send_again_after_their_answers() -> None:
    workload = Workload(clients=2, think=lambda _: 0.5, requests=6)
    outcome = exactly(AtOnce(4), workload)
    assert outcome.offered == 6
    assert outcome.sizes == [2, 2, 2]
    assert outcome.ended == 3 * (0.5 + 1.5)


def test_noise_changes_how_long_batches_take_but_not_who_comes_when() -> None:
    times = [
        play(AtOnce(4), ONE_TO_FOUR, arriving(0.0, 10.0), seed=seed, noise=0.1).latencies
        for seed in (1, 1, 2)
    ]
    assert times[0] == times[1] != times[2]
    assert all(0.5 < time < 2 for times_ in times for time in times_)


# --- the policy ----------------------------------------------------------------------------------


@pytest.mark.parametrize("load", [0.3, 0.7, 1.1])
@pytest.mark.parametrize("timeout", [inf, 3.0])
@pytest.mark.parametrize("engines", [1, 2, 3])
def test_the_policy_simulated_is_the_one_that_serves(
    load: float, timeout: float, engines: int
) -> None:
    """In virtual time, the batcher dispatches the same batches and refuses the same requests."""
    seconds = PROFILES["steps"]
    rate = load * capacity(seconds) * engines
    workload = poisson(rate, 400, 3, timeout * seconds[-1])
    latencies = [Latency(tuple(seconds))] * engines
    simulated = play(Convoy(*latencies), seconds, workload, noise=0.0, engines=engines)
    sizes: list[int] = []
    refused = 0

    async def run(items: Sequence[Item]) -> Sequence[Item]:
        sizes.append(len(items))
        await asyncio.sleep(seconds[len(items) - 1])
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
            latency=Latency(tuple(seconds)),
            clock=virtual_time.now,
            timer_error_s=0,
        )
        await asyncio.gather(*(ask(batcher, item) for item in workload.arrivals))

    virtual_time.run(main())
    assert (sizes, refused) == (simulated.sizes, simulated.refused)


def test_the_rest_of_a_burst_is_waited_for() -> None:
    """Without a wait, the first image of a burst forms a batch, and all others wait for it."""
    seconds = PROFILES["flat"]
    burst = bursts(0.3 * capacity(seconds), 3000, within_s=0.2 * seconds[0])
    ours, at_once = (
        np.mean(play(scheduler, seconds, burst).latencies)
        for scheduler in (Convoy(measured(seconds, 0)), AtOnce(8))
    )
    assert ours < 0.95 * at_once


def test_eight_steady_clients_travel_together_and_by_batches_at_once_do_not() -> None:
    seconds = PROFILES["flat"]
    clients = Workload(clients=8, think=lambda draw: draw.uniform(0.8e-4, 1.2e-4), requests=1500)
    schedulers = Convoy(measured(seconds, 0)), AtOnce(8)
    ours, at_once = (play(scheduler, seconds, clients) for scheduler in schedulers)
    assert np.mean(ours.sizes) > 7.5
    assert np.mean(at_once.sizes) == pytest.approx(4, abs=0.2)
    assert at_once.ended > 1.4 * ours.ended
    assert np.median(ours.latencies) < 0.7 * np.median(at_once.latencies)


# --- the workloads -------------------------------------------------------------------------------


def test_arrivals_come_in_order_at_their_rate() -> None:
    rate = 2500.0
    came = poisson(rate, 50_000, 1)
    moments = [item.arrived for item in came.arrivals]
    assert moments == sorted(moments)
    assert len(moments) / moments[-1] == pytest.approx(rate, rel=0.1)


def test_a_run_is_the_same_again() -> None:
    seconds, came = PROFILES["flat"], poisson(2500.0, 500, 1)
    first, again = (play(Convoy(measured(seconds, 1)), seconds, came, seed=1) for _ in range(2))
    assert first == again


# --- the command ---------------------------------------------------------------------------------


def test_the_command_shows_the_mean_and_the_worst_of_each_measure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [Gap("flat", "Poisson", load, "p99", ratio) for load, ratio in ((0.1, 1.0), (0.5, 1.1))]
    monkeypatch.setattr(gaps, "every", lambda requests: found if requests == 7 else [])
    command.main(["--requests", "7"])
    *_, line = capsys.readouterr().out.splitlines()
    assert line.split() == ["flat", "Poisson", "p99", "5.0", "10.0", "0.5", "0.1:0.0", "0.5:10.0"]
