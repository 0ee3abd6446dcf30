"""Searches for the highest request rate at which p99 stays within a limit."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import inf, sqrt

from loadtest.summary import Load, Summary

PRECISION = 1.05
"""The search ends when the lowest rate above the limit is at most this many times the highest rate
within the limit."""

MAX_RATE = 1e6
"""The highest rate that is tried, in requests per second. No load generator can send so many."""

# The lowest rate tried, as a share of the first rate.
_LEAST = 1 / 64


@dataclass(frozen=True)
class SweepResult:
    """Holds the results of the loads that a search has measured."""

    steps: list[Summary]  # in the given order; after a search, by rate
    best: Summary | None = None  # after a search: the highest rate within the bound
    limited_by_client: bool = False  # after a search: the load generator may be the limit


async def find_rate(
    measure: Callable[[Load], Awaitable[Summary]], p99_ms: float, start: float
) -> SweepResult:
    """Return the highest rate, accurate to 5%, with a p99 of at most `p99_ms` and no errors.

    Doubles the first rate until p99 exceeds the limit, or halves it until p99 is within the limit.
    Then bisects, on a logarithmic scale, between the highest rate within the limit and the lowest
    rate above the limit.
    """
    steps: list[Summary] = []
    best, limited_by_client = None, False
    held, broken = 0.0, inf
    rate = start
    while start * _LEAST <= rate <= MAX_RATE and broken > held * PRECISION:
        step = await measure(Load(rate=rate))
        steps.append(step)
        if step.interrupted:
            break
        if step.meets(p99_ms):
            held, best = rate, step
        else:
            broken, limited_by_client = rate, step.client_limited
        rate = rate * 2 if broken == inf else rate / 2 if held == 0 else sqrt(held * broken)
    return SweepResult(sorted(steps, key=_rate), best, limited_by_client)


def _rate(step: Summary) -> float:
    return step.load.rate or 0.0
