"""The README's table of what was measured beside other servers."""

from typing import Any

from benchmarks.peers.comparison import DIGITS, NOOP
from benchmarks.peers.report import readme_table
from benchmarks.rows import Row
from benchmarks.serving.targets import CONVOY


def row(server: str, rate: float, work: str = NOOP, **changes: Any) -> Row:
    conditions = {"date": "2026-11-21T23:26:24", "cpu": "EPYC", "cores": 2, "commit": "abc"}
    numbers = {"requests_a_second": rate, "p99_ms": 1000 / rate, "connections": 8}
    return {**conditions, "onnxruntime": "1.31", "server": server, "work": work} | numbers | changes


def test_the_readmes_table_has_the_best_of_the_last_recording_and_its_conditions() -> None:
    rows = [
        row(CONVOY, 9999, date="2026-11-20T00:00:00"),
        row(CONVOY, 700),
        row(CONVOY, 500, DIGITS),
        row("LitServe", 100, versions={"litserve": "1.2.3"}),
        row("LitServe", 50, p99_ms=3.0),
    ]
    told, _, *lines = readme_table(rows).splitlines()
    assert "with 8 connections" in told
    assert told.endswith(
        "EPYC, 2 cores shared by server and clients, ONNX Runtime 1.31, 2026-11-21, commit abc:"
    )
    assert lines[2:] == [
        "| Convoy | 700/s, 1.4 ms | 500/s, 2.0 ms |",
        "| LitServe 1.2.3 | 100/s, 3.0 ms | not measured |",
    ]
