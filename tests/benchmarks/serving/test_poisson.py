"""A network under Poisson load: what is asked, what is made of it, the queue beside it."""

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from benchmarks.serving import poisson
from benchmarks.serving.poisson import (
    Measured,
    measure,
    on_cores,
    queue_in_time,
    queue_p99,
    show,
)
from loadtest.images import SAMPLES
from models import BUILT_IN_MODEL


class Server:
    """Answers load tests as one would that takes 10 ms an image and 2 ms to decode."""

    def __init__(self, p99_ms: float = 31.0, errors: dict[str, int] | None = None) -> None:
        self.p99_ms = p99_ms
        self.errors = errors or {}
        self.asked: list[tuple[str, ...]] = []

    def load(self, *arguments: str) -> dict[str, Any]:
        self.asked.append(arguments)
        clients = int(arguments[1]) if "--clients" in arguments else 0
        return {
            "phases_ms": {"compute": {"p50": 10.0}, "decode": {"p50": 2.0}},
            "throughput": {0: 70.0, 1: 60.0, 8: 90.0, 16: 100.0}[clients],
            "latency_ms": {"p50": 12.0, "p90": 20.0, "p99": self.p99_ms},
            "requests": 1000,
            "answered": 950,
            "errors": self.errors,
            "late": 50 if "--deadline" in arguments else None,
            "refused": 50 if "--deadline" in arguments else 0,
        }

    def measure(self) -> Measured:
        return measure(self.load, lambda: {1: 10.5, 4: 32.0}, 0.8)


def test_the_load_is_a_share_of_what_clients_that_wait_were_answered() -> None:
    server = Server()
    found = server.measure()
    assert server.asked == [
        ("--clients", "1"),
        ("--clients", "8"),
        ("--clients", "16"),
        ("--rate", "80.000"),
        ("--rate", "80.000", "--deadline", "32.000ms"),
        ("--clients", "16"),
    ]
    assert (found.l1_ms, found.decode_ms, found.capacity, found.rate) == (10, 2, 100, 80)
    assert found.capacity_after == 100
    assert (found.bound_ms, found.met) == (32, True)
    assert (found.in_time, found.refused) == (0.9, 0.05)
    assert found.queue_p99_ms == pytest.approx(10 * queue_p99(0.8)), "10 ms a request at capacity"
    assert found.queue_in_time == pytest.approx(queue_in_time(0.8, 3.2))


@pytest.mark.parametrize("server", [Server(p99_ms=32.1), Server(errors={"429": 1})])
def test_a_promise_is_not_kept_late_or_by_refusing(server: Server) -> None:
    found = server.measure()
    assert not found.met
    out = io.StringIO()
    show(found, 0.8, Console(file=out, width=120))
    assert "NOT MET: p99" in out.getvalue()
    assert "at most 3 L(1) + decode = 32.00 ms" in out.getvalue()
    assert "90.0% in time, 5.0% refused" in out.getvalue()


def test_one_server_takes_what_pollaczek_and_khinchine_say() -> None:
    """Seen through the p99s: those of M/D/1 are tabulated by simulation one event at a time."""
    draw = np.random.default_rng(7)
    done, now, latencies = 0.0, 0.0, []
    for gap in draw.exponential(1 / 0.6, 100_000):
        now += gap
        done = max(done, now) + 1
        latencies.append(done - now)
    assert np.mean(latencies) == pytest.approx(1 + 0.6 / (2 * 0.4), rel=0.03)
    assert queue_p99(0.6) == pytest.approx(np.quantile(latencies, 0.99), rel=0.05)


def test_no_queue_is_no_wait_and_too_much_has_no_end() -> None:
    assert queue_p99(0.001) == pytest.approx(1, abs=0.01)
    assert queue_p99(1.0) == float("inf")
    assert queue_p99(0.8, servers=2) < 0.6 * queue_p99(0.8)


@pytest.mark.parametrize("utilisation", [0.5, 0.8, 2.0])
def test_who_may_not_wait_at_all_is_lost_as_erlang_says(utilisation: float) -> None:
    assert queue_in_time(utilisation, 1.0) == pytest.approx(1 / (1 + utilisation), abs=0.005)
    assert queue_in_time(utilisation, 0.9) == 0
    assert queue_in_time(utilisation, 2.0) > queue_in_time(utilisation, 1.5)


def test_who_may_wait_for_ever_is_in_time() -> None:
    assert queue_in_time(0.8, 1e9) == 1


def test_what_is_started_inside_runs_on_its_cores_and_this_process_on_its_own_again() -> None:
    before = os.sched_getaffinity(0)
    one = [min(before)]
    with on_cores(one):
        assert os.sched_getaffinity(0) == set(one)
    assert os.sched_getaffinity(0) == before
    with on_cores(None):
        assert os.sched_getaffinity(0) == before


@pytest.mark.slow
def test_a_real_server_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "row.json"
    arguments = ["--model", str(BUILT_IN_MODEL), "--images", str(SAMPLES), "--seconds", "2"]
    try:
        poisson.main([*arguments, "--json", str(file)])
        left = 0
    except SystemExit as ended:
        left = int(str(ended.code))
    row = json.loads(file.read_text())
    assert left == (0 if row["met"] else 1)
    assert 0 < row["l1_ms"] < row["bound_ms"]
    assert row["rate"] == pytest.approx(0.8 * row["capacity"])
    assert row["answers"] > 0
    assert "1" in row["batch_ms"]
    assert "of capacity (promised" in capsys.readouterr().out
