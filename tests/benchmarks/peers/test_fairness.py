"""Each way to make the comparison unfair, applied on purpose to one side."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import __main__ as peers
from benchmarks.peers import fairness
from benchmarks.peers.catalogue import CONVOY, Peer, Setting, request_for
from benchmarks.peers.comparison import Contender, Effort, measure
from benchmarks.peers.fairness import UnfairError, differences, wanted
from benchmarks.peers.report import readme_table, shown
from benchmarks.peers.works import DIGITS, NOOP, Task
from benchmarks.rows import Row
from tests.support.benchmarks.stand_in import COMMAND, HERE, NOTHING, row


def errors(setting: Setting, work: str, task: Task, folder: Path) -> set[str | None]:
    """Return the complaints about the rows of one server with one setting."""
    peer = Peer("Stand-in", "stand-in", (), COMMAND, (setting,))
    effort = Effort(1, 0.1)
    rows = measure([Contender(peer, HERE)], work, task, effort, folder, lambda _: None)
    return {row.get("error") for row in rows}


@pytest.mark.parametrize(
    ("choices", "environment", "reason"),
    [
        ({}, {"ORT_DISABLE_TELEMETRY": "0"}, "ONNX Runtime's telemetry is on"),
        ({"nice": 1}, {}, "priority "),
    ],
    ids=["telemetry on", "another priority"],
)
def test_a_server_that_is_started_unlike_the_others_is_not_measured(
    tmp_path: Path, choices: Mapping[str, Any], environment: Mapping[str, str], reason: str
) -> None:
    (error,) = errors(Setting("unfair", choices, environment), NOOP, NOTHING, tmp_path)
    assert error is not None
    assert reason in error


@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        ({"telemetry": "0"}, "ONNX Runtime's telemetry is on"),
        ({"threads": 7}, "threads must be 1 as for the other servers, got 7"),
    ],
    ids=["telemetry on", "another thread count"],
)
def test_what_a_program_does_to_its_own_session_is_noticed(
    tmp_path: Path, digits: Task, choices: Mapping[str, Any], reason: str
) -> None:
    (error,) = errors(Setting("unfair", choices), DIGITS, digits, tmp_path)
    assert error is not None
    assert reason in error


@pytest.mark.parametrize(
    ("environ", "whole"),
    [("A=1\0B=2\0", True), ("", True), ("ray::ProxyActor\0\0\0\0B=2\0", False)],
)
def test_a_process_that_wrote_over_its_variables_is_not_suspected(
    environ: str, whole: bool
) -> None:
    assert fairness.intact(environ.split("\0")) is whole


def test_convoy_with_an_option_for_its_threads_is_noticed(tmp_path: Path, digits: Task) -> None:
    options = ["--device", "cpu", "--threads", "77", "--max-batch", "1"]
    setting = Setting("more threads", {"options": options})
    convoy = Contender(replace(CONVOY, settings=(setting,)), HERE)
    rows = measure([convoy], DIGITS, digits, Effort(1, 0.1), tmp_path, lambda _: None)
    assert "threads must be 2 as for the other servers, got 77" in rows[0]["error"]


def test_a_server_that_is_sent_another_image_is_not_measured() -> None:
    fair = wanted(1)
    sent = request_for("form", "/predict", b"the image", "image/jpeg")
    fairness.check(fair, fair, sent, b"the image")
    with pytest.raises(UnfairError, match="must have the same image"):
        fairness.check(fair, fair, sent, b"another")
    with pytest.raises(UnfairError, match=r"affinity must be .*, got 0-63"):
        fairness.check(replace(fair, affinity="0-63"), fair, sent, b"the image")


UNFAIR: list[tuple[dict[str, str], str]] = [
    ({"image": "another"}, "noop: servers differ in image: cat: Convoy; another: LitServe"),
    ({"model": "another"}, "noop: servers differ in model"),
    ({"telemetry": "0"}, "noop: servers differ in telemetry: off: Convoy; 0: LitServe"),
    ({"affinity": "0-63"}, "noop: servers differ in affinity"),
    ({"threads_each": "7"}, "noop: LitServe ran with 7 threads instead of 1"),
]


@pytest.mark.parametrize(("change", "reason"), UNFAIR, ids=lambda value: str(value)[:20])
def test_what_was_recorded_under_other_conditions_is_not_compared(
    change: dict[str, str], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fair = [row(CONVOY.name, 700), row("LitServe", 100)]
    assert differences(fair) == []
    rows: list[Row] = [fair[0], {**fair[1], **change}]
    (sentence,) = differences(rows)
    assert sentence.startswith(reason)
    assert f"UNFAIR: {sentence}" in shown(rows)
    with pytest.raises(UnfairError, match=reason):
        readme_table(rows)
    monkeypatch.setattr(peers, "compare", lambda *_: iter([rows]))
    with pytest.raises(SystemExit, match="1"):
        peers.main(["--record", str(tmp_path / "rows.jsonl")])
    assert not (tmp_path / "rows.jsonl").exists()


def test_rows_without_numbers_and_of_other_works_may_differ() -> None:
    rows = [
        row(CONVOY.name, 700),
        row(CONVOY.name, 700, work=DIGITS, image="a digit"),
        {"server": "Triton", "work": NOOP, "connections": 8, "error": "it ended with 1"},
    ]
    assert differences(rows) == []
