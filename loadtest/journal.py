"""Records the outcome of every request. A long run has millions of requests, so a record takes
little memory."""

from array import array
from math import nan
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadtest.answers import PHASES

OK = "ok"
NOT_SENT = "not sent"  # max_outstanding requests were in flight
TOO_LATE = "not sent in time"  # the load generator itself is overloaded
MIXED_UP = "mixed up"  # the answer belongs to another image
REFUSED = "refused in time"  # 504: the server could not meet the deadline
INTERRUPTED = "interrupted"  # in flight when the run was ended

_NO_PHASES = (nan,) * len(PHASES)
_WIDTH = 4 + len(PHASES)


class Outcome(NamedTuple):
    """Describes how one request ended."""

    kind: str  # OK, an HTTP status, or a reason
    phases_ms: tuple[float, ...] = ()  # as in `Answer`


class Columns(NamedTuple):
    """Holds all recorded requests as arrays with one element per request. Times are clock seconds,
    or NaN if they are unknown."""

    intended: NDArray[np.float64]
    sent: NDArray[np.float64]
    done: NDArray[np.float64]
    kind: NDArray[np.intp]  # index into `kinds`
    phases_ms: NDArray[np.float64]  # n×5
    kinds: tuple[str, ...]  # the first is OK


class Journal:
    """Records requests in the order in which they ended."""

    def __init__(self) -> None:
        self._rows = array("d")
        self._kinds = {OK: 0}
        self.good = 0

    def __len__(self) -> int:
        return len(self._rows) // _WIDTH

    def add(self, intended: float, sent: float, done: float, outcome: Outcome) -> None:
        """Record one request. The times have the form that `Columns` describes."""
        kind = self._kinds.setdefault(outcome.kind, len(self._kinds))
        self._rows.extend((intended, sent, done, kind, *(outcome.phases_ms or _NO_PHASES)))
        self.good += kind == 0

    def recent_ms(self, count: int) -> NDArray[np.float64]:
        """Return the latencies, in ms, of the last `count` requests. Only requests with valid
        answers are included."""
        rows = np.array(self._rows[-count * _WIDTH :]).reshape(-1, _WIDTH)
        good = rows[rows[:, 3] == 0]
        latencies: NDArray[np.float64] = (good[:, 2] - good[:, 0]) * 1e3
        return latencies

    def columns(self) -> Columns:
        """Return all requests recorded so far, as arrays."""
        rows = np.array(self._rows).reshape(-1, _WIDTH)
        intended, sent, done, kind = rows.T[:4]
        return Columns(intended, sent, done, kind.astype(np.intp), rows[:, 4:], tuple(self._kinds))
