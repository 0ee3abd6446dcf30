"""Measures for how long one call keeps every other thread of the interpreter from running.

It does not matter which thread makes the call. Not seen: a call that sleeps with the lock held, as
it uses no CPU; and what is shorter than the pause between two beats.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

# How soon a thread that waits for the GIL asks for it: what is measured is too long by these.
_SWITCH_S = 1e-4
# Between two beats, so that the core is not this thread's alone.
_PAUSE_S = 5e-5


class Heartbeat(threading.Thread):
    """Takes the GIL repeatedly, and sees how much the process computed in between.

    The CPU time of all threads is what counts, not the time of day: it stands still while a thread,
    asked to let go of the GIL, waits until this one has had it, and while others use the core. Two
    threads that compute without the GIL are no hold: they do not keep this one from its next beat.
    """

    def __init__(self) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self.longest_s = 0.0
        self._beating = threading.Event()
        self._over = False

    def run(self) -> None:
        """Beat until `end` is called."""
        # Another process would keep it from its core for milliseconds, and they would count.
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        self._beating.set()
        last = time.process_time()
        while not self._over:
            time.sleep(_PAUSE_S)  # lets go of the GIL, and asks for it again
            now = time.process_time()
            self.longest_s = max(self.longest_s, now - last)
            last = now

    def begin(self) -> None:
        """Start, and wait for the first beat."""
        self.start()
        self._beating.wait()

    def end(self) -> None:
        """Stop after a last beat."""
        self._over = True
        self.join()


@contextmanager
def heartbeat() -> Iterator[Heartbeat]:
    """Yield a heartbeat beside the block; afterwards its `longest_s` is the longest hold."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    beats = Heartbeat()
    beats.begin()
    try:
        yield beats
    finally:
        beats.end()
        sys.setswitchinterval(interval)


def longest_hold_s(call: Callable[[], object], tries: int, enough_s: float) -> float:
    """Return the longest that `call` held the GIL, in the try in which that was shortest.

    Noise only adds, so a try within `enough_s` is the last.
    """
    found = float("inf")
    for _ in range(tries):
        with heartbeat() as beats:
            call()
        found = min(found, beats.longest_s)
        if found <= enough_s:
            break
    return found
