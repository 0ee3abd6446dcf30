"""Finds how many processor cores this process may use, and on which core a thread runs.

The process's CPU affinity and the quota of its control group limit the number of cores. With a
quota of two cores, 64 busy threads would use up the quota at the start of each period. All of them
would then wait until the period ends.
"""

import contextlib
import ctypes
import os
import platform
from collections.abc import Callable
from math import ceil
from pathlib import Path

from service.machine.cgroups import cpu_quota


def available_cores() -> int:
    """Return how many cores this process may use, at least one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    # Rounded up: half a core is worth another thread.
    return max(1, ceil(min(cores or 1, cpu_quota())))


def cpu_model() -> str:
    """Return the processor's name, from /proc/cpuinfo if that exists."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


# libc's sched_getcpu, where threads can be pinned to cores.
_getcpu: Callable[[], int] | None = None
if hasattr(os, "sched_setaffinity"):
    with contextlib.suppress(OSError, AttributeError):  # linked statically; not in this libc
        _getcpu = ctypes.PyDLL(None).sched_getcpu  # keeps the GIL: releasing it takes longer


def this_core() -> int | None:
    """Return the core on which this thread runs. Return None if the core is unknown, or if this
    system cannot pin threads."""
    core = _getcpu() if _getcpu is not None else -1
    return core if core >= 0 else None


def keep_on(core: int | None, thread: int) -> None:
    """Pin a thread to a core; `thread` is its native id. If `core` is None, let the thread run on
    the same cores as the calling thread.

    Raises OSError if the thread has ended or the core is no longer available.
    """
    os.sched_setaffinity(thread, os.sched_getaffinity(0) if core is None else {core})
