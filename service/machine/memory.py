"""Says whether this process is near a limit on its memory, beyond which the system would end it.

- Of the control group: the memory in use that cannot be given back, as a share of `memory.max`.
- Of the process: its addresses, as a share of those that `ulimit -v` or prlimit allows.
"""

import ctypes
import os
import resource
from collections.abc import Callable, Sequence
from math import inf
from time import monotonic

from service.machine.cgroups import memory_share

NEAR = 0.92
"""The share of its limit that memory in use has when it is short. That is more than three quarters,
though decoding may take a quarter: most of that quarter is in use by then."""

_EVERY_S = 0.25

# M_ARENA_MAX of glibc's malloc.h.
_ARENAS = -8

# The columns of /proc/self/statm.
_ADDRESSES, _RESIDENT = 0, 1

# Bytes: growth that is worth giving back, which takes milliseconds; and what little use is.
_MUCH, _LITTLE = 2**23, 2**22

# At this look after much was in use, the last of it is free: what a library held is not counted.
_SETTLED = 3


def address_share() -> float:
    """Return the share in use of the addresses that this process may have, 0 if there is no
    limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        return 0.0
    return _bytes_of(_ADDRESSES) / soft


def resident_bytes() -> int:
    """Return the physical memory of this process, or 0 where that is not known."""
    return _bytes_of(_RESIDENT)


def _bytes_of(column: int) -> int:
    """Return a column of /proc/self/statm, which counts pages, in bytes; 0 on other systems."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[column])
    except OSError:  # not Linux
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def keep_free_memory() -> None:
    """Have glibc keep up to 8 MiB of free memory at the end of a heap, instead of 128 KiB.

    A request's body of 100 kB there was given back and fetched again with every request. How much
    is kept is twice the largest block that was free once.
    """
    bytes(2**22)


def give_back_free_memory() -> None:
    """Give the memory that is free within this process back to the system.

    glibc keeps free memory below any that is in use: 70 MB after a version of SqueezeNet.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # other libraries of C lack it
    if trim is not None:
        trim(0)


def share_one_arena() -> None:
    """Have threads that begin from now on allocate from one arena of glibc.

    What is free at the end of any other arena is not given back: after messages of 20 MB by gRPC
    that was 65 MB of each.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_ARENAS, 1)


class Slack:
    """Says when to give back what is free within this process: it grew, and little is in use.

    What is in use now will be used again, mostly: then giving back costs more than it gains.
    """

    def __init__(self, resident: Callable[[], int] = resident_bytes) -> None:
        self._resident = resident
        self._least = 0  # bytes since it was last given back; 0: not looked at
        self._lowest = 0  # of all looks
        self._quiet = 0  # looks since much was in use

    def is_worth_it(self, most_in_use: int) -> bool:
        """Return whether to give back now; `most_in_use` are the bytes of bodies and answers that
        were in use at once since the last look."""
        now = self._resident()
        self._least = min(self._least or now, now)
        self._lowest = min(self._lowest or now, now)
        self._quiet = 0 if most_in_use > _LITTLE else self._quiet + 1
        before = self._lowest if self._quiet == _SETTLED else self._least
        if not self._quiet or now - before < _MUCH:
            return False
        self._least = 0
        return True


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
