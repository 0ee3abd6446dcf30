from pathlib import Path

import pytest

from benchmarks.rows import read
from benchmarks.serving import workers


@pytest.mark.slow
def test_with_and_without_workers_are_measured_at_both_kinds_of_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workers.main(["--workers", "0", "1", "--seconds", "0.5", "--record", str(tmp_path / "rows")])
    rows = read(tmp_path / "rows")
    assert [(row["work"], row["workers"]) for row in rows] == [
        *(("no-op", 0), ("no-op", 1)),
        *(("decoding", 0), ("decoding", 1)),
    ]
    for row in rows:
        assert row["n"] >= 1
        assert 0 < row["p50_ms"] <= row["p99_ms"]
        assert row["commit"]
    assert "requests/s" in capsys.readouterr().out
