"""What became of every request, in columns: a long run has millions."""

from array import array
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadtest.answers import PHASES

OK = "ok"
NOT_SENT = "not sent"  # as many as may be outstanding were
TOO_LATE = "not sent in time"  # by a load generator that has too much to do
MIXED_UP = "mixed up"  # answered, but for another picture
REFUSED = "refused in time"  # with a deadline that the server could not meet
INTERRUPTED = "interrupted"  # still outstanding when the run was ended

_NO_PHASES = (float("nan"),) * len(PHASES)


class Outcome(NamedTuple):
    """How one request ended."""

    kind: str  # OK, an HTTP status, or what else went wrong
    phases_ms: tuple[float, ...] = ()  # of answers that tell


class Columns(NamedTuple):
    """A journal as arrays of one length; moments are clock seconds, NaN where there is none."""

    intended: NDArray[np.float64]
    sent: NDArray[np.float64]
    done: NDArray[np.float64]
    kind: NDArray[np.uint16]  # index into `kinds`
    phases_ms: NDArray[np.float32]  # n×5
    kinds: tuple[str, ...]  # the first is OK


class Journal:
    """Requests in the order in which they ended."""

    def __init__(self) -> None:
        self._intended = array("d")
        self._sent = array("d")
        self._done = array("d")
        self._kind = array("H")
        self._phases_ms = array("f")
        self._kinds = {OK: 0}
        self.good = 0

    def __len__(self) -> int:
        return len(self._kind)

    def add(self, intended: float, sent: float, done: float, outcome: Outcome) -> None:
        """Write down one request."""
        self._intended.append(intended)
        self._sent.append(sent)
        self._done.append(done)
        self._kind.append(self._kinds.setdefault(outcome.kind, len(self._kinds)))
        self._phases_ms.extend(outcome.phases_ms or _NO_PHASES)
        self.good += outcome.kind == OK

    def columns(self) -> Columns:
        """Everything so far."""
        return Columns(
            np.array(self._intended),
            np.array(self._sent),
            np.array(self._done),
            np.array(self._kind),
            np.array(self._phases_ms).reshape(-1, len(PHASES)),
            tuple(self._kinds),
        )
