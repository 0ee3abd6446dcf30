"""Measures the memory that calls leave until the garbage collector runs."""

import gc
import tracemalloc
from collections.abc import Awaitable, Callable

CALLS = 10


async def bytes_left(call: Callable[[], Awaitable[None]]) -> int:
    """Return the bytes that CALLS calls leave. One call comes before, because it may leave data
    that later calls use."""
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
