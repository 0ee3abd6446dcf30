"""Sends requests on time (open loop), or one after another (closed loop), and writes them down."""

import asyncio
from asyncio import CancelledError, TaskGroup
from collections.abc import Awaitable, Callable
from itertools import count
from math import nan

from loadtest.clock import Clock
from loadtest.journal import INTERRUPTED, NOT_SENT, OK, TOO_LATE, Journal, Outcome
from loadtest.schedule import Moments

Send = Callable[[int], Awaitable[Outcome]]
"""Sends the n-th request and returns how it ended; raises nothing."""

# A load generator that is later than this is lost; it could go on for long after its time.
_LATEST_S = 1.0

# How many that are due are sent before others may run; a turn of the loop for each is too dear.
_AT_ONCE = 16

# Who is refused and asks again at once would send nothing but refused requests.
_PAUSE_AFTER_FAILURE_S = 0.01


async def open_loop(
    moments: Moments, send: Send, journal: Journal, clock: Clock, max_outstanding: int
) -> None:
    """Send at `moments` (clock seconds), whatever became of earlier requests; wait for them all.

    Latency counts from the moment, so being late here counts too. A request that would be one too
    many outstanding is written down as not sent: to hold it back would hide that it had to wait.
    One that could only be sent a second late is written down as that. If cancelled, what is
    outstanding is written down as interrupted.
    """
    outstanding = 0

    async def one(number: int, intended: float) -> None:
        nonlocal outstanding
        await _exchange(number, intended, send, journal, clock)
        outstanding -= 1

    async with TaskGroup() as tasks:
        for number, moment in enumerate(moments.tolist()):
            if moment > clock.now() or number % _AT_ONCE == 0:
                await clock.until(moment)
            full, late = outstanding >= max_outstanding, clock.now() - moment > _LATEST_S
            if full or late:
                kind = NOT_SENT if full else TOO_LATE
                journal.add(moment, nan, nan, Outcome(kind))
                continue
            outstanding += 1
            tasks.create_task(one(number, moment))


async def closed_loop(clients: int, end: float, send: Send, journal: Journal, clock: Clock) -> None:
    """So many clients, each sending its next request when the last is answered, until `end`."""
    numbers = count()

    async def client() -> None:
        while (moment := clock.now()) < end:
            outcome = await _exchange(next(numbers), moment, send, journal, clock)
            if outcome.kind != OK:
                await asyncio.sleep(_PAUSE_AFTER_FAILURE_S)

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
