"""A server's processes, from their start to their end, and the operating system's counters for
them."""

import os
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from benchmarks.peers import processes
from benchmarks.peers.processes import Running, StartError, Usage, members, running
from benchmarks.serving.http_client import free_port
from tests.support.benchmarks.stand_in import ask, run


def test_a_server_and_its_stubborn_children_end_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "STOP_S", 0.5)
    with run(tmp_path / "peer", stubborn=str(tmp_path / "pid")) as server:
        assert ask(server)
        child = int((tmp_path / "pid").read_text())
        assert os.getsid(child) == server.session != os.getsid(0)
        assert child in server.pids()
        assert server.start_s > 0
    assert members(server.session) == []
    with pytest.raises(OSError, match="refused"):
        ask(server)


def test_a_server_that_is_stopped_ends_too(tmp_path: Path) -> None:
    with run(tmp_path) as server:
        server.pause()
    assert members(server.session) == []


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_stopped_server_takes_no_time_and_goes_on(tmp_path: Path) -> None:
    with run(tmp_path) as server:
        ask(server)
        server.pause()
        while set(map(state, server.pids())) != {"T"}:
            time.sleep(0.01)
        before = server.usage()
        time.sleep(0.1)
        assert server.usage().cpu_s_since(before) == 0
        server.resume()
        assert ask(server)


def test_a_server_that_dies_at_its_start_is_told_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"it ended with 1; .*not to my taste"):
        run(tmp_path, dies=True).__enter__()


def test_a_server_that_never_answers_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"no answer in 0\.3 s"):
        run(tmp_path, start_s=0.3, never=True).__enter__()


# Two processes, one with two threads, whose work the test knows.
BUSY = """
import os, sys, threading, time

def spend(seconds):
    begun = time.thread_time()
    while time.thread_time() - begun < seconds:
        pass

if os.fork() == 0:
    os.setsid()  # as BentoML's workers do
else:
    thread = threading.Thread(target=time.sleep, args=(60,))
    thread.start()
go = sys.argv[1]
while not os.path.exists(go):
    time.sleep(0.01)
other = threading.Thread(target=spend, args=(0.3,))  # it ends before it is counted
other.start()
other.join()
spend(0.3)
open(f"{go}.{os.getpid()}", "w").close()
time.sleep(60)
"""


def busy(folder: Path) -> AbstractContextManager[Running]:
    command = [sys.executable, "-c", BUSY, str(folder / "go")]
    return running(command, {}, folder, free_port(), lambda _: True)


def test_what_all_processes_and_threads_use_is_counted(tmp_path: Path) -> None:
    with busy(tmp_path) as server:
        while server.usage().threads < 3:
            time.sleep(0.01)
        before = server.usage()
        (tmp_path / "go").touch()
        while len(list(tmp_path.glob("go.*"))) < 2:
            time.sleep(0.01)
        after = server.usage()
        sessions = {os.getsid(pid) for pid in server.pids()}
        assert len(sessions) == len(server.pids()) == 2
        spent = after.cpu_s_since(before)
        assert 1.2 <= spent < 1.7, "0.3 s in a thread that ended and 0.3 s in the first, of both"
        assert after.switches_since(before) > 0
        assert 5 < after.memory_mb < 100
    assert members(*sessions) == []


def test_a_process_that_begins_in_between_counts_from_its_begin() -> None:
    before = Usage({1: 5_000_000_000}, {1: 10}, 1)
    after = Usage({1: 6_000_000_000, 2: 500_000_000}, {1: 12, 2: 3}, 1)
    assert after.cpu_s_since(before) == 1.5
    assert after.switches_since(before) == 5
