"""Results as JSON, and read back."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest import LoadTestError
from loadtest.report.record import Run, as_json, read_run
from loadtest.summary import Load
from loadtest.sweep import SweepResult
from tests.loadtest.report.measured import GOOD, SUBJECT


def test_json_has_the_conditions_and_what_follows_from_each_load() -> None:
    run = Run("this run", SUBJECT, SweepResult([GOOD], best=GOOD))
    written = json.loads(as_json({"url": "http://x"}, 10, run))
    assert (written["url"], written["images"], written["highest_rate"]) == ("http://x", 10, 50)
    assert written["subject"]["device"] == "cpu (ONNX Runtime 1.23)"
    (load,) = written["loads"]
    assert load["latency_ms"] == {**GOOD.latency_ms, "p99.9": None}  # of 500 answers
    assert load["batch_sizes"] == {"1": 2, "4": 2}
    assert (load["error_share"], load["client_limited"]) == (0, False)


def test_a_run_is_read_back_as_it_was(tmp_path: Path) -> None:
    good = replace(GOOD, answered=1000, requests=1000)
    worse = replace(good, load=Load(rate=100), errors={"429": 10})
    file = tmp_path / "before.json"
    file.write_bytes(as_json({}, 10, Run("x", SUBJECT, SweepResult([good, worse], best=good))))
    assert read_run(file) == Run("before", SUBJECT, SweepResult([good, worse], best=good))


@pytest.mark.parametrize("content", [None, b"", b"{}", b'{"loads": [1]}'])
def test_a_file_that_is_no_result_is_named(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "before.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(LoadTestError, match=r"before\.json is not a result written by --json"):
        read_run(file)
