"""Processor cores: how many this process may use, and which one a thread is on.

What it may use is what it may run on, and what of it is paid for.

Containers are given processor time, not cores: `docker run --cpus=2` on 64 cores is a quota of two
cores' time in every period, and 64 threads would use it up in the first part of each and then all
stand still. cgroups (version 2: cpu.max; version 1: cpu.cfs_quota_us) have it, for the process's
own group and each above it.
"""

import ctypes
import os
from collections.abc import Callable, Iterator
from math import ceil, inf
from pathlib import Path

_GROUPS = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")


def available_cores() -> int:
    """How many cores this process may use, at least one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    # Rounded up: half a core more is used by half of a thread.
    return max(1, ceil(min(cores or 1, quota(_GROUPS, _MOUNT))))


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


def quota(groups: Path, mount: Path) -> float:
    """Cores' worth of time that cgroups allow; inf where they do not say.

    `groups` is what /proc/self/cgroup has, `mount` where the hierarchies are mounted.
    """
    try:
        lines = groups.read_text().splitlines()
    except OSError:  # no Linux
        return inf
    return min((cores for line in lines for cores in _quotas(line, mount)), default=inf)


def _quotas(line: str, mount: Path) -> Iterator[float]:
    """What the groups on one line of /proc/self/cgroup allow: its own, and each above it."""
    _, controllers, path = line.split(":", 2)
    if controllers == "":
        root, names = mount, ["cpu.max"]
    elif "cpu" in controllers.split(","):
        root, names = mount / controllers, ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        if not root.is_dir():
            root = mount / "cpu"
    else:
        return
    # In a container the path may be the host's, of which only the end, or nothing, is mounted.
    group = root / path.strip("/")
    for place in (group, *group.parents):
        try:
            used, period = " ".join((place / name).read_text() for name in names).split()
            if used != "max" and float(used) > 0 and float(period) > 0:
                yield float(used) / float(period)
        except (OSError, ValueError):
            pass  # no such group here, or nothing that can be understood: no limit
        if place == root:
            return
