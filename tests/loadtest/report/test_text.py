"""Tables of results."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from loadtest.journal import OK, Journal, Outcome
from loadtest.report.text import as_table, live_line, milliseconds
from loadtest.summary import Load, Summary
from loadtest.sweep import SweepResult
from tests.loadtest.report.measured import GOOD, NO_LATENCY

GOLDEN = Path(__file__).parent / "golden"


def text(*steps: Summary, best: Summary | None = None) -> str:
    file = io.StringIO()
    Console(file=file, width=200).print(as_table(SweepResult(list(steps), best)))
    return file.getvalue()


def test_a_row_for_each_load_then_phases_and_batches_of_the_last() -> None:
    shown = text(GOOD, replace(GOOD, load=Load(clients=3), batch_sizes={2: 7}))
    rows = [" ".join(line.split()) for line in shown.splitlines()]
    assert rows[1] == "50/s 500 50.0 1.00 2.00 3.00 - 1,234 0 2.50 0.20"
    assert rows[2] == "3 clients 500 50.0 1.00 2.00 3.00 - 1,234 0 2.00 0.20"
    assert "decode ms" in shown
    assert "in the server at 3 clients" in shown
    assert "batches at 3 clients: 2 ×7" in shown


@pytest.mark.parametrize("width", [80, 120])
def test_at_any_width_nothing_is_cut(width: int) -> None:
    """`python -m tests.loadtest.report.test_text` writes the golden files."""
    golden = GOLDEN / f"loadtest-{width}.txt"
    assert at_width(width) == golden.read_text(encoding="utf-8")
    assert "…" not in at_width(width)


def at_width(width: int) -> str:
    steps = [
        GOOD,
        replace(GOOD, load=Load(rate=1234), answered=12_340, throughput=1234.5, client_cpu=0.95),
        replace(
            GOOD,
            load=Load(rate=20_000),
            requests=200_000,
            throughput=19_876.5,
            errors={"429": 1_200},
            send_lag_ms={"p99": 20.2},
        ),
    ]
    file = io.StringIO()
    Console(file=file, width=width).print(as_table(SweepResult(steps, steps[1])))
    return "".join(line.rstrip() + "\n" for line in file.getvalue().splitlines())


def test_the_line_of_a_load_in_progress_fits_beside_its_bar() -> None:
    journal, p99s_ms = Journal(), [2.0, 8.0]
    assert live_line(Load(clients=8), journal, []) == "8 clients: 0 answers, p50 -, p99 - ms "
    for n in range(2000):
        journal.add(n, n, n + 0.004, Outcome(OK))
    journal.add(0, 0, 1, Outcome("429"))
    line = live_line(Load(clients=8), journal, p99s_ms)
    assert line == "8 clients: 2,000 answers, 1 error, p50 4.00, p99 4.00 ms ▃█▅"
    assert len(live_line(Load(clients=8), journal, [1.0] * 99)) < 80


def test_the_phases_are_of_the_best_load_of_a_search() -> None:
    assert "batches at 50/s: 1 ×2, 4 ×2" in text(GOOD, replace(GOOD, batch_sizes={2: 7}), best=GOOD)


@pytest.mark.parametrize(
    ("summary", "note"),
    [
        (replace(GOOD, errors={"429": 1200, "timed out": 1}), "errors: 429 ×1,200, timed out ×1"),
        (replace(GOOD, late=100), "400 of 500 in time (80.0%)"),
        (replace(GOOD, late=0, answered=490, refused=10), "490 of 500 in time (98.0%), 10 refused"),
        (
            replace(GOOD, client_cpu=0.95),
            "the load generator limits the result: it used 0.95 of its one core",
        ),
        (
            replace(GOOD, client_cpu=0.02, send_lag_ms={"p99": 20.2}),
            "sent 20.20 ms late at p99, although the load generator used only 0.02 cores: other",
        ),
        (replace(GOOD, interrupted=True, seconds=2.5), "ended after 2.5 s"),
    ],
)
def test_notes_say_what_is_unusual(summary: Summary, note: str) -> None:
    assert note in text(summary)
    assert note not in text(GOOD)


def test_a_load_without_answers_has_dashes() -> None:
    nothing = replace(
        GOOD, latency_ms=NO_LATENCY, batch_sizes=None, phases_ms={}, send_lag_ms={"p99": None}
    )
    shown = text(nothing)
    assert " ".join(shown.splitlines()[1].split()) == "50/s 500 50.0 - - - - - 0 - -"
    assert "batches" not in shown


@pytest.mark.parametrize(
    ("value", "expected"), [(None, "-"), (0.004, "0.00"), (99.99, "99.99"), (1234.4, "1,234")]
)
def test_milliseconds_have_two_decimals_below_100(value: float | None, expected: str) -> None:
    assert milliseconds(value) == expected


def test_a_percentile_of_too_few_answers_is_a_dash() -> None:
    few = text(replace(GOOD, answered=99))
    assert " ".join(few.splitlines()[1].split()) == "50/s 500 50.0 1.00 2.00 - - 1,234 0 2.50 0.20"
    assert [line.split()[0] for line in few.splitlines() if line.startswith("p")] == ["p50"]


if __name__ == "__main__":
    for columns in (80, 120):
        (GOLDEN / f"loadtest-{columns}.txt").write_text(at_width(columns), encoding="utf-8")
