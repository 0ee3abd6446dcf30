"""Says whether this process is near a limit on its memory, beyond which the system would end it.

control group: memory in use that cannot be given back, of `memory.max` process: its addresses, of
those that `ulimit -v` or prlimit allows
"""

import ctypes
import os
import resource
from collections.abc import Callable, Sequence
from math import inf
from time import monotonic

from service.engine.cgroups import memory_share

NEAR = 0.92
"""The share of a limit from which on memory is short. Decoding may take a quarter, but most of that
is in use by then."""

_EVERY_S = 0.25


def address_share() -> float:
    """Return the share in use of the addresses that this process may have, 0 if there is no
    limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        return 0.0
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[0])
    except OSError:  # not Linux
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / soft


def give_back_free_memory() -> None:
    """Give the memory that is free within this process back to the system. glibc keeps free memory
    below any that is in use: 70 MB after a version of SqueezeNet.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # other libraries of C lack it
    if trim is not None:
        trim(0)


class MemoryPressure:
    """Looks at the limits from time to time, and says whether memory is short."""

    def __init__(
        self,
        shares: Sequence[Callable[[], float]] = (memory_share, address_share),
        on_short: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Call `on_short` when memory becomes short, to give back resources that are only kept."""
        self._shares, self.on_short, self._clock = shares, on_short, clock
        self._looked = -inf
        self._share = 0.0

    def is_short(self) -> bool:
        """Return whether memory is short."""
        now = self._clock()
        if now - self._looked >= _EVERY_S:
            before, self._looked = self._share, now
            self._share = max(share() for share in self._shares)
            if self._share >= NEAR > before:
                self.on_short()
        return self._share >= NEAR
