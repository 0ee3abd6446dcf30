"""The fastest of several ways to compute one thing: all are checked and tried, the best one timed.

    candidates ─ wrong? ─ probe ─ screen ─ the fastest few, warm and cold ─ the fastest, in full
                 discard  slow? discard

Each side of a comparison is such a contest, so that a library's best of all its algorithms stands
against Convoy's best of all its choices, found in the same way.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, unique
from typing import Protocol

from kernels.timing import COPIES, REPLAYS, Copies, Timing

MOST_ERROR = 3e-5
"""‖y − truth‖ / ‖truth‖, at most: ten times F(4×4, 3×3)'s in float32, a tenth of TF32's."""

FINALISTS = 3
TOO_SLOW = 1.5
"""Times the fastest so far: what takes longer when probed is not screened."""


@unique
class Cache(Enum):
    """What the second-level cache holds of the operands when a run begins."""

    WARM = "warm"
    COLD = "cold"


class Candidate(Protocol):
    """One way to compute the thing; errors while it is run or captured are the caller's to see."""

    @property
    def name(self) -> str:
        """What it is, for people: algorithm and configuration."""

    def error(self) -> float:
        """Run it once; ‖y − truth‖ / ‖truth‖, NaN where it left out anything."""

    def copies(self, cache: Cache, copies: int) -> Copies:
        """Captured, to be timed before the next is asked for: memory is used again."""


@dataclass(frozen=True)
class Effort:
    """How often things are run; the defaults are those of numbers to be reported."""

    copies: int = COPIES
    replays: int = REPLAYS
    screen_copies: int = 5
    screen_replays: int = 10


@dataclass(frozen=True)
class Winner:
    """The fastest candidate, with its times in full."""

    name: str
    error: float
    timing: Timing


@dataclass(frozen=True)
class Outcome:
    """Of a contest: the fastest by the cache's state, none where nothing could run."""

    winners: Mapping[Cache, Winner]
    tried: int
    refused: Mapping[str, str]  # name → why: what failed, or is wrong


class CandidateError(Exception):
    """A candidate that cannot run here."""


def contest(candidates: Iterable[Candidate], effort: Effort = Effort()) -> Outcome:
    """Check, screen and time the candidates, of which any may raise CandidateError."""
    refused: dict[str, str] = {}
    screened: list[tuple[float, Candidate]] = []
    errors: dict[str, float] = {}
    tried = 0
    for candidate in candidates:
        tried += 1
        with _refusal(candidate, refused):
            error = candidate.error()
            if not error <= MOST_ERROR:
                raise CandidateError(f"wrong: relative error {error:.1e}")
            errors[candidate.name] = error
            fastest = min((us for us, _ in screened), default=float("inf"))
            probe = candidate.copies(Cache.WARM, 2).samples_us(1)
            if min(probe) > TOO_SLOW * fastest:
                continue
            samples = candidate.copies(Cache.WARM, effort.screen_copies)
            screened.append((_median(samples, effort.screen_replays), candidate))
    screened.sort(key=lambda entry: entry[0])
    finalists = [candidate for _, candidate in screened[:FINALISTS]]
    winners = {}
    for cache in Cache:
        finals = []
        for candidate in finalists:
            with _refusal(candidate, refused):
                copies = candidate.copies(cache, effort.copies)
                finals.append((_median(copies, effort.screen_replays), candidate))
        if finals:
            _, candidate = min(finals, key=lambda entry: entry[0])
            timing = Timing.of(candidate.copies(cache, effort.copies).samples_us(effort.replays))
            winners[cache] = Winner(candidate.name, errors[candidate.name], timing)
    return Outcome(winners, tried, refused)


def _median(copies: Copies, replays: int) -> float:
    return Timing.of(copies.samples_us(replays)).p50_us


@contextmanager
def _refusal(candidate: Candidate, refused: dict[str, str]) -> Iterator[None]:
    try:
        yield
    except CandidateError as error:
        refused[candidate.name] = str(error)
