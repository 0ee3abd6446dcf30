"""Reads the processor time and memory that Linux control groups allow this process.

Containers limit time and memory, not cores: `docker run --cpus=2 --memory=4g` on 64 cores sets a
quota on the process's group or one above it. Version 1 has a hierarchy for each controller, version
2 a single one.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from pathlib import Path

GROUPS = Path("/proc/self/cgroup")
MOUNT = Path("/sys/fs/cgroup")

# Files with the limit of each controller, in version 2 and in version 1.
_FILES: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "cpu": (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")),
    "memory": (("memory.max",), ("memory.limit_in_bytes",)),
}


def cpu_quota(groups: Path = GROUPS, mount: Path = MOUNT) -> float:
    """Return the allowed processor time in cores, or inf if there is no limit."""
    return min(_limits("cpu", groups, mount), default=inf)


def memory_limit(groups: Path = GROUPS, mount: Path = MOUNT) -> float:
    """Return the allowed memory in bytes, or inf if there is no limit."""
    return min(_limits("memory", groups, mount), default=inf)


def available_memory() -> int:
    """Return the bytes that this process may use: the machine's memory, or its groups' limit if
    lower."""
    return int(min(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), memory_limit()))


def _limits(controller: str, groups: Path, mount: Path) -> Iterator[float]:
    """Yield the limits of this process's groups and of each group above them."""
    version_2, version_1 = _FILES[controller]
    try:
        lines = groups.read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, names = mount, version_2
        elif controller in controllers.split(","):
            root, names = mount / controllers, version_1
            root = root if root.is_dir() else mount / controller
        else:
            continue
        # In a container the path may be the host's, of which only the end, or nothing, is mounted.
        group = root / path.strip("/")
        for folder in (group, *group.parents):
            with contextlib.suppress(OSError):  # the group is not mounted: no limit
                yield _limit(" ".join((folder / name).read_text() for name in names))
            if folder == root:
                break


def _limit(text: str) -> float:
    """Return the first number in the text divided by the second if there are two, or inf if there
    is no limit."""
    try:
        limit, period = map(float, f"{text} 1".split()[:2])
    except ValueError:
        return inf
    return limit / period if limit > 0 and period > 0 else inf
