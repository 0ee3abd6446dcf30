"""Tables of results."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from loadtest.report.text import as_table, milliseconds
from loadtest.summary import Load, Summary
from loadtest.sweep import Found
from tests.loadtest.report.measured import GOOD, NO_LATENCY


def text(*steps: Summary, best: Summary | None = None) -> str:
    file = io.StringIO()
    Console(file=file, width=200).print(as_table(Found(list(steps), best)))
    return file.getvalue()


def test_a_row_for_each_load_then_phases_and_batches_of_the_last() -> None:
    shown = text(GOOD, replace(GOOD, load=Load(clients=3), batch_sizes={2: 7}))
    rows = [" ".join(line.split()) for line in shown.splitlines()]
    assert rows[1] == "50/s 500 50.0 1.00 2.00 3.00 - 1,234 0 2.50 0.20"
    assert rows[2] == "3 clients 500 50.0 1.00 2.00 3.00 - 1,234 0 2.00 0.20"
    assert "decode ms" in shown
    assert "batches: 2 ×7" in shown


def test_the_phases_are_of_the_best_load_of_a_search() -> None:
    assert "batches: 1 ×2, 4 ×2" in text(GOOD, replace(GOOD, batch_sizes={2: 7}), best=GOOD)


@pytest.mark.parametrize(
    ("summary", "note"),
    [
        (replace(GOOD, errors={"429": 1200, "timed out": 1}), "errors: 429 ×1,200, timed out ×1"),
        (replace(GOOD, late=100), "400 of 500 in time (80.0%)"),
        (replace(GOOD, late=0, answered=490, refused=10), "490 of 500 in time (98.0%), 10 refused"),
        (replace(GOOD, client_cpu=0.95), "it used 0.95 cores and sent 0.20 ms late at p99"),
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
