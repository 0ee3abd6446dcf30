"""Lists the events of a batcher. Hypothesis combines them to scenarios."""

import asyncio
from dataclasses import dataclass
from enum import Enum, auto
from math import inf

from hypothesis import strategies as st


class Ending(Enum):
    """Names how a call of `run` ends."""

    RESULTS = auto()
    TOO_FEW = auto()
    TOO_MANY = auto()
    NOTHING = auto()
    ERROR = auto()
    STRAY_CANCELLATION = auto()
    PANIC = auto()


class Panic(BaseException):
    """An exception that is not an `Exception`. Native libraries can raise such exceptions, for
    example when they panic."""


RAISES = {
    Ending.ERROR: RuntimeError,
    Ending.STRAY_CANCELLATION: asyncio.CancelledError,
    Ending.PANIC: Panic,
}


@dataclass(frozen=True)
class Moment:
    """A time: a second, and a number of iterations of the event loop after this second. Many events
    have the same second, because schedulers often fail at simultaneous events."""

    second: int
    turns: int


@dataclass(frozen=True)
class Visit:
    """Describes one request. Its client may leave at some time."""

    arrives: Moment
    count: int
    leaves: Moment | None
    timeout_s: float = inf
    priority: int = 0
    client: int = 0


@dataclass(frozen=True)
class Pace:
    """Describes one call of `run`. If the call takes 0 seconds and 0 iterations of the event loop,
    it never yields control."""

    takes: Moment
    ending: Ending


@dataclass(frozen=True)
class Closing:
    at: Moment
    timeout_s: int | None


@dataclass(frozen=True)
class Rival:
    """Describes another model that needs the device at some time and keeps it for some seconds."""

    comes: Moment
    stays_s: int
    device: int = 0


@dataclass(frozen=True)
class Scenario:
    max_batch: int
    visits: list[Visit]
    paces: list[Pace]  # of the first batches; later batches take one second and succeed
    closing: Closing | None
    rivals: list[Rival]
    engines: int = 1
    spread: bool = False  # one engine runs further batches in other processes


def moments(seconds: int) -> st.SearchStrategy[Moment]:
    return st.builds(Moment, st.integers(0, seconds), st.integers(0, 4))


ENDINGS = st.one_of(st.just(Ending.RESULTS), st.sampled_from(Ending))


def visits(priorities: st.SearchStrategy[int]) -> st.SearchStrategy[list[Visit]]:
    visit = st.builds(
        Visit,
        moments(4),
        st.integers(1, 5),
        st.none() | moments(6),
        st.just(inf) | st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.0, 5.0]),
        priorities,
        st.integers(0, 2),
    )
    return st.lists(visit, min_size=1, max_size=12)


SCENARIOS = st.builds(
    Scenario,
    max_batch=st.integers(1, 4),
    # The shares of clients are checked only if there is one priority.
    visits=visits(st.just(0)) | visits(st.just(0) | st.integers(0, 3)),
    paces=st.lists(st.builds(Pace, moments(3), ENDINGS), max_size=8),
    closing=st.none() | st.builds(Closing, moments(6), st.none() | st.integers(0, 3)),
    rivals=st.just([])
    | st.lists(st.builds(Rival, moments(6), st.integers(0, 2), st.integers(0, 2)), max_size=3),
    engines=st.integers(1, 3),
    spread=st.booleans(),
)
