"""The number of cores that cgroups allow, from files in the format of Linux."""

import os
import sys
from collections.abc import Callable
from math import inf
from pathlib import Path

import pytest

from service.machine import cores
from service.machine.cgroups import available_memory, cpu_quota, memory_limit
from service.machine.cores import available_cores, this_core


def files(folder: Path, contents: dict[str, str]) -> tuple[Path, Path]:
    for name, text in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "cgroup", folder / "fs"


V1 = "11:memory:/docker/abc\n5:cpu,cpuacct:/docker/abc\n0::/\n"


@pytest.mark.parametrize(
    ("contents", "cores"),
    [
        ({"cgroup": "0::/\n", "fs/cpu.max": "200000 100000\n"}, 2.0),
        ({"cgroup": "0::/\n", "fs/cpu.max": "150000 100000\n"}, 1.5),
        ({"cgroup": "0::/\n", "fs/cpu.max": "max 100000\n"}, inf),
        ({"cgroup": "0::/\n"}, inf),
        ({"cgroup": "0::/\n", "fs/cpu.max": "nonsense\n"}, inf),
        ({"cgroup": "0::/\n", "fs/cpu.max": "100000 0\n"}, inf),
        ({}, inf),
        # The tightest of a group and those above it counts.
        ({"cgroup": "0::/a/b\n", "fs/a/b/cpu.max": "max 100000", "fs/a/cpu.max": "3 1"}, 3.0),
        ({"cgroup": "0::/a/b\n", "fs/a/b/cpu.max": "1 1", "fs/a/cpu.max": "3 1"}, 1.0),
        # A path of the host's, of which the container sees the end alone.
        ({"cgroup": "0::/host/slice/abc\n", "fs/cpu.max": "2 1"}, 2.0),
        # What is outside the mount limits no process here.
        ({"cgroup": "0::/a\n", "cpu.max": "1 1", "fs/a/cpu.max": "4 1"}, 4.0),
        (
            {
                "cgroup": V1,
                "fs/cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "250000\n",
                "fs/cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000\n",
            },
            2.5,
        ),
        (
            {
                "cgroup": V1,
                "fs/cpu/cpu.cfs_quota_us": "50000\n",
                "fs/cpu/cpu.cfs_period_us": "100000\n",
            },
            0.5,
        ),
        (
            {
                "cgroup": V1,
                "fs/cpu/cpu.cfs_quota_us": "-1\n",
                "fs/cpu/cpu.cfs_period_us": "100000\n",
            },
            inf,
        ),
        ({"cgroup": "3:cpuset:/\n", "fs/cpuset/cpu.max": "1 1"}, inf),
    ],
)
def test_the_tightest_quota_counts(tmp_path: Path, contents: dict[str, str], cores: float) -> None:
    assert cpu_quota(*files(tmp_path, contents)) == cores


@pytest.mark.parametrize(
    ("allowed", "limit", "cores"),
    [(8, "2 1", 2), (8, "3 2", 2), (8, "1 4", 1), (2, "16 1", 2), (3, "max 1", 3)],
)
def test_cores_are_those_it_may_run_on_and_no_more_than_are_paid_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: int, limit: str, cores: int
) -> None:
    made = files(tmp_path, {"cgroup": "0::/\n", "fs/cpu.max": limit})
    monkeypatch.setattr("service.machine.cores.cpu_quota", lambda: cpu_quota(*made))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(allowed)))
    assert available_cores() == cores


@pytest.mark.parametrize(
    ("contents", "limit"),
    [
        ({"cgroup": "0::/\n", "fs/memory.max": "1073741824\n"}, 2.0**30),
        ({"cgroup": "0::/\n", "fs/memory.max": "max\n"}, inf),
        ({"cgroup": "0::/a/b\n", "fs/a/b/memory.max": "max", "fs/a/memory.max": "4096"}, 4096.0),
        ({"cgroup": V1, "fs/memory/docker/abc/memory.limit_in_bytes": "65536\n"}, 65536.0),
        ({"cgroup": V1, "fs/memory/memory.limit_in_bytes": "nonsense\n"}, inf),
        ({}, inf),
    ],
)
def test_the_tightest_memory_limit_counts(
    tmp_path: Path, contents: dict[str, str], limit: float
) -> None:
    assert memory_limit(*files(tmp_path, contents)) == limit


def test_memory_is_what_the_machine_has_and_no_more_than_a_group_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("service.machine.cgroups.memory_limit", lambda: inf)
    machine = available_memory()
    assert machine > 2**28
    monkeypatch.setattr("service.machine.cgroups.memory_limit", lambda: 2.0**28)
    assert available_memory() == 2**28


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no thread is put on a core")
def test_a_thread_is_told_the_core_that_it_is_on() -> None:
    assert this_core() in os.sched_getaffinity(0)


@pytest.mark.parametrize("getcpu", [None, lambda: -1])
def test_a_core_that_nobody_tells_is_none(
    getcpu: Callable[[], int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "_getcpu", getcpu)
    assert this_core() is None
