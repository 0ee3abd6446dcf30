"""Recorded requests, as columns."""

from math import nan

import numpy as np

from loadtest.answers import PHASES
from loadtest.journal import MIXED_UP, NOT_SENT, OK, Journal, Outcome


def test_columns_are_what_was_added() -> None:
    journal = Journal()
    phases_ms = (0.5, 1.0, 1.5, 2.0, 2.5)
    journal.add(1, 1.25, 1.5, Outcome(OK, phases_ms))
    journal.add(2, nan, nan, Outcome(NOT_SENT))
    journal.add(3, 3.5, 4, Outcome(MIXED_UP))
    journal.add(4, 4.5, 5, Outcome(NOT_SENT))
    columns = journal.columns()
    assert (len(journal), journal.good) == (4, 1)
    assert columns.intended.tolist() == [1, 2, 3, 4]
    assert np.array_equal(columns.sent, [1.25, nan, 3.5, 4.5], equal_nan=True)
    assert np.array_equal(columns.done, [1.5, nan, 4, 5], equal_nan=True)
    assert [columns.kinds[kind] for kind in columns.kind] == [OK, NOT_SENT, MIXED_UP, NOT_SENT]
    assert columns.phases_ms[0].tolist() == list(phases_ms)
    assert np.isnan(columns.phases_ms[1:]).all()


def test_an_empty_journal_has_empty_columns() -> None:
    columns = Journal().columns()
    assert len(columns.intended) == len(columns.kind) == 0
    assert columns.phases_ms.shape == (0, len(PHASES))
    assert columns.kinds == (OK,)


def test_columns_are_copies() -> None:
    journal = Journal()
    before = journal.columns()
    journal.add(1, 1, 2, Outcome(OK))
    assert len(before.intended) == 0
