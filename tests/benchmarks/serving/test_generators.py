"""Load generators side by side."""

import io
import json
import os
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.serving import generators
from benchmarks.serving.http_client import BadAnswerError, Connection, get_request, post_request
from benchmarks.serving.overhead import jpeg_of

CORES = sorted(os.sched_getaffinity(0))


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "it.jpg").write_bytes(jpeg_of(generators.BODY_BYTES))
    return folder


def test_the_server_counts_posts_and_stops_once() -> None:
    request = post_request("/v1/classify", bytes(10_000), "image/jpeg")
    with generators.answering(CORES, stall_at=2) as (url, count):
        host, _, port = url.removeprefix("http://").rpartition(":")
        connection = Connection((host, int(port)))
        took = []
        for _ in range(3):
            begin = time.perf_counter()
            body = connection.exchange(request).partition(b"\r\n\r\n")[2]
            took.append(time.perf_counter() - begin)
            assert json.loads(body)["results"][0]["predictions"]
        assert count.value == 3
        assert took[1] >= generators.STALL_S
        with pytest.raises(BadAnswerError, match="404"):
            connection.exchange(get_request("/metrics"))
        connection.close()


def test_convoy_records_the_stall_that_is_expected(images: Path) -> None:
    rows = generators.measure(None, images, seconds=0.5)
    cost, omission = rows
    assert cost["requests"] > 0
    assert cost["requests_a_cpu_second"] > cost["requests_a_second"] * 0.5
    assert omission["requests"] == generators.RATE * generators.LOAD_S
    # Other work on the machine only adds latency.
    for name, expected_ms in generators.EXPECTED_MS.items():
        assert omission[name] > 0.9 * expected_ms
    console = Console(file=io.StringIO(), width=200)
    generators.show(rows, console)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().count("convoy loadtest") == 2


def test_locusts_report_is_read(tmp_path: Path) -> None:
    times = {"1": 98, "10.0": 1, "1000": 1}
    report = [{"num_requests": 100, "total_response_time": 1108.0, "response_times": times}]
    command = [sys.executable, "-c", f"print({json.dumps(json.dumps(report))})"]
    found = generators.recorded_by_locust(command)
    assert found == {"requests": 100, "mean": 11.08, "p90": 1, "p99": 10}


def test_a_generator_that_ends_at_once_is_an_error() -> None:
    with (
        generators.answering(CORES) as (_, count),
        pytest.raises(RuntimeError, match="status 3"),
    ):
        generators.cost([sys.executable, "-c", "raise SystemExit(3)"], count, 1, CORES)
