"""Measures for how long one call blocks every other thread of the interpreter.

This time is called a hold of the GIL. Any thread may make the call. Two cases are not measured: a
call that sleeps while it holds the GIL, because it uses no CPU, and holds that are shorter than the
pause between two beats.
"""

import ctypes
import gc
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import starmap
from operator import sub

from tests.support.models.slowness import slowness

# The interval after which a waiting thread requests the GIL. Measured holds are too long by this
# time. The waiting thread also wakes at this interval, and on a busy machine it may then wait for a
# core.
_SWITCH_S = 5e-4
_APART_S = 0.1  # between two tries, because other work comes in bursts, which may last for 40 tries
# The pause between two beats, so that this thread does not occupy a core.
_PAUSE_S = 5e-5
_MEASURED = 3  # how often the core's slowness is measured before a try, and after it
# A beat may wait for a core this many times outside a hold: after the pause, before it requests the
# GIL, and after it gets the GIL. Further waits are part of a hold.
_WAITS = 3


# Reads a file without releasing the GIL, which another thread might otherwise take.
_pread = ctypes.PyDLL(None).pread


class _CoreClock:
    """Measures how often and for how long the creating thread was ready to run but had no core."""

    def __init__(self) -> None:
        self._text = ctypes.create_string_buffer(64)
        try:
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        except OSError:  # this system does not count it
            self._file = -1

    def waited_s(self) -> float:
        """Return how many seconds the thread has waited for a core so far."""
        if self._file < 0 or _pread(self._file, self._text, 64, 0) <= 0:
            return 0.0
        return int(self._text.value.split()[1]) / 1e9

    def waits(self) -> int:
        """Return how many times the thread has left its core so far. Each time, it may then have
        waited for a core."""
        if self._file < 0:
            return 0
        used = resource.getrusage(resource.RUSAGE_THREAD)
        return used.ru_nvcsw + used.ru_nivcsw

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)


class Heartbeat(threading.Thread):
    """Takes the GIL again and again. Each time is a beat. Measures the CPU time of the process
    between two beats.

    The CPU time of all threads is measured, because it stands still while other programs use the
    core, and while a thread waits for the GIL. Two threads that compute without the GIL cause no
    hold, because they do not delay the next beat. There is also no hold if this thread waits for a
    core while other threads of the process compute.
    """

    def __init__(self) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self.longest_s = 0.0
        self._beating = threading.Event()
        self._over = False

    def run(self) -> None:
        """Take the GIL repeatedly until `end` is called."""
        # Otherwise, another process could occupy the core for milliseconds.
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        clock = _CoreClock()
        self._beating.set()
        last = _now(clock)
        while not self._over:
            time.sleep(_PAUSE_S)  # releases the GIL, and requests it again
            now = _now(clock)
            self.longest_s = max(self.longest_s, hold_s(*starmap(sub, zip(now, last, strict=True))))
            last = now
        clock.close()

    def begin(self) -> None:
        """Start, and wait for the first beat."""
        self.start()
        self._beating.wait()

    def end(self) -> None:
        """Stop after a last beat."""
        self._over = True
        self.join()


def hold_s(computed_s: float, passed_s: float, waited_s: float, waits: float) -> float:
    """Return for how long the GIL was held between two beats.

    Of the time for which the heartbeat waited for a core, only its share of the waits outside the
    hold is subtracted. Otherwise, the more often a heartbeat woke and waited during a long hold,
    the shorter the hold would seem.
    """
    outside_s = waited_s * min(1.0, _WAITS / max(waits, 1))
    return min(computed_s, passed_s) - outside_s


def _now(clock: _CoreClock) -> tuple[float, float, float, int]:
    return time.process_time(), time.perf_counter(), clock.waited_s(), clock.waits()


@contextmanager
def heartbeat() -> Iterator[Heartbeat]:
    """Yield a heartbeat that runs during the block. Afterwards its `longest_s` is the longest
    hold."""
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
    """Return the longest time for which `call` held the GIL. The call is tried several times, and
    the best try counts.

    The result is in seconds of an idle core, even on a busy machine. Noise only increases the time,
    so the first try within `enough_s` is also the last. Noise also increases a measurement of the
    core's slowness, which would hide a hold, so the least of several measurements counts. A garbage
    collection also holds the GIL, and its time grows with the number of objects. So the garbage
    collector no longer visits the objects that exist now. They stay frozen: to unfreeze them would
    also unfreeze half a million objects of pytest's collection, and every later `gc.collect()`
    would take 0.3 s.
    """
    found = float("inf")
    gc.collect()
    gc.freeze()
    for _ in range(tries):
        slow = [slowness() for _ in range(_MEASURED)]
        with heartbeat() as beats:
            call()
        slow += [slowness() for _ in range(_MEASURED)]
        found = min(found, beats.longest_s / min(slow))
        if found <= enough_s:
            break
        time.sleep(_APART_S)
    return found
