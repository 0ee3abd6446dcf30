"""One load on a server, from its first request to its last answer."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter, process_time

from loadtest.batches import batch_sizes, ran_between
from loadtest.client import Client
from loadtest.clock import Clock
from loadtest.drive import closed_loop, open_loop
from loadtest.journal import Journal
from loadtest.options import Conditions
from loadtest.schedule import arrivals
from loadtest.summary import Load, Summary, summarise

_TICK_S = 0.25

Progress = Callable[[Load, float, Journal], None]
"""Told now and then: the load, the seconds since its start, what there is so far."""


async def measure(
    load: Load,
    conditions: Conditions,
    client: Client,
    clock: Clock,
    stop: asyncio.Event,
    progress: Progress,
) -> Summary:
    """Put the load on, wait for the last answer, sum up; `stop` ends it with what there is."""
    journal = Journal()
    before = await client.metrics()
    begin = clock.now()
    start = begin + conditions.warmup_s
    usage = _Usage(conditions.warmup_s, conditions.seconds)
    driving = asyncio.create_task(_drive(load, begin, conditions, client, journal, clock))
    stopping = asyncio.create_task(stop.wait())
    while not driving.done() and not stop.is_set():
        await asyncio.wait(
            {driving, stopping}, timeout=_TICK_S, return_when=asyncio.FIRST_COMPLETED
        )
        progress(load, clock.now() - begin, journal)
    stopping.cancel()
    end = start + conditions.seconds
    interrupted = not driving.done()
    if interrupted:
        end = max(start, min(end, clock.now()))
        driving.cancel()
    with suppress(asyncio.CancelledError):
        await driving
    after = None if interrupted else await client.metrics()
    return summarise(
        load,
        journal.columns(),
        (start, end),
        client_cpu=usage.cores(),
        deadline_s=conditions.deadline_s,
        batch_sizes=ran_between(
            batch_sizes(before, conditions.model), batch_sizes(after, conditions.model)
        ),
        interrupted=interrupted,
    )


async def _drive(
    load: Load,
    begin: float,
    conditions: Conditions,
    client: Client,
    journal: Journal,
    clock: Clock,
) -> None:
    total_s = conditions.warmup_s + conditions.seconds
    if load.rate is not None:
        moments = arrivals(conditions.arrivals, load.rate, total_s, conditions.seed)
        await open_loop(begin + moments, client.send, journal, clock, conditions.max_outstanding)
    else:
        await closed_loop(load.clients or 1, begin + total_s, client.send, journal, clock)


class _Usage:
    """How much of a core this process used in the seconds that are measured."""

    def __init__(self, begin_s: float, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._marks: list[tuple[float, float]] = []
        self._timers = [
            loop.call_later(delay, self._mark) for delay in (begin_s, begin_s + seconds)
        ]

    def _mark(self) -> None:
        self._marks.append((perf_counter(), process_time()))

    def cores(self) -> float:
        """CPU seconds a second."""
        for timer in self._timers:
            timer.cancel()
        self._mark()
        (wall, cpu), (later, more), *_ = *self._marks, self._marks[-1]
        return (more - cpu) / (later - wall) if later > wall else 0.0
