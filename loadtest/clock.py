"""Waiting for a moment precisely: event loops round their timers to whole milliseconds."""

import asyncio
import ctypes
import os
import sys
from time import perf_counter
from types import TracebackType
from typing import Protocol, Self


class Clock(Protocol):
    """Seconds, and waiting for one of them."""

    def now(self) -> float:
        """The moment."""
        ...

    async def until(self, moment: float) -> None:
        """Return at `moment`, or in the loop's next turn if that is past: others may run first."""
        ...


class LoopClock:
    """The event loop's timers, a millisecond late."""

    def now(self) -> float:
        """The moment."""
        return perf_counter()

    async def until(self, moment: float) -> None:
        """Return at `moment`, or in the loop's next turn if that is past."""
        await asyncio.sleep(max(0.0, moment - perf_counter()))
        while (left := moment - perf_counter()) > 0:  # timers may be early too
            await asyncio.sleep(left)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class TimerFdClock:
    """Linux' timer file descriptors, tens of microseconds late; for one waiter, in one loop."""

    _CLOCK_MONOTONIC = 1  # what perf_counter reads
    _TFD_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC if hasattr(os, "O_CLOEXEC") else 0
    _ABSOLUTE = 1

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor: int = self._libc.timerfd_create(self._CLOCK_MONOTONIC, self._TFD_FLAGS)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._waiter: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._descriptor, self._fired)

    def now(self) -> float:
        """The moment."""
        return perf_counter()

    async def until(self, moment: float) -> None:
        """Return at `moment`, or in the loop's next turn if that is past."""
        if moment <= perf_counter():
            await asyncio.sleep(0)
            return
        seconds, nanoseconds = divmod(round(moment * 1e9), 10**9)
        setting = _Itimerspec(_Timespec(0, 0), _Timespec(seconds, nanoseconds))
        self._waiter = self._loop.create_future()
        self._libc.timerfd_settime(self._descriptor, self._ABSOLUTE, ctypes.byref(setting), None)
        await self._waiter

    def _fired(self) -> None:
        os.read(self._descriptor, 8)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)


def precise_clock() -> TimerFdClock | LoopClock:
    """The best clock here; a context manager, made inside the running loop."""
    return TimerFdClock() if sys.platform == "linux" else LoopClock()
