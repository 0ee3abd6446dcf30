"""Plans: the fewest replicas that meet the bound, and what happens to them."""

from pathlib import Path

import pytest

from benchmarks.simulation import plan
from benchmarks.simulation.fleet import BALANCERS, Hardware, poisson, simulate
from benchmarks.simulation.plan import fewest, measured, result_of, scenarios
from models import BUILT_IN_MODEL

HARDWARE = Hardware((0.004, 0.005, 0.006, 0.007), 0.001, 1)
SAMPLE = BUILT_IN_MODEL.parent / "samples" / "3_ink_on_paper.jpg"


@pytest.mark.parametrize("wanted", [1, 2, 7, 100, 1234])
def test_the_fewest_are_found_from_any_start(wanted: int) -> None:
    tried: list[int] = []

    def meets(replicas: int) -> bool:
        tried.append(replicas)
        return replicas >= wanted

    assert fewest(meets, 1) == wanted
    assert len(tried) < 50


def test_a_bound_that_no_fleet_meets_is_an_error() -> None:
    with pytest.raises(ValueError, match="do not meet the bound"):
        fewest(lambda _: False, 1)


def test_a_plan_meets_its_bound_and_one_replica_fewer_does_not() -> None:
    plans = plan.plan(HARDWARE, rate=3000, p99_ms=20, requests=20_000)
    assert list(plans) == list(BALANCERS)
    arrivals = poisson(3000, 20_000)
    for name, (replicas, results) in plans.items():
        assert results["steady"].p99_ms <= 20
        fewer = result_of(simulate(HARDWARE, replicas - 1, arrivals, name))
        assert fewer.p99_ms > 20 or fewer.refused
        assert list(results) == ["steady", "1% fail", "10% fail", "deployment", "burst ×2"]
        assert results["deployment"].lost == 0
        assert results["burst ×2"].p99_ms > results["steady"].p99_ms


def test_the_number_of_replicas_can_be_given() -> None:
    plans = plan.plan(HARDWARE, rate=3000, p99_ms=1, requests=2_000, replicas=12)
    assert {replicas for replicas, _ in plans.values()} == {12}


def test_a_deployment_restarts_every_replica_once() -> None:
    outages = {name: some for name, _, some in scenarios(25, poisson(100, 1000))}
    restarted = [place for outage in outages["deployment"] for place in outage.replicas]
    assert restarted == list(range(25))
    assert len(outages["10% fail"][0].replicas) == 2


def test_the_command_shows_a_plan_and_draws_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.png"
    plan.main(
        [
            *("--rate", "2000", "--p99", "25", "--latency-ms", "4,5,6,7", "--decode-ms", "1"),
            *("--requests", "5000", "--plot", str(file)),
        ]
    )
    shown = capsys.readouterr().out
    assert all(name in shown for name in BALANCERS)
    assert file.read_bytes().startswith(b"\x89PNG")


def test_a_model_is_measured_on_this_machine() -> None:
    hardware = measured(BUILT_IN_MODEL, None, SAMPLE.read_bytes(), threads=1, max_batch=2)
    assert 0 < hardware.seconds[0] <= hardware.seconds[1]
    assert (hardware.decode_s, hardware.decoders) == (0, 1)
