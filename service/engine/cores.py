"""Processor cores: how many this process may use, and which one a thread is on.

What it may use is what it may run on, and what of it is paid for: with a quota of two cores' time
in every period, 64 threads would use it up in the first part of each and then all stand still.
"""

import ctypes
import os
from collections.abc import Callable
from math import ceil

from service.engine.cgroups import cpu_quota


def available_cores() -> int:
    """How many cores this process may use, at least one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    # Rounded up: half a core more is used by half of a thread.
    return max(1, ceil(min(cores or 1, cpu_quota())))


def _find_getcpu() -> Callable[[], int] | None:
    """libc's sched_getcpu; None where there is none, or where threads cannot be put on cores."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    try:
        # PyDLL: to let go of the interpreter's lock takes longer than the call.
        found: Callable[[], int] = ctypes.PyDLL(None).sched_getcpu
    except (OSError, AttributeError):  # linked statically; not in this libc
        return None
    return found


_getcpu = _find_getcpu()


def this_core() -> int | None:
    """The core that the calling thread runs on; None where nobody tells, or it is of no use."""
    core = _getcpu() if _getcpu is not None else -1
    return core if core >= 0 else None


def keep_on(core: int | None, thread: int) -> None:
    """Let a thread, by its native id, run on one core only; None: where the calling one may.

    OSError: it has ended, or the core is not to be had any longer.
    """
    os.sched_setaffinity(thread, os.sched_getaffinity(0) if core is None else {core})
