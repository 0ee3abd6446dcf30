"""Finds the fastest of several candidates that compute the same problem, by checking and timing
each.

    candidates ─ wrong? ─ probe ─ screen ─ the fastest few, warm and cold ─ the fastest, in full
                 discard  slow? discard

A probe is a first, short measurement. It repeats the work fewer times per replay than a screen
does. So it contains more of a replay's overhead, and is compared only with other probes.

A contest finds the fastest of a library's algorithms. `convoy tune` finds the fastest of Convoy's
choices. The benchmark compares these two winners.
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
    """Lists the states of the second-level cache at the start of a run. It is warm if it holds the
    operands, and otherwise cold."""

    WARM = "warm"
    COLD = "cold"


class CandidateError(Exception):
    """Raised when a candidate cannot run here or computes a wrong result. Says why."""


class Candidate(Protocol):
    """Computes a problem with one algorithm. `check` and `time` may raise CandidateError."""

    @property
    def name(self) -> str:
        """Return the algorithm and its configuration as readable text."""

    @property
    def workspace_bytes(self) -> int | None:
        """Return the bytes needed beyond the operands, or None if unknown. The number is known
        after `check`."""

    def check(self) -> None:
        """Run the candidate once, and compare its result with the reference."""

    def time(self, cache: Cache, /, *, copies: int, replays: int) -> Timing:
        """Time the candidate in the same way as kernels.tuning.timing."""


@dataclass(frozen=True)
class Effort:
    """Sets how often candidates are run. Published numbers are measured with the defaults."""

    copies: int = COPIES
    replays: int = REPLAYS
    screen_copies: int = 5
    screen_replays: int = 10


@dataclass(frozen=True)
class Winner:
    """Names the fastest candidate, with all its times."""

    name: str
    timing: Timing
    workspace_bytes: int | None


@dataclass(frozen=True)
class Outcome:
    """Holds a contest's winner for each state of the cache, or no winners if no candidate could
    run."""

    winners: Mapping[Cache, Winner]
    tried: int
    refused: Mapping[str, str]  # the reason for each refused candidate, by name


def contest(candidates: Iterable[Candidate], effort: Effort = Effort()) -> Outcome:
    """Check the candidates' results, time each candidate a few times, and time the fastest
    candidates often."""
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
