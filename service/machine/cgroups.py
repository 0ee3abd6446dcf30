"""Reads the limits on processor time and memory that Linux control groups set for this process.

For example, `docker run --cpus=2 --memory=4g` sets such limits for the container's control group or
a parent group, but lets the container run on all cores of the machine. Version 1 of control groups
has one hierarchy per controller. Version 2 has a single hierarchy.
"""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from math import inf
from pathlib import Path

GROUPS = Path("/proc/self/cgroup")
MOUNT = Path("/sys/fs/cgroup")

# Files with the limit of each controller, in version 2 and in version 1.
_FILES: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "cpu": (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")),
    "memory": (("memory.max",), ("memory.limit_in_bytes",)),
}

# The files with the limit on memory and with its use, in version 2 and in version 1.
_MEMORY = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))

# Why a group has no such file. Other errors, such as too many open files, may pass.
_MISSING = (FileNotFoundError, NotADirectoryError, PermissionError)

# Lines of memory.stat, which has less than `_MOST` bytes.
_CACHED = re.compile(rb"^(?:in)?active_file (\d+)", re.MULTILINE)
_MOST = 2**16


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

    Cached files do not count as in use, because the system can drop them. The control groups are
    found by the first call; if one is removed, the next call finds those of that moment.
    """
    try:
        return max((_share(*files) for files in _memory_files(groups, mount)), default=0.0)
    except OSError:  # the group was removed, or this process may open no more files
        _memory_files.cache_clear()
        return 0.0


@cache
def _memory_files(groups: Path, mount: Path) -> Sequence[tuple[str, str, str]]:
    """Return the paths of three files for each control group of this process and for each parent
    group: the limit on memory, the memory in use, and the statistics. Groups whose files cannot be
    read are left out.

    The paths are texts, because opening a `Path` takes several times as long.
    """
    found = []
    for folder, _ in _folders("memory", groups, mount):
        for limit, used in _MEMORY:
            files = str(folder / limit), str(folder / used), str(folder / "memory.stat")
            with contextlib.suppress(ValueError, *_MISSING):  # of the other version, or not mounted
                _share(*files)
                found.append(files)
    return found


def _share(limit: str, used: str, stat: str) -> float:
    most = _limit(_read(limit).decode())
    if most == inf:
        return 0.0
    cached = sum(map(int, _CACHED.findall(_read(stat))))
    return max(0, int(_read(used)) - cached) / most


def _read(path: str) -> bytes:
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, _MOST)
    finally:
        os.close(file)


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
    except _MISSING:  # not Linux
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
