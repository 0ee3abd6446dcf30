"""What is printed and written of measurements: medians with their spread, and losses first."""

import pytest

from benchmarks.peers import __main__ as peers
from benchmarks.peers.catalogue import CONVOY
from benchmarks.peers.report import BETTER, losses, readme_table, shown
from benchmarks.peers.works import DIGITS
from tests.support.benchmarks.stand_in import row


def test_a_cell_has_the_median_and_the_least_and_most_of_all_rounds() -> None:
    rows = [row("LitServe", 100, requests_a_second=[100.0, 300.0, 110.0, 1200.4])]
    assert "| 205 (100–1,200) |" in shown(rows)


def test_another_server_is_better_only_beyond_every_round_of_convoy() -> None:
    ours = row(CONVOY.name, 1000, 4)  # rounds of 1000 and 900, p50 2 and 1.8
    level = [row("Triton", 1050, 4), row("mosec", 990, 4)]  # medians 997.5 and 940
    assert not list(losses([ours, *level]))
    (line,) = losses([ours, level[1], row("Triton", 1200, 2)])
    assert line.endswith(
        "8 connections: requests/s 1,140 beside 950 (Triton), p50 ms 0.95 beside 1.90 (Triton),"
        " CPU ms a request 0.79 beside 0.95 (Triton)"
    )


def test_the_readmes_tables_say_first_where_convoy_is_not_the_best() -> None:
    rows = [
        row(CONVOY.name, 9999, date="2026-11-20T00:00:00"),
        row(CONVOY.name, 700),
        row(CONVOY.name, 500, work=DIGITS),
        row("Triton", 900, work=DIGITS, version="0.7.0"),
        row("Triton", 90, version="0.7.0"),
        row("mosec", 1, error="not installed: no"),
        row("mosec", 1, work=DIGITS, error="not installed: no"),
    ]
    conditions, better, lost, *_ = readme_table(rows).split("\n\n")
    assert conditions.startswith("EPYC, 2 cores shared by server and clients")
    assert (
        "ONNX Runtime 1.31 without telemetry in every server, 2026-11-27, commit abc." in conditions
    )
    assert better == BETTER
    assert lost.startswith("- digits, JPEG of 640 × 480; 8 connections: requests/s 855 beside 475")
    lines = readme_table(rows).splitlines()
    assert "| mosec | not measured | not measured |" in lines
    named = "| Triton 0.7.0 (tritonserver 2.51, Python backend) |"
    assert any(line.startswith(f"{named} 86 (81–90)<br>") for line in lines)
    assert f"{named} 1.5 | 90 | 95 | 8 | 3.8 | 200 |" in lines


def test_a_tree_that_differs_from_its_commit_is_said() -> None:
    assert "commit abc with changes that were not committed" in readme_table(
        [row(CONVOY.name, 700, commit="abc+")]
    )


def test_what_was_not_measured_is_said() -> None:
    assert readme_table([]) == "Nothing has been measured yet."
    failed = row("BentoML", 1, error="not installed: no network")
    text = shown([row(CONVOY.name, 700, failed={"odd": "503"}), failed])
    assert "| BentoML | not installed |" in text
    assert "BentoML, noop: not installed: no network" in text
    assert "Convoy, odd, noop: 503" in text


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
