"""Calls a function at a given moment, as precisely as an event loop can."""

import asyncio
from collections.abc import Callable

# A moment that is at most this near counts as now, in seconds.
_SOON_S = 1e-6


class Alarm:
    """Calls a function once, at the moment that was set last. Not thread-safe: use it from one
    event loop."""

    def __init__(
        self, ring: Callable[[float], None], clock: Callable[[], float], error_s: float
    ) -> None:
        """Call `ring` with the current time at the moment that was set. The event loop's timers may
        fire up to `error_s` seconds too early or too late."""
        self._ring = ring
        self._clock = clock
        self._error_s = error_s
        self.timer: asyncio.Handle | None = None  # while it is set

    def set(self, moment: float, *, exact: bool) -> None:
        """Call `ring` at about `moment`. If `exact`, end the timer a little earlier and then read
        the clock in each iteration of the event loop, because timers are not exact."""
        loop = asyncio.get_running_loop()
        delay = moment - self._clock()
        delay = delay - self._error_s if exact else max(delay, self._error_s)
        if delay > 0:
            self.timer = loop.call_later(delay, self._look, moment, exact)
        else:
            self.timer = loop.call_soon(self._look, moment, exact)

    def cancel(self) -> None:
        """Cancel the alarm, so that `ring` is not called."""
        if self.timer:
            self.timer.cancel()
            self.timer = None

    def _look(self, moment: float, exact: bool) -> None:
        self.timer = None
        now = self._clock()
        if now < moment - _SOON_S:
            self.set(moment, exact=exact)
        else:
            self._ring(now)
