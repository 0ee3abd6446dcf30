"""Jobs are posted to threads. The event loop waits for a job if waiting is shorter than a
handover."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from service.engine.threads import ThreadPool
from tests.service.engine.test_threads import fail
from tests.support import PATIENCE_S

pytestmark = pytest.mark.anyio


async def test_a_signal_ends_no_thread_that_waits_for_jobs() -> None:
    pool = ThreadPool("test", 1)
    thread = await pool.run(lambda _: threading.get_ident(), None)
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        for _ in range(3):
            await asyncio.sleep(0.005)  # for it to wait again
            signal.pthread_kill(thread, signal.SIGUSR1)
            async with asyncio.timeout(PATIENCE_S):
                assert await pool.run(lambda _: threading.get_ident(), None) == thread
    finally:
        signal.signal(signal.SIGUSR1, before)
    pool.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a queue opens no file")
async def test_workers_that_have_ended_leave_no_file_open() -> None:
    def files() -> int:
        return len(os.listdir("/proc/self/fd"))

    gc.collect()
    before = files()
    # Many, because threads of earlier tests may close a file meanwhile.
    pools = [ThreadPool("ends", 1) for _ in range(30)]
    for pool in pools:
        await pool.run(abs, 0)
    assert files() > before + 15
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("ends-")]
    for pool in pools:
        pool.close()
    for thread in threads:
        thread.join(PATIENCE_S)
    del pool, pools, threads, thread
    gc.collect()
    assert files() < before + 15


_ENDS_WHILE_IT_WORKS = """
import asyncio, atexit, time
from service.engine.threads import ThreadPool

async def main():
    atexit.register(time.sleep, 0.3)
    ThreadPool("test", 1).run(time.sleep, 0.1)
    await asyncio.sleep(0)

asyncio.run(main())
"""


def test_a_process_may_end_while_a_thread_works() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _ENDS_WHILE_IT_WORKS],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stderr) == (0, "")


async def test_a_short_job_that_is_waited_for_is_done_when_it_is_posted() -> None:
    pool = ThreadPool("test", 1)
    await pool.run(abs, 0)  # the thread is there
    told: list[tuple[object, object]] = []

    def then(result: object, error: object) -> None:
        told.append((result, error))

    error = ValueError("no")
    assert pool.post(abs, -1, then, patience_s=PATIENCE_S) is None
    assert pool.post(fail, error, then, patience_s=PATIENCE_S) is None
    assert told == [(1, None), (None, error)]
    assert await pool.run(abs, -2, patience_s=PATIENCE_S) == 2
    await asyncio.sleep(0.01)
    assert len(told) == 2, "once each"
    pool.close()


async def test_a_job_that_takes_longer_than_it_is_waited_for_comes_back_as_any_other() -> None:
    pool = ThreadPool("test", 1)
    gate = threading.Event()
    job = pool.run(lambda _: gate.wait(PATIENCE_S), None, patience_s=0.001)
    assert not job.done()
    gate.set()
    assert await job
    pool.close()


def may_run_on(_: object) -> set[int]:
    return os.sched_getaffinity(0)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no thread is put on a core")
async def test_a_thread_is_on_the_event_loop_s_core_only_while_that_waits_for_it() -> None:
    pool = ThreadPool("test", 1)
    anywhere = may_run_on(None)
    kept = await pool.run(may_run_on, None, patience_s=PATIENCE_S)
    assert len(kept) == 1
    assert kept <= anywhere
    assert await pool.run(may_run_on, None) == anywhere
    gate = threading.Event()
    await pool.run(abs, 0, patience_s=PATIENCE_S)
    longer = pool.run(
        lambda _: (gate.wait(PATIENCE_S), may_run_on(None))[1], None, patience_s=0.001
    )
    assert not longer.done()
    gate.set()
    assert await longer == anywhere
    assert may_run_on(None) == anywhere
    # Not everywhere, where the event loop itself may not run everywhere.
    os.sched_setaffinity(0, {min(anywhere)})
    try:
        await pool.run(abs, 0, patience_s=PATIENCE_S)
        assert await pool.run(may_run_on, None) == {min(anywhere)}
    finally:
        os.sched_setaffinity(0, anywhere)
    pool.close()


async def test_a_thread_that_cannot_be_put_on_a_core_works_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_core: int | None, _thread: int) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr("service.engine.threads.keep_on", refuse)
    pool = ThreadPool("test", 1)
    assert await pool.run(abs, -1, patience_s=PATIENCE_S) == 1
    assert await pool.run(abs, -2) == 2
    pool.close()


@pytest.mark.parametrize("round_", range(20))
async def test_a_job_is_told_once_whoever_gives_up_first(round_: int) -> None:
    """Each job ends at about the same time as the wait for it."""
    pool = ThreadPool("test", 1)
    told: list[object] = []
    jobs = 20
    for number in range(jobs):
        patience_s = (round_ + 1) * 1e-5
        pool.post(time.sleep, patience_s, lambda _r, _e: told.append(None), None, patience_s)
        await asyncio.sleep(0.0005 if number % 2 else 0)
    await pool.run(abs, 0)
    assert len(told) == jobs
    pool.close()


async def test_a_job_that_is_waited_for_behind_a_stuck_one_is_given_up_in_time() -> None:
    pool = ThreadPool("test", 1, replaced=False)
    gate = threading.Event()
    stuck = pool.run(lambda _: gate.wait(PATIENCE_S), None)
    behind = pool.run(abs, -1, patience_s=0.001)
    assert not behind.done()
    gate.set()
    assert await stuck
    assert await behind == 1
    pool.close()
