"""Finds the highest rate at which a bound still holds."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from loadtest.summary import Load, Summary

# The search ends when the rate is known so closely, as a ratio.
PRECISION = 1.05

MAX_RATE = 1e6
"""More requests a second than any load generator sends."""

_FACTOR = 2.0

# At so small a share of the rate that the search began with, no lower one is tried.
_LEAST = 1 / 64


@dataclass(frozen=True)
class Found:
    """How a search ended."""

    steps: list[Summary]  # in the order in which they were measured
    best: Summary | None  # at the highest rate that held the bound
    limited_by_client: bool  # the load generator may be why no higher rate held it


async def find_rate(
    measure: Callable[[Load], Awaitable[Summary]], p99_ms: float, start: float
) -> Found:
    """The highest rate with p99 within the bound and no errors, to 5%.

    Doubles the rate while the bound holds (halves it while it does not), then tries the geometric
    mean of the highest rate that held it and the lowest that did not. What the load generator
    adds to the latency counts; where it is why the bound was not held, that is told.
    """
    steps: list[Summary] = []
    held: tuple[float, Summary] | None = None
    broken: tuple[float, Summary] | None = None
    rate = start
    while True:
        step = await measure(Load(rate=rate))
        steps.append(step)
        if step.interrupted:
            break
        if step.meets(p99_ms):
            held = rate, step
        else:
            broken = rate, step
        if broken is None:
            rate *= _FACTOR
            if rate > MAX_RATE:
                break
        elif held is None:
            rate /= _FACTOR
            if rate < start * _LEAST:
                break
        elif broken[0] / held[0] <= PRECISION:
            break
        else:
            rate = (held[0] * broken[0]) ** 0.5
    return Found(
        steps,
        best=held[1] if held else None,
        limited_by_client=broken is not None and broken[1].client_limited,
    )
