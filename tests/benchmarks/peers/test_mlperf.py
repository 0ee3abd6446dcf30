"""The code that MLPerf's load generator calls, with a stand-in for the generator and with the real
one."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.peers import mlperf
from benchmarks.peers.mlperf import SCENARIOS, SIDES, drive, summary, table
from benchmarks.peers.works import DIGITS, Task

SUMMARY = """
Scenario : MultiStream
99.0th percentile latency (ns) : 85691507
Result is : INVALID
Min latency (ns)                : 19970650
50.00 percentile latency (ns)   : 55847928
90.00 percentile latency (ns)   : 66312022
99.00 percentile latency (ns)   : 85691507
99.90 percentile latency (ns)   : 95691507
"""


def stand_in(completed: list[int]) -> Any:
    """Replaces the load generator: it sends one query, and writes a summary."""

    def start(issue: Any, images: int, settings: Any, log: Any) -> None:
        issue([SimpleNamespace(id=100 + n, index=n % images) for n in range(settings.scenario)])
        Path(log.log_output.outdir, "mlperf_log_summary.txt").write_text(SUMMARY)

    return SimpleNamespace(
        TestScenario=SimpleNamespace(SingleStream=1, MultiStream=8),
        TestMode=SimpleNamespace(PerformanceOnly="performance"),
        TestSettings=SimpleNamespace,
        LogSettings=lambda: SimpleNamespace(log_output=SimpleNamespace()),
        ConstructSUT=lambda issue, flush: issue,
        ConstructQSL=lambda count, *_: count,
        QuerySampleResponse=lambda number, *_: number,
        QuerySamplesComplete=completed.extend,
        StartTestWithLogSettings=start,
        DestroySUT=lambda _: None,
        DestroyQSL=lambda _: None,
    )


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_query_is_answered_whole(tmp_path: Path, scenario: str) -> None:
    asked: list[Sequence[int]] = []
    completed: list[int] = []
    found = drive(stand_in(completed), scenario, asked.append, 3, 1, 5, tmp_path / "logs")
    n = SCENARIOS[scenario]
    *warm, query = asked
    assert set(map(len, warm)) == {min(n, 3)}
    assert query == [index % 3 for index in range(n)]
    assert completed == [100 + index for index in range(n)]
    assert found["p50_us"] == 55847.9


def test_a_summary_has_its_percentiles_and_its_verdict() -> None:
    assert summary(SUMMARY) == {
        "result": "INVALID",
        "p50_us": 55847.9,
        "p90_us": 66312.0,
        "p99_us": 85691.5,
    }
    with pytest.raises(ValueError, match="no result"):
        summary("it broke")


@pytest.mark.parametrize("side", SIDES)
def test_each_side_answers_one_image_and_eight(digits: Task, side: str) -> None:
    with SIDES[side](digits, DIGITS, "cpu") as answer:
        for images in ([0], range(1, 9)):
            assert first(answer(images)) == digits.cases[images[0]].best[0]


def first(answered: Any) -> int:
    """Return the best class of the first image, from an answer's classes or from a row of
    scores."""
    if isinstance(answered, list) and isinstance(answered[0], tuple):
        return int(answered[0][0])
    rows = answered[0] if isinstance(answered, list) else answered.scores
    return int(np.argmax(rows[0]))


def test_the_table_has_the_last_record_and_the_published_results() -> None:
    assert "| 346 / – | 806 / – |" in table([])
    about = {"work": DIGITS, "device": "cpu", "cpu": "EPYC", "cores": 2, "commit": "abc"}
    rows = [
        {**about, "date": date, "side": "Convoy", "scenario": scenario, "p50_us": us, "p99_us": 9e9}
        for date, us in (("2026-11-26", 1.0), ("2026-11-27", 1234.5))
        for scenario in SCENARIOS
    ]
    assert "| Convoy | 1,234 / 9,000,000,000 | 1,234 / 9,000,000,000 |" in table(rows)


@pytest.mark.slow
def test_the_real_load_generator_writes_its_logs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The load generator is installed from the package index."""
    arguments = ["--seconds", "0.1", "--queries", "5", "--device", "cpu", "--out", str(tmp_path)]
    mlperf.main(arguments)
    logs = sorted(file.parent.name for file in tmp_path.rglob("mlperf_log_detail.txt"))
    assert len(logs) == len(SIDES) * len(SCENARIOS)
    assert "| Convoy by HTTP, JPEG |" in capsys.readouterr().out
