"""Measures how many times slower a core is now than an idle core, for limits on CPU time."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

# A search, and its time on an idle core (EPYC, Python 3.11). With four busy processes on two cores
# it took up to 3.4 times as much CPU time, because they share the caches and the core.
_SEARCHED, _SEARCH_S = bytes(2_000_000), 0.62e-3


def slowness() -> float:
    """Return how many times slower this core is now than an idle core. The result is at least 1."""
    began = time.thread_time()
    re.search(rb"a$", _SEARCHED)
    return max(1.0, (time.thread_time() - began) / _SEARCH_S)


@dataclass
class Spent:
    """Holds the CPU seconds of a block, and how many times slower its core was than an idle one."""

    seconds: float = 0.0  # of an idle core
    slowness: float = 1.0


@contextmanager
def idle_core(clock: Callable[[], float]) -> Iterator[Spent]:
    """Measure the CPU time of a block by `clock`. The result is complete after the block."""
    spent, before, started = Spent(), slowness(), clock()
    yield spent
    taken_s = clock() - started
    spent.slowness = max(before, slowness())
    spent.seconds = taken_s / spent.slowness
