"""Reads the limits on processor time and memory that Linux control groups set for this process.

For example, `docker run --cpus=2 --memory=4g` sets such limits for the container's control group or
a parent group, but lets the container run on all cores of the machine. Version 1 of control groups
has one hierarchy per controller. Version 2 has a single hierarchy.
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
    """Return how many bytes this process may use: the machine's memory, or the limit of its control
    groups if that is lower."""
    return int(min(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), memory_limit()))


def memory_share(groups: Path = GROUPS, mount: Path = MOUNT) -> float:
    """Return the fraction of the allowed memory that is in use. If several control groups have
    limits, return the largest fraction. Without a limit, return 0.

    Cached files do not count as in use, because the system can drop them.
    """
    return max((_share(folder) for folder, _ in _folders("memory", groups, mount)), default=0.0)


def _share(folder: Path) -> float:
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError):  # of the other version, or not mounted
            most = _limit((folder / limit).read_text())
            if most < inf:
                lines = map(str.split, (folder / "memory.stat").read_text().splitlines())
                counted = dict(lines)
                kept = sum(int(counted.get(name, 0)) for name in ("active_file", "inactive_file"))
                return max(0, int((folder / used).read_text()) - kept) / most
    return 0.0


def _limits(controller: str, groups: Path, mount: Path) -> Iterator[float]:
    """Yield the limit of each control group of this process, and of each parent group."""
    for folder, names in _folders(controller, groups, mount):
        with contextlib.suppress(OSError):  # the group is not mounted: no limit
            yield _limit(" ".join((folder / name).read_text() for name in names))


def _folders(controller: str, groups: Path, mount: Path) -> Iterator[tuple[Path, Sequence[str]]]:
    """Yield the folder of each control group of this process and of each parent group. With each
    folder, yield the names of the files that contain the limit."""
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
        # In a container the path may be the host's path, of which only the end or nothing is
        # mounted.
        group = root / path.strip("/")
        for folder in (group, *group.parents):
            yield folder, names
            if folder == root:
                break


def _limit(text: str) -> float:
    """Parse the text of a control group's limit: one number, or a quota and a period, whose ratio
    is the limit. Return inf if there is no limit."""
    try:
        limit, period = map(float, f"{text} 1".split()[:2])
    except ValueError:
        return inf
    return limit / period if limit > 0 and period > 0 else inf
