"""Provides timers that are accurate to tens of microseconds. The timers of event loops round to
milliseconds."""

import asyncio
import ctypes
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from typing_extensions import override

_CLOCK_MONOTONIC = 1  # the clock that perf_counter reads
_TFD_TIMER_ABSTIME = 1
_libc = ctypes.CDLL(None, use_errno=True)


class Clock:
    """Waits with the event loop's timers, which may fire a millisecond late."""

    def now(self) -> float:
        """Return the time in seconds."""
        return perf_counter()

    async def until(self, moment: float) -> None:
        """Wait until `moment`. If `moment` has passed, wait for one iteration of the event loop."""
        await asyncio.sleep(max(0.0, moment - perf_counter()))
        while (left := moment - perf_counter()) > 0:  # timers may fire early too
            await asyncio.sleep(left)


class TimerFdClock(Clock):
    """Waits with a Linux timer file descriptor. Only one task may wait at a time."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._fired = asyncio.Event()

    @override
    async def until(self, moment: float) -> None:
        if moment <= perf_counter():
            await asyncio.sleep(0)
            return
        itimerspec = struct.pack("4l", 0, 0, *divmod(round(moment * 1e9), 10**9))
        self._fired.clear()
        _libc.timerfd_settime(self._descriptor, _TFD_TIMER_ABSTIME, itimerspec, None)
        await self._fired.wait()

    def fire(self) -> None:
        """Wake the waiting task. The event loop calls this when the descriptor is readable."""
        os.read(self._descriptor, 8)
        self._fired.set()


@contextmanager
def precise_clock() -> Iterator[Clock]:
    """Yield the most precise clock that this system has for the running event loop."""
    if sys.platform != "linux":
        yield Clock()
        return
    descriptor = _libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "timerfd_create")
    clock = TimerFdClock(descriptor)
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, clock.fire)
    try:
        yield clock
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
