"""Provides a clock for load tests that does not depend on the machine."""

import asyncio

from typing_extensions import override

from loadtest.clock import Clock


class CountedClock(Clock):
    """A clock that advances by a millisecond whenever it is read. So no request is late, even on a
    busy machine."""

    def __init__(self) -> None:
        self._now = 0.0

    @override
    def now(self) -> float:
        self._now += 1e-3
        return self._now

    @override
    async def until(self, moment: float) -> None:
        self._now = max(self._now, moment)
        await asyncio.sleep(0)
