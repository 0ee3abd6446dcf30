"""What control groups allow this process: processor time and memory, as Linux writes it.

Containers are given time and memory, not cores: `docker run --cpus=2 --memory=4g` on 64 cores is a
quota that the process's own group has, or one above it. Version 1 has a hierarchy a controller,
version 2 a single one.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from math import inf
from pathlib import Path

GROUPS = Path("/proc/self/cgroup")
MOUNT = Path("/sys/fs/cgroup")


def cpu_quota(groups: Path = GROUPS, mount: Path = MOUNT) -> float:
    """Cores' worth of time that may be used; inf where there is no limit."""
    return min(map(_cores, _contents("cpu", _CPU_FILES, groups, mount)), default=inf)


def memory_limit(groups: Path = GROUPS, mount: Path = MOUNT) -> float:
    """Bytes that may be used; inf where there is no limit."""
    return min(map(_bytes, _contents("memory", _MEMORY_FILES, groups, mount)), default=inf)


def available_memory() -> int:
    """Bytes that this process may use: what the machine has, or less where groups limit it."""
    return int(min(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), memory_limit()))


# By version of the hierarchy.
_CPU_FILES = {2: ("cpu.max",), 1: ("cpu.cfs_quota_us", "cpu.cfs_period_us")}
_MEMORY_FILES = {2: ("memory.max",), 1: ("memory.limit_in_bytes",)}


def _cores(text: str) -> float:
    try:
        used, period = text.split()
        if used != "max" and float(used) > 0 and float(period) > 0:
            return float(used) / float(period)
    except ValueError:
        pass  # nothing that can be understood: no limit
    return inf


def _bytes(text: str) -> float:
    text = text.strip()
    return float(text) if text.isdigit() and int(text) > 0 else inf


def _contents(
    controller: str, files: Mapping[int, tuple[str, ...]], groups: Path, mount: Path
) -> Iterator[str]:
    """What the files have in the process's own groups, and in each above them."""
    try:
        lines = groups.read_text().splitlines()
    except OSError:  # no Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, names = mount, files[2]
        elif controller in controllers.split(","):
            whole = mount / controllers
            root, names = whole if whole.is_dir() else mount / controller, files[1]
        else:
            continue
        # In a container the path may be the host's, of which only the end, or nothing, is mounted.
        group = root / path.strip("/")
        for place in (group, *group.parents):
            with contextlib.suppress(OSError):  # no such group here: no limit
                yield " ".join((place / name).read_text() for name in names)
            if place == root:
                break
