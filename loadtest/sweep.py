"""Searches for the highest rate at which p99 stays within a bound."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import inf, sqrt

from loadtest.summary import Load, Summary

PRECISION = 1.05
"""The search ends when the lowest rate that fails is within this ratio of the highest rate that
holds."""

MAX_RATE = 1e6
"""Requests per second: more than a load generator can send."""

# The lowest rate tried, as a share of the first.
_LEAST = 1 / 64


@dataclass(frozen=True)
class SweepResult:
    """Holds the result of a sweep."""

    steps: list[Summary]  # in the order of the loads; of a search, in that of the rates
    best: Summary | None = None  # of a search: the highest rate within the bound
    limited_by_client: bool = False  # of a search: the load generator may be the limit


async def find_rate(
    measure: Callable[[Load], Awaitable[Summary]], p99_ms: float, start: float
) -> SweepResult:
    """Return the highest rate, accurate to 5%, with a p99 of at most `p99_ms` and no errors.

    Doubles the rate while the bound holds, or halves it while it does not. Then bisects, on a
    logarithmic scale, between the highest rate at which the bound held and the lowest at which it
    did not.
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
