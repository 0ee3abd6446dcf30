"""Measures how many times slower a core is now than an idle core, for limits on CPU time."""

import re
import time

# A search, and its time on an idle core (EPYC, Python 3.11). With four busy processes on two cores
# it took up to 3.4 times as much CPU time, because they share the caches and the core.
_SEARCHED, _SEARCH_S = bytes(2_000_000), 0.62e-3


def slowness() -> float:
    """Return how many times slower this core is now than an idle core. The result is at least 1."""
    began = time.thread_time()
    re.search(rb"a$", _SEARCHED)
    return max(1.0, (time.thread_time() - began) / _SEARCH_S)
