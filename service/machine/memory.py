"""Measures how close this process is to its memory limits, and gives free memory back to the
system.

There are two limits. The control group's `memory.max` limits the memory in use, without memory that
the system can reclaim. `ulimit -v` or prlimit limits the process's address space. At a limit, the
system kills the process or refuses to give it memory.
"""

import ctypes
import gc
import os
import resource
from collections.abc import Callable, Sequence
from math import inf
from time import monotonic

from service.machine.cgroups import memory_share

NEAR = 0.92
"""Memory is short if this fraction of its limit is in use. Decoding may take a quarter of the
memory, but most of that quarter is in use before this fraction is reached."""

_EVERY_S = 0.25

# M_ARENA_MAX of glibc's malloc.h.
_ARENAS = -8

# The columns of /proc/self/statm.
_ADDRESSES, _RESIDENT = 0, 1

# In bytes: the growth that is worth giving back, because giving back takes milliseconds; the most
# use that counts as little; and the growth that shows use that is not counted.
_MUCH, _LITTLE, _MORE = 2**23, 2**22, 2**20

# At this many looks after the last use, memory that libraries held is free, too. The rest is then
# in use, so the next try is at twice as many looks, up to _MOST_LOOKS. Use of any kind starts
# afresh.
_SETTLED, _MOST_LOOKS = 5, 160


def address_share() -> float:
    """Return the fraction of the allowed address space that this process uses, or 0 if there is no
    limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        return 0.0
    return _bytes_of(_ADDRESSES) / soft


def resident_bytes() -> int:
    """Return the bytes of physical memory that this process uses, or 0 if that is unknown."""
    return _bytes_of(_RESIDENT)


def _bytes_of(column: int) -> int:
    """Return one column of /proc/self/statm in bytes, or 0 on systems without that file."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[column])
    except OSError:  # not Linux
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def keep_free_memory() -> None:
    """Make glibc keep up to 8 MiB of free memory at the end of a heap, instead of 128 KiB.

    Otherwise, glibc would return the memory of a 100 kB request body to the system, and request it
    again for the next body. Freeing a large block makes glibc raise this limit to twice the block's
    size. So this function allocates and frees a block of 4 MiB.
    """
    bytes(2**22)


def give_back_free_memory() -> None:
    """Give the free memory inside this process back to the system.

    By itself, glibc gives back only the free memory at the end of a heap. It kept 70 MB after a
    version of SqueezeNet was freed.
    """
    _glibc("malloc_trim", 0)


def give_back_garbage() -> None:
    """Run the garbage collector, and then give free memory back to the system.

    In an idle process, the collector does not run by itself. So 20 MB of gRPC streams that had
    ended stayed in memory.
    """
    gc.collect()
    give_back_free_memory()


def share_one_arena() -> None:
    """Make all threads that start from now on allocate from the same glibc arena. Otherwise, each
    arena keeps its own free memory: 65 MB per arena after gRPC messages of 20 MB."""
    _glibc("mallopt", _ARENAS, 1)


def _glibc(name: str, *numbers: int) -> None:
    """Call a function of glibc with these numbers. Do nothing if the process uses another C
    library."""
    function = getattr(ctypes.CDLL(None), name, None)
    if function is not None:
        function(*numbers)


class Slack:
    """Decides when to give free memory back to the system.

    This is worthwhile if the process has grown but uses little of its memory at the moment. While
    much memory is in use, the process usually needs freed memory again soon.
    """

    def __init__(self, resident: Callable[[], int] = resident_bytes) -> None:
        self._resident = resident
        self._least = 0  # bytes since it was last given back; 0: not looked at
        self._lowest = 0  # of all looks
        self._before = 0  # at the last look
        self._quiet = 0  # looks since much was in use, or memory grew
        self._settled = _SETTLED

    def is_worth_it(self, most_in_use: int) -> bool:
        """Return whether to give memory back now. `most_in_use` is the largest number of bytes of
        bodies and answers in use at one time since the last call."""
        now = self._resident()
        self._least = min(self._least or now, now)
        self._lowest = min(self._lowest or now, now)
        grew, self._before = now - self._before > _MORE, now
        self._quiet += 1
        if grew or most_in_use > _LITTLE:
            self._quiet, self._settled = 0, _SETTLED
        is_settled = self._quiet == self._settled
        if not self._quiet or now - (self._lowest if is_settled else self._least) < _MUCH:
            return False
        if is_settled:
            self._settled = min(2 * self._settled, _MOST_LOOKS)
        self._least = 0
        return True


class MemoryPressure:
    """Measures, at intervals, whether the process is near a memory limit."""

    def __init__(
        self,
        shares: Sequence[Callable[[], float]] = (memory_share, address_share),
        on_short: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`on_short` is called when memory becomes short, to free memory that is not needed."""
        self._shares, self.on_short, self._clock = shares, on_short, clock
        self._looked = -inf
        self._share = 0.0

    def is_short(self) -> bool:
        """Return whether the process is near a memory limit."""
        now = self._clock()
        if now - self._looked >= _EVERY_S:
            before, self._looked = self._share, now
            self._share = max(share() for share in self._shares)
            if self._share >= NEAR > before:
                self.on_short()
        return self._share >= NEAR
