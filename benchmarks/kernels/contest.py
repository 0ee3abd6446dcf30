"""Finds the fastest of several implementations of the same convolution. Each implementation (a
candidate) is checked and timed.

    candidates ─ wrong? ─ probe ─ screen ─ the fastest few, warm and cold ─ the fastest, in full
                 discard  slow? discard

A probe is a first, short measurement, and a screen is a second, longer measurement. A probe repeats
the work fewer times per replay, so a larger part of its time is overhead. Therefore a probe is
compared only with other probes.

A contest finds the fastest of a library's algorithms. `convoy tune` finds the fastest of Convoy's
algorithms. The benchmark then compares the two.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, unique
from typing import Protocol

from kernels.tuning.timing import COPIES, REPLAYS, Timing

FINALISTS = 3
TOO_SLOW = 1.5
"""A candidate is not timed again if its probe takes more than this many times as long as the
fastest probe so far."""


@unique
class Cache(Enum):
    """The state of the GPU's L2 cache at the start of a run. The cache is warm if it holds the
    operands, and otherwise cold."""

    WARM = "warm"
    COLD = "cold"


class CandidateError(Exception):
    """Raised when a candidate cannot run here or computes a wrong result. Says why."""


class Candidate(Protocol):
    """Computes a convolution with one algorithm. `check` and `time` may raise CandidateError."""

    @property
    def name(self) -> str:
        """Return the algorithm and its configuration as readable text."""

    @property
    def workspace_bytes(self) -> int | None:
        """Return the size of the algorithm's workspace in bytes, or None if it is unknown. Only
        known after `check`."""

    def check(self) -> None:
        """Run the candidate once, and compare its result with the reference."""

    def time(self, cache: Cache, /, *, copies: int, replays: int) -> Timing:
        """Measure the time of a run, as `kernels.tuning.timing` does."""


@dataclass(frozen=True)
class Effort:
    """Sets how often each candidate is run. The default values are used for published numbers."""

    copies: int = COPIES
    replays: int = REPLAYS
    screen_copies: int = 5
    screen_replays: int = 10


@dataclass(frozen=True)
class Winner:
    """The name, times and workspace of the fastest candidate."""

    name: str
    timing: Timing
    workspace_bytes: int | None


@dataclass(frozen=True)
class Outcome:
    """Holds the fastest candidate for each state of the cache. `winners` is empty if no candidate
    could run."""

    winners: Mapping[Cache, Winner]
    tried: int
    refused: Mapping[str, str]  # the reason for each refused candidate, by name


def contest(candidates: Iterable[Candidate], effort: Effort = Effort()) -> Outcome:
    """Find the fastest candidate. Check each candidate's result, time each candidate briefly, and
    then time the fastest few with more runs."""
    refused: dict[str, str] = {}
    screened: list[tuple[float, Candidate]] = []
    tried = 0
    fastest = float("inf")
    for candidate in candidates:
        tried += 1
        with _refusal(candidate, refused):
            candidate.check()
            probe_us = candidate.time(Cache.WARM, copies=2, replays=2).p20_us
            fastest = min(fastest, probe_us)
            if probe_us > TOO_SLOW * fastest:
                continue
            screen = candidate.time(
                Cache.WARM, copies=effort.screen_copies, replays=effort.screen_replays
            )
            screened.append((screen.p50_us, candidate))
    screened.sort(key=lambda entry: entry[0])
    finalists = [candidate for _, candidate in screened[:FINALISTS]]
    winners = {}
    for cache in Cache:
        finals = []
        for candidate in finalists:
            with _refusal(candidate, refused):
                final = candidate.time(cache, copies=effort.copies, replays=effort.screen_replays)
                finals.append((final.p50_us, candidate))
        for _, candidate in sorted(finals, key=lambda entry: entry[0]):
            with _refusal(candidate, refused):
                timing = candidate.time(cache, copies=effort.copies, replays=effort.replays)
                winners[cache] = Winner(candidate.name, timing, candidate.workspace_bytes)
                break
    return Outcome(winners, tried, refused)


@contextmanager
def _refusal(candidate: Candidate, refused: dict[str, str]) -> Iterator[None]:
    try:
        yield
    except CandidateError as error:
        refused[candidate.name] = str(error)
