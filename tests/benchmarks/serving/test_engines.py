import json
from pathlib import Path

import pytest

from benchmarks.serving import engines
from benchmarks.serving.engines import Side, ratios
from models import BUILT_IN_MODEL


def test_one_engine_and_two_are_measured_by_rounds_and_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engines, "FILE", tmp_path / "rows.jsonl")
    image = BUILT_IN_MODEL.parent / "samples" / "0_white_on_black.png"
    engines.main(
        [
            *("--model", str(BUILT_IN_MODEL), "--image", str(image)),
            *("--rounds", "2", "--seconds", "0.5", "--record"),
        ]
    )
    (row,) = map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())
    assert [side["engines"] for side in row["rounds"]] == [1, 2, 1, 2]
    for side in row["rounds"]:
        assert 0 < side["p50_ms"] <= side["p99_ms"]
        assert side["requests_a_cpu_second"] > 0
    assert set(row["ratios"]) == set(Side._fields[1:])
    assert "requests_a_cpu_second" in capsys.readouterr().out


def test_a_ratio_is_the_median_over_the_rounds() -> None:
    one = Side(1, 100.0, 50.0, 2.0, 10.0)
    rounds = [(one, Side(2, 100.0 * factor, 50.0, 1.0, 20.0)) for factor in (1.0, 1.3, 9.0)]
    assert ratios(rounds) == {
        "requests_a_second": 1.3,
        "requests_a_cpu_second": 1.0,
        "p50_ms": 0.5,
        "p99_ms": 2.0,
    }
