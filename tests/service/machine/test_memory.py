"""Near a memory limit, new bodies are refused and cached memory is released."""

import asyncio
import ctypes
import gc
import resource
import shutil
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.hosting.recent import Recent
from service.machine.cgroups import memory_share
from service.machine.memory import (
    NEAR,
    MemoryPressure,
    Slack,
    address_share,
    give_back_free_memory,
    give_back_garbage,
    resident_bytes,
)
from tests.service.edge.test_edge import convoy
from tests.support import PATIENCE_S
from tests.support.servers.listening import get, post
from tests.support.service.client import until
from tests.support.service.fakes import FakeEngine, make_repository


def group(folder: Path, files: dict[str, str]) -> Path:
    """Create a version 2 control group, whose parent has no limit. Return the file that names the
    group."""
    inner = folder / "mount" / "pod" / "convoy"
    inner.mkdir(parents=True)
    for name, text in files.items():
        (inner / name).write_text(text)
    names = folder / "cgroup"
    names.write_text("0::/pod/convoy\n")
    return names


@pytest.mark.parametrize(
    ("files", "share"),
    [
        (
            {
                "memory.max": "1000",
                "memory.current": "950",
                "memory.stat": "anon 500\nactive_file 100\ninactive_file 250\n",
            },
            0.6,
        ),
        ({"memory.max": "max", "memory.current": "950", "memory.stat": "anon 1\n"}, 0.0),
        ({}, 0.0),
    ],
)
def test_the_share_of_a_groups_limit_is_what_cannot_be_dropped(
    tmp_path: Path, files: dict[str, str], share: float
) -> None:
    names = group(tmp_path, files)
    assert memory_share(names, tmp_path / "mount") == pytest.approx(share)


def test_the_groups_are_found_again_only_if_one_is_removed(tmp_path: Path) -> None:
    """Finding them takes a millisecond of the event loop."""
    files = {"memory.max": "1000", "memory.current": "500", "memory.stat": "anon 500\n"}
    names, mount = group(tmp_path, files), tmp_path / "mount"
    assert memory_share(names, mount) == 0.5
    other = mount / "other"
    other.mkdir()
    for name, text in (files | {"memory.current": "700"}).items():
        (other / name).write_text(text)
    names.write_text("0::/other\n")
    (mount / "pod" / "convoy" / "memory.current").write_text("600")
    assert memory_share(names, mount) == 0.6
    shutil.rmtree(mount / "pod")
    assert memory_share(names, mount) == 0.0
    assert memory_share(names, mount) == 0.7


def test_a_limit_counts_again_after_there_were_no_files_left(tmp_path: Path) -> None:
    files = {"memory.max": "1000", "memory.current": "500", "memory.stat": "anon 500\n"}
    names, mount = group(tmp_path, files), tmp_path / "mount"
    assert memory_share(names, mount) == 0.5
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
        assert [memory_share(names, mount) for _ in range(3)] == [0.0] * 3
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert memory_share(names, mount) == 0.5


def test_a_limit_on_addresses_counts() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    assert address_share() == 0 or before[0] != resource.RLIM_INFINITY
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    try:
        resource.setrlimit(resource.RLIMIT_AS, (int(used * 1.05), before[1]))
        assert MemoryPressure().is_short()
        resource.setrlimit(resource.RLIMIT_AS, (used * 3, before[1]))
        assert 0.2 < address_share() < 0.5
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_it_is_looked_at_now_and_then_and_told_once() -> None:
    moment, share, told = [0.0], [0.5], [0]

    def tell() -> None:
        told[0] += 1

    pressure = MemoryPressure([lambda: 0.0, lambda: share[0]], tell, lambda: moment[0])
    assert not pressure.is_short()
    share[0] = NEAR
    assert not pressure.is_short()  # not yet looked at again
    for _ in range(3):
        moment[0] += 1
        assert pressure.is_short()
    assert told == [1]
    share[0] = NEAR - 0.01
    moment[0] += 1
    assert not pressure.is_short()


def looks(slack: Slack, count: int, used: int = 1000) -> list[int]:
    """Return the numbers of the looks, of `count` in total, after which memory is given back."""
    return [number for number in range(1, count + 1) if slack.is_worth_it(used)]


def test_what_is_free_is_given_back_once_much_was_used_and_little_is() -> None:
    resident = [100e6]
    slack = Slack(lambda: int(resident[0]))
    assert not slack.is_worth_it(0)
    resident[0] = 107e6
    assert not looks(slack, 2)  # too little
    resident[0] = 150e6
    assert not looks(slack, 2, 5_000_000)  # it is in use
    assert looks(slack, 1) == [1]
    resident[0] = 130e6  # the rest is in use, or not to be had
    assert looks(slack, 6) == [4]
    resident[0] = 101e6
    assert not slack.is_worth_it(1000)
    resident[0] = 111e6
    assert looks(slack, 2) == [2]  # once it grows no more


@pytest.mark.parametrize(
    ("grown", "used", "given"),
    [
        (2**23, 0, [2]),
        (2**23 - 1, 0, []),
        (2**23, 2**22, [2]),
        (2**23, 2**22 + 1, []),
    ],
)
def test_what_is_exactly_enough_growth_and_exactly_little_use(
    grown: int, used: int, given: list[int]
) -> None:
    resident = [100_000_000]
    slack = Slack(lambda: resident[0])
    assert not slack.is_worth_it(0)
    resident[0] += grown
    assert looks(slack, 3, used) == given


@pytest.mark.parametrize(("more", "given"), [(2**20, [1]), (2**20 + 1, [2])])
def test_memory_that_hardly_grows_does_not_grow(more: int, given: list[int]) -> None:
    resident = [100_000_000]
    slack = Slack(lambda: resident[0])
    assert not slack.is_worth_it(0)
    resident[0] += 2**24
    assert not slack.is_worth_it(0)
    resident[0] += more
    assert looks(slack, 2) == given


def test_what_gets_free_after_it_was_given_back_is_given_back_too() -> None:
    resident = [100e6]
    slack = Slack(lambda: int(resident[0]))
    assert not slack.is_worth_it(50_000_000)
    resident[0] = 190e6
    assert looks(slack, 2) == [2]
    resident[0] = 180e6  # a library holds the rest for a moment
    assert looks(slack, 1000) == [4, 9, 19, 39, 79, 159]  # then it is in use: a model, say
    assert not slack.is_worth_it(50_000_000)
    assert looks(slack, 9) == [5]


def test_growth_that_is_in_no_account_is_given_back_whenever_it_was_given_back_before() -> None:
    resident = [100e6]
    slack = Slack(lambda: int(resident[0]))
    for _ in range(20):
        slack.is_worth_it(0)
    for most in (135e6, 134e6, 140e6):  # a look finds it in the middle of something
        resident[0] = most
        assert not slack.is_worth_it(0)
        resident[0] = 134e6
        slack.is_worth_it(0)
    assert looks(slack, 6)


def test_growth_that_is_in_no_account_is_given_back_however_long_nothing_grew_before() -> None:
    resident = [100e6]
    slack = Slack(lambda: int(resident[0]))
    assert not slack.is_worth_it(0)
    resident[0] = 120e6  # a model, say
    assert looks(slack, 200) == [2, 6, 11, 21, 41, 81, 161]
    resident[0] = 160e6
    assert not slack.is_worth_it(3_000_000)
    resident[0] = 150e6  # the rest is in use at this look
    assert looks(slack, 1, 3_000_000) == [1]
    resident[0] = 154e6
    assert not slack.is_worth_it(3_000_000)
    assert looks(slack, 9) == [5]


_FAULTS_OF_BODIES = """
from resource import RUSAGE_SELF, getrusage
from service.machine.memory import keep_free_memory

def take_and_free():
    before = getrusage(RUSAGE_SELF).ru_minflt
    bodies = [b"x" * (100_000 + each) for each in range(20)]
    return getrusage(RUSAGE_SELF).ru_minflt - before

keep_free_memory()
take_and_free()
print(max(take_and_free() for _ in range(5)))
"""


def test_bodies_are_read_into_memory_that_was_freed_before() -> None:
    # A process of its own: other tests' blocks may lie behind the freed ones.
    command = [sys.executable, "-c", _FAULTS_OF_BODIES]
    faults = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert int(faults) < 100  # of 490 pages


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="only glibc can be told to give it back"
)
def test_a_server_gives_back_what_it_does_not_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.hosting.repository._GIVE_BACK_S", 0.01)

    async def scenario() -> None:
        give_back_garbage()  # what other tests left would be used again
        repository = make_repository()
        giving = asyncio.create_task(repository.give_back_periodically())
        await asyncio.sleep(0.05)
        repository.room.taken = repository.room.most = 50_000_000
        blocks = [bytearray(b"x" * 100_000) for _ in range(500)]  # too short for maps of their own
        last = blocks[-1]  # which glibc keeps all before it for
        circle: list[Any] = blocks[::2]  # only the collector finds these
        circle.append(circle)
        del blocks, circle
        most = resident_bytes()
        await asyncio.sleep(0.05)
        assert resident_bytes() > most - 20_000_000  # what is in use is not looked through
        repository.room.taken = 0
        await until(lambda: resident_bytes() < most - 30_000_000)
        assert last
        giving.cancel()
        await repository.close(PATIENCE_S)

    gc.disable()
    try:
        asyncio.run(scenario())
    finally:
        gc.enable()


def test_what_only_the_collector_finds_is_given_back() -> None:
    class Kept:
        def __init__(self) -> None:
            self.itself = self

    kept = Kept()
    seen = weakref.ref(kept)
    gc.disable()
    try:
        del kept
        give_back_free_memory()
        assert seen() is not None
        give_back_garbage()
        assert seen() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("direct", [True, False])
def test_while_memory_is_short_bodies_are_refused_and_all_else_is_answered(direct: bool) -> None:
    async def scenario() -> None:
        engine, share = FakeEngine(), [0.5]
        async with convoy(direct=direct, engine=engine) as server:
            repository = server.repository
            pipeline = repository.models["fake"]
            told = repository.room.pressure.on_short
            repository.room.pressure = MemoryPressure([lambda: share[0]], told)
            pipeline.recent = Recent()
            pipeline.recent.add(b"7", np.ones(3, np.float32))
            repository.room.pressure._looked = -1e9
            share[0] = 0.95
            reply = await server.ask(post(b"7"))
            assert "near its memory limit" in reply.error(503)
            assert reply.headers["retry-after"] == "1"
            assert not pipeline.recent.examples
            assert (await server.ask(get("/v2/health/ready"))).status == 200
            share[0] = 0.5
            await asyncio.sleep(0.3)
            assert (await server.ask(post(b"7"))).status == 200

    asyncio.run(scenario())
