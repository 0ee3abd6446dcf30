"""Runs a complete load test. It sends a first request, and then applies one or more loads, or
searches for a rate."""

import asyncio
import gc
import resource
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter, process_time

from rich.progress import Progress

from loadtest.client import Client, batch_sizes
from loadtest.clock import Clock, precise_clock
from loadtest.images import ImageFile
from loadtest.journal import Journal
from loadtest.loops import Arrivals, arrivals, closed_loop, open_loop
from loadtest.report.text import live_line, milliseconds
from loadtest.subject import Subject, subject
from loadtest.summary import Load, Summary, summarise
from loadtest.sweep import SweepResult, find_rate

_TICK_S = 0.25

# The most open files, including connections. It exceeds the limits of --max-outstanding and
# --clients.
_MAX_FILES = 65_536


@dataclass(frozen=True)
class Conditions:
    """Holds the settings that all loads of a test have in common."""

    url: str
    model: str | None
    verify: bool
    seconds: float  # in which requests are measured
    warmup_s: float  # before `seconds`, with the same load
    arrivals: Arrivals
    seed: int
    max_outstanding: int
    deadline_s: float | None
    timeout_s: float
    p99_bound_ms: float | None


async def run(
    conditions: Conditions,
    images: Sequence[ImageFile],
    headers: Mapping[str, str],
    loads: Sequence[Load],
    *,
    find: bool,
    bar: Progress,
) -> tuple[Subject, SweepResult]:
    """Measure `loads` one after another. If `find`, search for the highest rate instead, beginning
    with the rate of the first load. SIGINT ends the test early.

    Shows progress on `bar`. Raises LoadTestError unless the first request has a valid answer.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, _MAX_FILES)), hard))
    client = Client(
        conditions.url,
        images,
        model=conditions.model,
        headers=headers,
        timeout_s=conditions.timeout_s,
        deadline_s=conditions.deadline_s,
    )
    async with client:
        with precise_clock() as clock:
            first = (await client.learn())[0] if conditions.verify else await client.ask(0)
            asked = subject(first.model, await client.metrics())
            gc.freeze()  # the collector then skips images and modules

            async def measure(load: Load) -> Summary:
                summary = await _measure(load, conditions, client, clock, stop, bar)
                if not bar.disable:
                    p50, p99 = (milliseconds(summary.shown_ms[name]) for name in ("p50", "p99"))
                    text = f"{load}: p50 {p50} ms, p99 {p99} ms, {summary.failed:,} errors"
                    bar.console.print(text)
                return summary

            loop.add_signal_handler(signal.SIGINT, stop.set)
            try:
                if find and conditions.p99_bound_ms is not None:
                    start = loads[0].rate or 1.0
                    return asked, await find_rate(measure, conditions.p99_bound_ms, start)
                return asked, SweepResult(
                    [await measure(load) for load in loads if not stop.is_set()]
                )
            finally:
                loop.remove_signal_handler(signal.SIGINT)


async def _measure(
    load: Load,
    conditions: Conditions,
    client: Client,
    clock: Clock,
    stop: asyncio.Event,
    bar: Progress,
) -> Summary:
    """Apply one load until all answers have arrived or `stop` is set, and return its summary."""
    journal = Journal()
    task = bar.add_task(str(load), total=conditions.warmup_s + conditions.seconds)
    before = batch_sizes(await client.metrics(), conditions.model)
    begin = clock.now()
    start = begin + conditions.warmup_s
    end = start + conditions.seconds
    p99s_ms: list[float] = []
    usage: list[tuple[float, float]] = []  # wall and CPU seconds at start and end of the window

    def read_usage() -> None:
        usage.append((perf_counter(), process_time()))

    for moment in (start, end):
        asyncio.get_running_loop().call_later(moment - begin, read_usage)
    if load.rate is not None:
        moments = begin + arrivals(conditions.arrivals, load.rate, end - begin, conditions.seed)
        loop = open_loop(moments, client.send, journal, clock, conditions.max_outstanding)
    else:
        loop = closed_loop(load.clients or 1, end, client.send, journal, clock)
    driving = asyncio.create_task(loop)
    stopping = asyncio.create_task(stop.wait())
    while not driving.done() and not stop.is_set():
        await asyncio.wait(
            {driving, stopping}, timeout=_TICK_S, return_when=asyncio.FIRST_COMPLETED
        )
        if not bar.disable:
            text = live_line(load, journal, p99s_ms)
            bar.update(task, description=text, completed=clock.now() - begin)
    bar.remove_task(task)
    stopping.cancel()
    interrupted = driving.cancel()
    if interrupted:
        end = max(start, min(end, clock.now()))
    with suppress(asyncio.CancelledError):
        await driving
    for _ in range(2):  # the test may have ended before
        read_usage()
    (wall_s, cpu_s), (later_wall_s, later_cpu_s) = usage[:2]
    after = batch_sizes(None if interrupted else await client.metrics(), conditions.model)
    return summarise(
        load,
        journal.columns(),
        (start, end),
        client_cpu=(later_cpu_s - cpu_s) / max(1e-9, later_wall_s - wall_s),
        deadline_s=conditions.deadline_s,
        batch_sizes=dict(after - before) if before and after else None,
        interrupted=interrupted,
    )
