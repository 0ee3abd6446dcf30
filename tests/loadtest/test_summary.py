"""The numbers that are computed from a journal."""

from math import nan

import numpy as np
import pytest

from loadtest.answers import PHASES
from loadtest.journal import NOT_SENT, OK, REFUSED, TOO_LATE, Journal, Outcome
from loadtest.summary import QUANTILES, Load, Summary, enough, percentiles, summarise


def summary(
    journal: Journal,
    window: tuple[float, float] = (0, 10),
    client_cpu: float = 0.1,
    deadline_s: float | None = None,
) -> Summary:
    return summarise(
        Load(rate=1), journal.columns(), window, client_cpu=client_cpu, deadline_s=deadline_s
    )


def journal_of(*rows: tuple[float, float, float, str]) -> Journal:
    journal = Journal()
    for intended, sent, done, kind in rows:
        journal.add(intended, sent, done, Outcome(kind))
    return journal


@pytest.mark.parametrize(
    ("n", "name", "expected"),
    [
        *((10, "p50", 5), (10, "p90", 9), (10, "p99", 10), (100, "p99", 99), (101, "p99", 100)),
        *((1000, "p99.9", 999), (999, "p99.9", 999), (1001, "p99.9", 1000)),
        *((1_000_000, "p99.9", 999_000), (1, "p50", 1), (7, "max", 7)),
    ],
)
def test_a_percentile_is_the_least_value_that_enough_values_do_not_exceed(
    n: int, name: str, expected: float
) -> None:
    values = np.random.default_rng(n).permutation(np.arange(1.0, n + 1))
    assert percentiles(values, name) == {name: expected}


def test_percentiles_agree_with_counting() -> None:
    random = np.random.default_rng(7)
    for _ in range(200):
        values = random.exponential(size=random.integers(1, 3000)).round(2)
        for name, least in percentiles(values, *QUANTILES).items():
            assert least is not None
            thousandths = round(QUANTILES[name] * 1000)
            # Enough values do not exceed it, and too few do not exceed any lesser value.
            assert (values <= least).sum() * 1000 >= thousandths * len(values)
            assert (values < least).sum() * 1000 < thousandths * len(values)


@pytest.mark.parametrize(
    ("n", "names"),
    [
        *((1, ["max"]), (2, ["p50", "max"]), (10, ["p50", "p90", "max"])),
        *((99, ["p50", "p90", "max"]), (100, ["p50", "p90", "p99", "max"]), (1000, [*QUANTILES])),
    ],
)
def test_a_percentile_needs_a_value_beyond_it(n: int, names: list[str]) -> None:
    assert [name for name in QUANTILES if enough(n, name)] == names
    shown = summary(journal_of(*[(1, 1, 2, OK)] * n)).shown_ms
    assert [name for name in QUANTILES if shown[name] is not None] == names


def test_an_empty_journal_has_no_percentiles() -> None:
    nothing = summary(Journal())
    assert set(nothing.latency_ms.values()) == {None}
    assert (nothing.requests, nothing.throughput, nothing.error_share) == (0, 0, 0)
    assert not nothing.meets(1000)


def test_only_requests_of_the_window_count_and_throughput_counts_arrivals_in_it() -> None:
    journal = journal_of(
        (0.1, 0.1, 0.2, OK),
        (0.5, 0.5, 2.5, OK),  # due in the warm-up, answered in the window
        (2.0, 2.0, 2.1, OK),
        (5.9, 5.9, 6.4, OK),  # due in the window, answered after it
        (6.0, 6.0, 6.1, OK),
        (3.0, 3.0, 3.1, "429"),
        (1.0, 1.0, 1.1, "503"),
    )
    found = summary(journal, (2, 6))
    assert (found.requests, found.answered, found.errors) == (3, 2, {"429": 1})
    assert found.latency_ms["max"] == pytest.approx(500)
    assert found.throughput == 2 / 4


def test_latency_is_of_good_answers_and_every_other_end_is_an_error() -> None:
    journal = journal_of(
        (1, 1, 1.010, OK), (2, 2, 2.5, "429"), (3, 3, 3.030, OK), (4, nan, nan, NOT_SENT)
    )
    found = summary(journal)
    assert found.latency_ms["p50"] == pytest.approx(10)
    assert found.latency_ms["mean"] == pytest.approx(20)
    assert found.latency_ms["max"] == pytest.approx(30)
    assert found.errors == {"429": 1, NOT_SENT: 1}
    assert (found.failed, found.error_share) == (2, 0.5)
    assert not found.meets(1000)


def test_a_bound_is_kept_at_the_bound() -> None:
    found = summary(journal_of(*[(0, 0, 0.05, OK)] * 99, (0, 0, 9, OK)))
    assert found.meets(50)
    assert not found.meets(49.9)


def test_answers_after_the_deadline_are_late() -> None:
    journal = journal_of((0, 0, 0.1, OK), (0, 0.2, 0.3, OK), (0, 0, 0.9, "504"))
    assert summary(journal).late is None
    assert summary(journal, deadline_s=0.25).late == 1  # from the intended time


def test_a_refusal_because_of_the_deadline_is_not_an_error_but_breaks_the_bound() -> None:
    journal = journal_of((0, 0, 0.1, OK), (0, 0, 0.01, REFUSED), (1, 1, 1.1, "429"))
    found = summary(journal, deadline_s=0.25)
    assert (found.requests, found.answered, found.refused) == (3, 1, 1)
    assert found.errors == {"429": 1}
    assert found.error_share == pytest.approx(1 / 3)
    found = summary(journal_of((0, 0, 0.1, OK), (0, 0, 0.01, REFUSED)), deadline_s=0.25)
    assert (found.failed, found.meets(1000)) == (0, False)


def test_phases_are_of_the_answers_that_report_them() -> None:
    journal = Journal()
    for n in range(1, 101):
        phases = tuple(float(n * factor) for factor in range(1, len(PHASES) + 1))
        journal.add(1, 1, 2, Outcome(OK, phases))
    journal.add(1, 1, 2, Outcome(OK))
    journal.add(1, 1, 2, Outcome("500"))
    found = summary(journal).phases_ms
    assert list(found) == list(PHASES)
    assert found["receive"] == {"p50": 50, "p99": 99}
    assert found["respond"] == {"p50": 250, "p99": 495}
    assert summary(journal_of((1, 1, 2, OK))).phases_ms == {}


@pytest.mark.parametrize(
    ("lag_s", "latency_s", "late"),
    [
        (0.0002, 0.001, False),
        (0.005, 0.010, True),  # half of the latency is its own
        (0.005, 0.100, False),
        (0.0009, 0.001, False),  # normal for timers and schedulers
    ],
)
def test_requests_are_sent_late_where_it_is_a_large_share_of_the_latency(
    lag_s: float, latency_s: float, late: bool
) -> None:
    journal = journal_of((0, lag_s, latency_s, OK))
    for cpu, limited in ((0.02, False), (0.95, True)):
        found = summary(journal, client_cpu=cpu)
        assert found.sent_late is late
        assert found.client_limited is limited, "only a core that is full is a limit"


def test_requests_that_were_not_sent_in_time_are_late() -> None:
    assert summary(journal_of((0, 0, 0.1, OK), (1, nan, nan, TOO_LATE))).sent_late
    assert not summary(journal_of((0, 0, 0.1, OK), (1, nan, nan, NOT_SENT))).sent_late


def test_loads_have_names() -> None:
    assert [str(load) for load in (Load(rate=1234.5), Load(clients=1), Load(clients=8))] == [
        "1,234/s",
        "1 client",
        "8 clients",
    ]
