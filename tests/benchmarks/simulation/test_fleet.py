"""The simulated fleet: queueing theory, the other simulator, and one outcome for each request."""

import time
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulation.fleet import (
    BALANCERS,
    Hardware,
    LeastConnections,
    Outage,
    PowerOfTwo,
    poisson,
    simulate,
    with_burst,
)
from benchmarks.simulation.schedulers import CONVOY, SCHEDULERS
from benchmarks.simulation.server import Item, Workload
from benchmarks.simulation.server import simulate as simulate_one

ONE = Hardware((0.01,))
BATCHES = Hardware(tuple(0.004 + 0.0024 * n for n in range(1, 9)), max_queue=10**6)
every_balancer = pytest.mark.parametrize("balancer", BALANCERS)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_one_server_without_batches_waits_as_pollaczek_and_khinchine_say(load: float) -> None:
    arrivals = poisson(load / ONE.seconds[0], 200_000)
    mean = simulate(ONE, 1, arrivals).latencies.mean()
    assert mean == pytest.approx(0.01 * (1 + load / (2 * (1 - load))), rel=0.05)


def test_requests_of_equal_length_in_turn_wait_as_in_one_queue_for_all_servers() -> None:
    """Served in order and equally long, every server gets each 20th arrival: Lindley's equation."""
    arrivals = poisson(0.8 * 20 / 0.01, 100_000)
    one_queue = np.empty_like(arrivals)
    for server in range(20):
        moments = arrivals[server::20]
        served = 0.01 * np.arange(len(moments))
        done = np.maximum.accumulate(moments - served) + served + 0.01
        one_queue[server::20] = done - moments
    means = {name: simulate(ONE, 20, arrivals, name).latencies.mean() for name in BALANCERS}
    assert means["round robin"] == pytest.approx(one_queue.mean(), rel=0.01)
    assert means["round robin"] < means["least connections"] < means["power of two"] < 0.02


@pytest.mark.parametrize("engines", [1, 3])
@pytest.mark.parametrize("load", [0.5, 0.8])
def test_one_replica_does_what_the_simulated_server_does(load: float, engines: int) -> None:
    hardware = BATCHES._replace(engines=engines)
    arrivals = poisson(load * hardware.capacity, 20_000)
    ours = simulate(hardware, 1, arrivals).latencies
    scheduler = SCHEDULERS[CONVOY](hardware.seconds, 1.0, 0, engines)
    workload = Workload([Item(moment) for moment in arrivals.tolist()])
    theirs = simulate_one(scheduler, hardware.seconds, workload, engines=engines).latencies
    assert np.quantile(ours, [0.5, 0.99]) == pytest.approx(
        np.quantile(theirs, [0.5, 0.99]), rel=0.1
    )


@every_balancer
@settings(deadline=None, max_examples=25)
@given(
    replicas=st.integers(2, 6),
    load=st.floats(0.2, 3),
    cuts=st.lists(
        st.tuples(st.floats(0, 1), st.floats(0.01, 0.5), st.integers(1, 5), st.booleans()),
        max_size=4,
    ),
    decode_s=st.sampled_from([0.0, 0.005]),
    seed=st.integers(0, 100),
    engines=st.integers(1, 3),
)
def test_every_request_has_one_outcome_whatever_fails(
    balancer: str,
    replicas: int,
    load: float,
    cuts: Sequence[tuple[float, float, int, bool]],
    decode_s: float,
    seed: int,
    engines: int,
) -> None:
    hardware = Hardware(BATCHES.seconds, decode_s, decoders=2, max_queue=8, engines=engines)
    arrivals = poisson(load * replicas * hardware.capacity, 600, seed)
    lasts = float(arrivals[-1])
    # One is left; and no replica has two outages at once, which would end with the first.
    begins, outages = 0.0, []
    for pause, length, count, loses in cuts:
        begin = begins + pause * lasts / 4
        begins = begin + length * lasts / 4
        outages.append(Outage(begin, begins, range(min(count, replicas - 1)), loses))
    outcome = simulate(hardware, replicas, arrivals, balancer, outages, seed)
    assert len(outcome.latencies) + outcome.refused + outcome.lost == 600
    assert (outcome.latencies >= 0.8 * hardware.seconds[0] + decode_s).all()
    if not any(outage.loses for outage in outages):
        assert outcome.lost == 0


@every_balancer
def test_a_replica_that_is_down_gets_nothing_and_others_carry_on(balancer: str) -> None:
    arrivals = poisson(0.5 * 4 / 0.01, 4_000)
    lasts = float(arrivals[-1])
    failing = Outage(0.4 * lasts, 0.6 * lasts, range(1), loses=True)
    failed = simulate(ONE, 4, arrivals, balancer, [failing])
    assert 0 <= failed.lost <= 20
    assert len(failed.latencies) == 4_000 - failed.lost
    deployed = simulate(ONE, 4, arrivals, balancer, [failing._replace(loses=False)])
    assert (deployed.lost, len(deployed.latencies)) == (0, 4_000)
    with pytest.raises(ValueError, match="no replica is up"):
        simulate(ONE, 4, arrivals, balancer, [failing._replace(replicas=range(4))])


@every_balancer
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4)), max_size=60))
def test_the_balancer_keeps_its_promise(balancer: str, steps: list[tuple[bool, int]]) -> None:
    """Requests come, and leave or go down and up; the choice is up, and the one promised."""
    chooser = BALANCERS[balancer](5, 0)
    chosen: Counter[int] = Counter()
    for leaves, replica in steps:
        if leaves and chooser.inside[replica]:
            chooser.inside[replica] -= 1
            chooser.changed(replica)
        elif leaves:
            chooser.switch([replica], up=not chooser.is_up[replica] or len(chooser.up) == 1)
        else:
            choice = chooser.choose()
            assert chooser.is_up[choice]
            fewest = min(chooser.inside[each] for each in chooser.up)
            if isinstance(chooser, LeastConnections):
                assert chooser.inside[choice] == fewest
            chosen[choice] += 1
            chooser.inside[choice] += 1
            chooser.changed(choice)
    if balancer == "round robin" and not any(leaves for leaves, _ in steps):
        assert max(chosen.values(), default=0) - len(steps) / 5 < 1


def test_power_of_two_is_more_even_than_chance() -> None:
    chooser = PowerOfTwo(100, 0)
    for _ in range(10_000):
        chooser.inside[chooser.choose()] += 1
    assert max(chooser.inside) - 100 < 5  # by chance alone: about 30


def test_a_burst_brings_the_same_requests_in_order_and_faster() -> None:
    arrivals = np.arange(0, 10, 0.01)
    burst = with_burst(arrivals, 2, 4, 6)
    assert (np.diff(burst) > 0).all()
    assert ((burst > 4) & (burst <= 6)).sum() == pytest.approx(400, abs=2)
    assert burst[-1] == pytest.approx(arrivals[-1] - 2)


@pytest.mark.slow
def test_a_million_requests_to_a_thousand_replicas_take_less_than_a_minute_of_one_core() -> None:
    hardware = Hardware(BATCHES.seconds, 0.001, 2)
    arrivals = poisson(0.8 * 1000 * hardware.capacity, 1_000_000)
    began = time.process_time()
    outcome = simulate(hardware, 1000, arrivals)
    assert time.process_time() - began < 60
    assert len(outcome.latencies) == 1_000_000
