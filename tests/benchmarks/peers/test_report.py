"""The README's table of what was measured beside other servers."""

from typing import Any

import pytest

from benchmarks.peers import __main__ as peers
from benchmarks.peers.catalogue import LITSERVE, RAY_SERVE
from benchmarks.peers.comparison import DIGITS, NOOP
from benchmarks.peers.report import readme_table
from benchmarks.rows import Row
from benchmarks.serving.targets import CONVOY


def row(server: str, rate: float, work: str = NOOP, **changes: Any) -> Row:
    conditions = {"date": "2026-11-21T23:26:24", "cpu": "EPYC", "cores": 2, "commit": "abc"}
    numbers = {"requests_a_second": rate, "p99_ms": 1000 / rate if rate else 0, "connections": 8}
    ran = {"onnxruntime": "1.31", "server": server, "setting": "", "work": work}
    return {**conditions, **ran, **numbers, **changes}


def test_the_readmes_table_has_the_best_of_the_last_recording_and_its_conditions() -> None:
    rows = [
        row(CONVOY, 9999, date="2026-11-20T00:00:00"),
        row(CONVOY, 700),
        row(CONVOY, 500, DIGITS),
        *(
            row("LitServe", 100, versions={"litserve": "1.2.3"}, setting=setting.name)
            for setting in LITSERVE.settings
        ),
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


def test_the_table_says_what_it_cannot_stand_for() -> None:
    first, *others = RAY_SERVE.settings
    rows = [row(CONVOY, 700, commit="abc+"), row("Ray Serve", 9, setting=first.name, commit="abc+")]
    rows.append(row("Ray Serve", 0, setting=others[-1].name, commit="abc+", error="it was closed"))
    told, *_, last = readme_table(rows).splitlines()
    assert told.endswith("commit abc with changes that were not committed:")
    names = ", or ".join(setting.name for setting in others)
    assert last == f"Not measured yet: Ray Serve with {names}."


def test_ray_serve_runs_at_its_best_too() -> None:
    """By HAProxy and with its own options for throughput: see deploy/ray/README.md."""
    environments = [setting.environment for setting in RAY_SERVE.settings]
    assert {"RAY_SERVE_ENABLE_HA_PROXY", "RAY_SERVE_THROUGHPUT_OPTIMIZED"} <= set(environments[-1])


def test_a_tree_that_differs_from_its_commit_is_not_recorded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peers, "commit", lambda: "abc+")
    assert not peers.parse_arguments([]).record
    with pytest.raises(SystemExit):
        peers.parse_arguments(["--record"])
    assert "--record: commit first" in capsys.readouterr().err
    monkeypatch.setattr(peers, "commit", lambda: "abc")
    assert peers.parse_arguments(["--record"]).record
