"""The printed and written results: medians with their spread, and losses first."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.peers import __main__ as peers
from benchmarks.peers.catalogue import CONVOY
from benchmarks.peers.report import (
    BETTER,
    RATE,
    losses,
    moved,
    number,
    page,
    readme_table,
    shown,
)
from benchmarks.peers.works import DIGITS, NOOP, WORKS
from benchmarks.rows import append
from tests.support.benchmarks.stand_in import row


def test_a_cell_has_the_median_and_where_another_should_be() -> None:
    rounds = [98.0, 100.0, 102.0, 100.0]  # s = 1.633 % and √(π/4) = 0.886, five times: 7.5 %
    assert "| 100 (93–108) |" in shown([row("LitServe", 100, requests_a_second=rounds)])
    assert "| 0 (0–2) |" in shown([row("LitServe", 100, threads=[0.0, 0.0, 2.0])])


def test_the_spread_holds_nearly_all_medians_of_another_run() -> None:
    rng = np.random.default_rng(0)
    outside = 0
    for _ in range(1000):
        first, second = rng.lognormal(4.0, 0.2, (2, 10))
        spread = number(row("LitServe", 1, requests_a_second=list(first)), RATE)
        outside += not spread.low <= np.median(second) <= spread.high
    assert outside <= 3


def test_another_server_is_better_if_its_median_is() -> None:
    ours = row(CONVOY.name, 1000, 4)  # rounds of 1000 and 900, p50 2 and 1.8
    level = [row("Triton", 1000, 4), row("mosec", 990, 4)]  # medians 950 and 940
    assert not list(losses([ours, *level]))
    alone = [row(CONVOY.name, 10, connections=1), row("mosec", 90, connections=1)]
    (line,) = losses([*alone, ours, level[1], row("Triton", 1200, 2)])
    assert line.endswith(
        "100 kB. 1 connection: requests/s 86 (mosec), 10 (Convoy); CPU ms per request 10.56"
        " (mosec), 95.00 (Convoy). 8 connections: requests/s 1,140 (Triton), 950 (Convoy); p50 ms"
        " 0.95 (Triton), 1.90 (Convoy); CPU ms per request 0.79 (Triton), 0.95 (Convoy)"
    )


def test_the_readme_says_first_where_convoy_is_not_the_best_and_has_the_best_of_the_others() -> (
    None
):
    rows = [
        row(CONVOY.name, 9999, date="2026-11-20T00:00:00"),
        row(CONVOY.name, 700),
        row(CONVOY.name, 500, work=DIGITS),
        row(CONVOY.name, 400, work=DIGITS, connections=1),
        row("Triton", 900, work=DIGITS, version="0.7.0"),
        row("LitServe", 90, work=DIGITS),
        row("BentoML", 95, work=DIGITS, version="1.4"),
        row("Ray Serve", 1, work=DIGITS, error="no"),
        row("mosec", 1, work=DIGITS, error="not installed: no"),
    ]
    conditions, lost, table = readme_table(rows).split("\n\n")
    assert conditions == (
        f"EPYC, 2 cores shared by server and clients, 2026-11-27, commit abc. {BETTER}"
    )
    assert lost.startswith(
        "- digits, JPEG of 640 × 480. 8 connections: requests/s 855 (Triton), 475 (Convoy)"
    )
    none, triton = "not measured", "Triton 0.7.0 (tritonserver 2.51, Python backend)"
    assert table.splitlines()[2:] == [
        f"| Convoy | 380 / 1.43 / 2.38 | 475 / 1.43 / 1.90 | {none} |",
        f"| {triton} | {none} | 855 / 1.43 / 1.06 | {none} |",
        f"| mosec | {none} | {none} | {none} |",
        f"| BentoML 1.4, the best of 2 others | {none} | 90 / 1.43 / 10.00 | {none} |",
    ]


def test_the_page_has_each_works_last_recording_with_its_conditions() -> None:
    """The second of two runs was interrupted after the no-op."""
    earlier: Any = {"date": "2026-11-20T00:00:00", "commit": "abd"}
    rows = [
        row(CONVOY.name, 9999, **earlier),
        row(CONVOY.name, 500, work=DIGITS, **earlier),
        row("Triton", 900, work=DIGITS, version="0.7.0", **earlier),
        row(CONVOY.name, 700),
        row("mosec", 1, error="not installed: no"),
    ]
    text = page(rows)
    about = (
        "2 rounds of 1 s, EPYC, 2 cores shared by server and clients, load average 0.5 before, ONNX"
    )
    noop, digits = WORKS[NOOP], WORKS[DIGITS]
    assert f"- {noop}: {about} Runtime 1.31, 2026-11-27, commit abc\n" in text
    assert f"- {digits}: {about} Runtime 1.31, 2026-11-20, commit abd\n" in text
    assert "10,000" not in text
    lines = text.splitlines()
    assert "| mosec | not installed |  |  |  |  |  |  |  |" in lines
    assert "- mosec, noop: not installed: no" in lines
    named = "| Triton 0.7.0 (tritonserver 2.51, Python backend) |"
    assert any(line.startswith(f"{named} batch 8 | 855 (536–1,364) |") for line in lines)
    assert f"{named} 1.5 | 90 | 95 | 8 | 3.8 | 200 |" in lines


def test_a_second_recording_is_compared_with_the_spread_of_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = [row(CONVOY.name, 1000), row("Triton", 1000)]  # 900 and 1000 requests/s
    same: Any = {"cpu_ms": [1.0, 1.0], "date": "2026-11-28"}
    within = [row(each["server"], 630, **same) for each in first]  # 630 and 567, so 598.5
    beyond = [row(each["server"], 610, **same) for each in first]  # 610 and 549, so 579.5
    assert not list(moved(first))
    assert not list(moved([*first, *within]))
    (line,) = moved([*first, within[0], beyond[1]])
    assert line.endswith(
        "8 connections: Triton, requests/s 580; preceding recording 950 (596–1,515)"
    )
    assert not list(moved([*first, {**beyond[1], "setting": "another"}]))
    file = tmp_path / "rows.json"
    for second, status in ((within, 0), (beyond, 1)):
        file.unlink(missing_ok=True)
        append(file, [*first, *second])
        with pytest.raises(SystemExit) as ended:
            peers.main(["--repeated", "--record", str(file)])
        assert ended.value.code == status
    assert "Triton, requests/s 580" in capsys.readouterr().out


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
    assert "--record: the sources have changes" in capsys.readouterr().err
    monkeypatch.setattr(peers, "commit", lambda: "abc")
    assert peers.parse_arguments(["--record"]).record
