"""A whole load test: ask once, then one load after another, or the search for a rate."""

import asyncio
import gc
import resource
import signal
from collections.abc import Callable

from loadtest.client import Client
from loadtest.clock import precise_clock
from loadtest.measure import Progress, measure
from loadtest.options import Options
from loadtest.summary import Load, Summary
from loadtest.sweep import Found, find_rate

Finished = Callable[[Summary], None]

# What this process has open beside its connections.
_OTHER_FILES = 64


async def run(options: Options, progress: Progress, finished: Finished) -> Found:
    """Every load in turn; SIGINT ends it with what there is. LoadTestError if nobody answers."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    _allow_connections(options)
    client = Client(
        options.url,
        options.pictures,
        model=options.conditions.model,
        headers=options.headers,
        timeout_s=options.conditions.timeout_s,
        deadline_s=options.conditions.deadline_s,
    )
    try:
        async with client:
            with precise_clock() as clock:
                if options.verify:
                    await client.learn()
                else:
                    await client.try_out()
                gc.freeze()  # or every collection would look through all pictures and modules
                loop.add_signal_handler(signal.SIGINT, stop.set)

                async def put_on(load: Load) -> Summary:
                    summary = await measure(load, options.conditions, client, clock, stop, progress)
                    finished(summary)
                    return summary

                if options.search_from is not None and options.p99_ms is not None:
                    return await find_rate(put_on, options.p99_ms, options.search_from)
                steps: list[Summary] = []
                for load in options.loads:
                    steps.append(await put_on(load))
                    if stop.is_set():
                        break
                return Found(steps, None, limited_by_client=False)
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _allow_connections(options: Options) -> None:
    """As many open files as there may be connections, as far as the system lets."""
    most = max(options.conditions.max_outstanding, *(load.clients or 0 for load in options.loads))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < most + _OTHER_FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, most + _OTHER_FILES), hard))
