"""Sends requests in an open loop (at given times) or in a closed loop (each client waits for its
answer).

In an open loop, latency is measured from the intended send time. So if the server stalls, the
latency of every request that was due during the stall includes the wait (no coordinated omission).
"""

import asyncio
from asyncio import CancelledError, TaskGroup
from collections.abc import Awaitable, Callable
from enum import StrEnum
from itertools import count
from math import nan

import numpy as np
from numpy.typing import NDArray

from loadtest.clock import Clock
from loadtest.journal import INTERRUPTED, NOT_SENT, OK, TOO_LATE, Journal, Outcome

Send = Callable[[int], Awaitable[Outcome]]
"""Sends the n-th request and returns its outcome. Never raises an exception."""

# A load generator with a longer lag cannot keep the rate, and would run far beyond its duration.
_MAX_LAG_S = 1.0

# The most requests sent in one iteration of the event loop if several are due. One iteration for
# each request would cost too much.
_BURST = 16

# Without this pause, a refused client would immediately send the next request, which would be
# refused too.
_PAUSE_AFTER_ERROR_S = 0.01


class Arrivals(StrEnum):
    """Lists how an open loop can space its requests in time."""

    POISSON = "poisson"  # independent requests, as from very many clients
    EVEN = "even"


def arrivals(kind: Arrivals, rate: float, seconds: float, seed: int = 0) -> NDArray[np.float64]:
    """Return the send times of requests at `rate` per second, ascending in [0, `seconds`). `seed`
    initialises the random numbers.

    Random times form a Poisson process. First the number of requests is drawn, and then
    independent, uniform times for all of them.
    """
    if kind is Arrivals.EVEN:
        return np.arange(np.ceil(rate * seconds)) / rate
    random = np.random.default_rng(seed)
    return np.sort(random.uniform(0, seconds, random.poisson(rate * seconds)))


async def open_loop(
    moments: NDArray[np.float64], send: Send, journal: Journal, clock: Clock, max_outstanding: int
) -> None:
    """Send a request at each of `moments` (clock seconds), whether or not earlier requests have
    ended. Then wait for all answers.

    If `max_outstanding` requests are in flight when a request is due, it is not sent, and is
    recorded as NOT_SENT. A request that is a second late is not sent either, and is recorded as
    TOO_LATE. If the loop is cancelled, outstanding requests are recorded as INTERRUPTED.
    """
    already = len(journal)
    async with TaskGroup() as tasks:
        for number, moment in enumerate(moments.tolist()):
            if moment > clock.now() or number % _BURST == 0:
                await clock.until(moment)
            full = number + already - len(journal) >= max_outstanding
            if full or clock.now() - moment > _MAX_LAG_S:
                journal.add(moment, nan, nan, Outcome(NOT_SENT if full else TOO_LATE))
            else:
                tasks.create_task(_exchange(number, moment, send, journal, clock))


async def closed_loop(clients: int, end: float, send: Send, journal: Journal, clock: Clock) -> None:
    """Run `clients` clients until `end`. Each client sends its next request when its previous
    request has ended."""
    numbers = count()

    async def client() -> None:
        while (moment := clock.now()) < end:
            outcome = await _exchange(next(numbers), moment, send, journal, clock)
            if outcome.kind != OK:
                await asyncio.sleep(_PAUSE_AFTER_ERROR_S)

    async with TaskGroup() as tasks:
        for _ in range(clients):
            tasks.create_task(client())


async def _exchange(
    number: int, intended: float, send: Send, journal: Journal, clock: Clock
) -> Outcome:
    sent = clock.now()
    try:
        outcome = await send(number)
    except CancelledError:
        journal.add(intended, sent, nan, Outcome(INTERRUPTED))
        raise
    journal.add(intended, sent, clock.now(), outcome)
    return outcome
