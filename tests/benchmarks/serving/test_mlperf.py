"""MLPerf's scenarios: that LoadGen runs them here, and that what it says is read right."""

import io
import json
import subprocess
from typing import Any

import pytest
from rich.console import Console

from benchmarks.serving import mlperf
from benchmarks.serving import overhead as service
from loadtest.images import SAMPLES
from models import BUILT_IN_MODEL

lg = pytest.importorskip("mlperf_loadgen", reason="LoadGen has no wheel for this system")
scenario = pytest.importorskip("benchmarks.serving.mlperf_scenario")

DIGITS = mlperf.Served(BUILT_IN_MODEL, None, SAMPLES)


def log(**values: Any) -> str:
    """LoadGen's log of some values, and of what every one has."""
    every: dict[str, Any] = {
        f"result_{q}_percentile_latency_ns": 2_000_000 for q in ("50.00", "90.00", "95.00")
    }
    every |= {f"result_{q}_percentile_latency_ns": 7_000_000 for q in ("97.00", "99.00", "99.90")}
    every |= {"result_mean_latency_ns": 3_000_000, "result_max_latency_ns": 9_000_000}
    every |= {"result_query_count": 42, "result_validity": "VALID", **values}
    lines = [json.dumps({"key": key, "value": value}) for key, value in every.items()]
    return "".join(f":::MLLOG {line}\n" for line in lines) + "something else\n"


def test_each_scenarios_own_number_is_read() -> None:
    single = scenario.read_log("SingleStream", log())
    assert (single.value, single.verdict, single.queries) == (2.0, "VALID", 42)
    assert single.latency_ms == pytest.approx(
        {"p50": 2, "p90": 2, "p95": 2, "p97": 7, "p99": 7, "p99.9": 7, "mean": 3, "max": 9}
    )
    multi = log(**{"result_99.00_percentile_per_query_latency_ns": 8_000_000})
    assert scenario.read_log("MultiStream", multi).value == 8.0
    assert scenario.read_log("Offline", log(result_samples_per_second=123.5)).value == 123.5
    with pytest.raises(ValueError, match="result_samples_per_second"):
        scenario.read_log("Offline", log())


def test_what_was_not_met_is_told() -> None:
    missed = log(
        result_completed_samples_per_sec=50.5,
        result_validity="INVALID",
        result_perf_constraints_met=False,
        result_min_duration_met=True,
        early_stopping_met=False,
    )
    found = scenario.read_log("Server", missed)
    assert (found.value, found.in_bound) == (50.5, False)
    assert found.verdict == "INVALID: latency, early stopping"
    assert scenario.read_log("Server", log(result_completed_samples_per_sec=1)).in_bound


def job(**changes: Any) -> dict[str, Any]:
    of_engine = {
        "scenario": "Server",
        "url": None,
        "model": str(BUILT_IN_MODEL),
        "preset": None,
        "images": str(SAMPLES),
        "seconds": 0.5,
        "bound_ms": 10_000.0,
        "rate": 200.0,
    }
    return {**of_engine, **changes}


def test_loadgen_runs_a_scenario_on_the_engine() -> None:
    result = mlperf.run_job(**job())
    # Poisson, in 0.5 s or a little more.
    assert 50 <= result["queries"] <= 200
    assert 0 < result["latency_ms"]["p50"] <= result["latency_ms"]["p99"]
    assert result["in_bound"]


def test_a_request_that_fails_ends_the_run_with_its_reason() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        mlperf.run_job(**job(url="http://127.0.0.1:1"))


def test_servers_rate_goes_down_until_its_bound_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def run_job(**job: Any) -> dict[str, Any]:
        asked.append((job["scenario"], job["rate"]))
        return {
            "verdict": "VALID",
            "in_bound": job["rate"] <= 65,
            "value": 100.0,
            "queries": 10,
            "latency_ms": {"p50": 1.0, "p99": 2.0},
        }

    monkeypatch.setattr(mlperf, "run_job", run_job)
    rows = mlperf.scenarios(DIGITS, None, 1.0, 15.0)
    assert [name for name, _ in asked] == ["SingleStream", "MultiStream", "Offline"] + [
        "Server"
    ] * 3
    assert [rate for name, rate in asked if name == "Server"] == [90, 75, 60]
    assert [row["scenario"] for row in rows] == [name for name, _ in asked]
    shown = io.StringIO()
    mlperf.show(rows, Console(file=shown, width=150))
    text = " ".join(shown.getvalue().split())
    assert "No submission" in text
    assert "p99 within 15 ms" in text
    assert "100.0 samples/s" in text


@pytest.mark.slow
def test_all_scenarios_run_over_http_and_on_the_engine(tmp_path: Any) -> None:
    file = tmp_path / "rows.json"
    service.main(["--mlperf", "--seconds", "0.3", "--bound-ms", "10000", "--json", str(file)])
    rows = json.loads(file.read_text())
    for target in (mlperf.OVER_HTTP, mlperf.ENGINE):
        ran = [row for row in rows if row["target"] == target]
        assert {row["scenario"] for row in ran} == set(scenario.SCENARIOS)
        for row in ran:
            assert row["value"] > 0
            assert row["model"] == "digits"
            assert row["cpu"]
            assert row["commit"]
