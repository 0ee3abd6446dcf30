"""Measures the memory that calls keep, or do not free until the garbage collector runs."""

import gc
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

CALLS = 10


async def bytes_left(call: Callable[[], Awaitable[None]]) -> int:
    """Return how many bytes CALLS calls leave. One call is made before, because the first call may
    create data that later calls use."""
    await call()
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for _ in range(CALLS):
            await call()
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    return left


@contextmanager
def bytes_kept() -> Iterator[Callable[[], int]]:
    """Yield a function that returns how many bytes were allocated in the block and are not freed
    yet. The garbage collector does not run in the block."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
        gc.enable()
