"""The threads that work for the event loop."""

import asyncio
import os
import sys
import threading
import time
import weakref
from math import inf

import pytest

from service.engine.threads import StrayError, ThreadPool
from service.errors import ThreadLostError
from tests.support import PATIENCE_S
from tests.support.service.client import until

pytestmark = pytest.mark.anyio


async def test_a_job_runs_in_a_thread_and_its_result_comes_back() -> None:
    pool = ThreadPool("test", 1)
    ident = await pool.run(lambda _: threading.get_ident(), None)
    assert ident != threading.get_ident()
    assert await pool.run(str.upper, "a") == "A"
    pool.close()


async def test_jobs_start_in_order_and_run_side_by_side() -> None:
    pool = ThreadPool("test", 2)
    started: list[int] = []
    meeting = threading.Barrier(2)

    def meet(n: int) -> int:
        started.append(n)
        meeting.wait(PATIENCE_S)
        return n

    assert await asyncio.gather(*[pool.run(meet, n) for n in range(6)]) == list(range(6))
    assert {frozenset(started[i : i + 2]) for i in (0, 2, 4)} == {
        frozenset({0, 1}),
        frozenset({2, 3}),
        frozenset({4, 5}),
    }
    pool.close()


def fail(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("error", [ValueError("no"), MemoryError(), RecursionError()])
async def test_what_a_job_raises_goes_to_who_waits_and_the_thread_lives_on(
    error: BaseException,
) -> None:
    pool = ThreadPool("test", 1)
    ident = await pool.run(lambda _: threading.get_ident(), None)
    with pytest.raises(type(error)) as caught:
        await pool.run(fail, error)
    assert caught.value is error
    assert await pool.run(lambda _: threading.get_ident(), None) == ident
    pool.close()


@pytest.mark.parametrize("threads", [0, 1])
@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        StopIteration(),
        asyncio.CancelledError(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_what_would_end_a_process_or_a_task_is_just_an_error_of_the_job(
    threads: int, error: BaseException
) -> None:
    pool = ThreadPool("test", threads)
    with pytest.raises(StrayError, match=type(error).__name__) as caught:
        await pool.run(fail, error)
    assert caught.value.__cause__ is error
    assert await pool.run(abs, -1) == 1
    pool.close()


async def test_a_job_cancelled_before_its_turn_is_never_run() -> None:
    pool = ThreadPool("test", 1)
    gate = threading.Event()
    ran: list[int] = []
    first = pool.run(lambda _: gate.wait(PATIENCE_S), None)
    second = pool.run(ran.append, 2)
    third = pool.run(ran.append, 3)
    second.cancel()
    await asyncio.sleep(0)  # the event loop tells the job
    gate.set()
    await asyncio.gather(first, third)
    assert ran == [3]
    pool.close()


async def test_a_job_cancelled_while_it_runs_ends_unnoticed() -> None:
    pool = ThreadPool("test", 1)
    started, gate = threading.Event(), threading.Event()

    def wait(_: None) -> None:
        started.set()
        gate.wait(PATIENCE_S)

    job = pool.run(wait, None)
    await until(started.is_set)
    job.cancel()
    gate.set()
    assert await pool.run(abs, -1) == 1
    pool.close()


async def test_an_idle_thread_keeps_nothing_of_its_last_job() -> None:
    class Picture:
        pass

    pool = ThreadPool("test", 1)
    picture = Picture()
    gone = weakref.ref(picture)
    await pool.run(id, picture)
    del picture
    await until(lambda: gone() is None)
    pool.close()


async def test_closed_threads_finish_their_jobs_and_end() -> None:
    def alive() -> int:
        return sum(thread.name.startswith("ending-") for thread in threading.enumerate())

    pool = ThreadPool("ending", 3)
    assert alive() == 3
    jobs = [pool.run(time.sleep, 0.01) for _ in range(6)]
    pool.close()
    await asyncio.gather(*jobs)
    await until(lambda: not alive())


def test_a_job_that_outlives_its_loop_harms_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    pool = ThreadPool("test", 1)
    gate = threading.Event()

    async def leave() -> None:
        pool.run(lambda _: gate.wait(PATIENCE_S), None)

    asyncio.run(leave())
    gate.set()
    assert asyncio.run(use(pool)) == 1
    assert "Traceback" not in capsys.readouterr().err
    pool.close()


async def use(pool: ThreadPool) -> int:
    return await pool.run(abs, -1)


# --- threads that are lost -----------------------------------------------------------------------


async def test_a_job_that_takes_too_long_is_given_up_and_its_thread_replaced() -> None:
    pool = ThreadPool("test", 1, bound_s=10_000)  # beside which real time hardly passes
    gate, ended = threading.Event(), threading.Event()

    def hang(_: None) -> str:
        gate.wait(PATIENCE_S)
        ended.set()
        return "late"

    stuck, behind = pool.run(hang, None), pool.run(abs, -1)
    await begun(pool)
    pool.look(0)  # seen for the first time
    pool.look(9_800)
    assert not stuck.done()
    assert pool.lost == 0
    pool.look(300)
    with pytest.raises(ThreadLostError, match=r"stuck for 10[12]\d\d\.\d s"):
        await stuck
    assert pool.lost == 1
    assert await behind == 1
    (late,) = lost_threads()
    gate.set()
    assert ended.wait(PATIENCE_S)
    late.join(PATIENCE_S)
    assert not late.is_alive()
    assert isinstance(stuck.exception(), ThreadLostError)
    assert await pool.run(abs, -2) == 2
    pool.close()


async def test_bounds_are_of_single_jobs_in_a_thread_not_of_their_wait_for_one() -> None:
    pool = ThreadPool("test", 1, bound_s=10_000)
    for _ in range(3):
        gate = threading.Event()
        job, waiting = pool.run(gate.wait, PATIENCE_S), pool.run(abs, -1)
        await begun(pool)
        for seconds in (0, 6_000):
            pool.look(seconds)
        gate.set()
        assert await job
        assert await waiting == 1
    assert pool.lost == 0
    pool.close()


async def test_a_job_may_have_a_bound_of_its_own_and_time_does_the_looking() -> None:
    pool = ThreadPool("test", 2)
    gate = threading.Event()
    patient, hasty = pool.run(gate.wait, PATIENCE_S), pool.run(gate.wait, PATIENCE_S, 0.02)
    with pytest.raises(ThreadLostError):
        await hasty
    assert not patient.done()
    gate.set()
    assert await patient
    pool.close()


async def test_a_stuck_thread_that_is_not_replaced_does_what_is_behind_once_it_is_free() -> None:
    pool = ThreadPool("test", 1, bound_s=0.02, replaced=False)
    gate = threading.Event()
    stuck = pool.run(gate.wait, PATIENCE_S)
    with pytest.raises(ThreadLostError):
        await stuck
    behind = pool.run(abs, -1, inf)
    await asyncio.sleep(0)
    assert not behind.done()
    assert pool.lost == 0
    gate.set()
    assert await behind == 1
    pool.close()


async def test_a_thread_that_died_is_replaced_and_its_job_is_an_error() -> None:
    pool = ThreadPool("test", 1, bound_s=PATIENCE_S)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("threading.excepthook", lambda _: None)
        patch.setattr("service.engine.threads.outcome_of", lambda *_: fail(SystemExit()))
        (thread,) = pool._threads
        job = pool.run(abs, -1)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    behind = pool.run(abs, -2)
    pool.look(0)
    with pytest.raises(ThreadLostError, match="died"):
        await job
    assert await behind == 2
    assert pool.lost == 1
    pool.close()


async def test_a_thread_that_cannot_be_replaced_at_once_is_replaced_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pool = ThreadPool("test", 1, bound_s=0.05)
    gate = threading.Event()
    stuck = pool.run(gate.wait, PATIENCE_S)
    await begun(pool)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda _: fail(RuntimeError("no thread")))
        with pytest.raises(ThreadLostError, match="stuck"):
            await stuck
        behind = pool.run(abs, -1, inf)
        async with asyncio.timeout(PATIENCE_S):
            while "not replaced yet: no thread" not in caplog.text:
                await asyncio.sleep(0.01)
        assert not behind.done()
        waiting = pool.run(abs, -2)  # with a bound, so that the pool looks after its threads
    assert await asyncio.wait_for(behind, PATIENCE_S) == 1
    assert await asyncio.wait_for(waiting, PATIENCE_S) == 2
    assert pool.lost == 1
    gate.set()
    pool.close()


async def test_who_left_does_not_keep_a_stuck_thread_from_being_replaced() -> None:
    pool = ThreadPool("test", 1, bound_s=0.02)
    gate = threading.Event()
    stuck = pool.run(gate.wait, PATIENCE_S)
    await begun(pool)
    stuck.cancel()
    assert await pool.run(abs, -1, inf) == 1
    assert pool.lost == 1
    gate.set()
    pool.close()


async def test_time_in_which_the_whole_process_stood_still_is_nobodys_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("service.engine.threads.monotonic", lambda: clock[0])
    pool = ThreadPool("test", 1, bound_s=4)
    gate = threading.Event()
    job = pool.run(gate.wait, PATIENCE_S)
    await begun(pool)
    loop = asyncio.get_running_loop()
    for hours in range(3):  # frozen for an hour between any two looks
        clock[0] += 3600 * hours
        pool._on_timer(loop)
    assert not job.done()
    gate.set()
    assert await job
    pool.close()


async def begun(pool: ThreadPool) -> None:
    """Wait until the first thread has started a job."""
    await until(lambda: pool._threads[0].job is not None)


def lost_threads() -> list[threading.Thread]:
    return [
        thread
        for thread in threading.enumerate()
        if thread.name.startswith("test-") and getattr(thread, "lost", False)
    ]


async def test_a_thread_that_ended_as_it_was_told_is_not_missed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pool = ThreadPool("ended", 2, bound_s=PATIENCE_S)
    await pool.run(str.upper, "a")
    pool.close()
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("ended-")]
    for thread in threads:
        thread.join(PATIENCE_S)
    pool.look(0.1)  # as a timer that was set before does
    assert pool.lost == 0
    assert not caplog.records


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities of threads")
async def test_nice_threads_give_way_and_no_others() -> None:
    def niceness(_: None) -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    here = niceness(None)
    pool = ThreadPool("test", 1, nice=2)
    assert await pool.run(niceness, None) == min(here + 2, 19)
    assert niceness(None) == here


async def test_a_listener_that_raises_costs_no_other_job_its_bound() -> None:
    logged: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
    pool = ThreadPool("test", 1, bound_s=0.05)
    fault = ZeroDivisionError()
    gate = threading.Event()
    pool.post(lambda _: gate.wait(PATIENCE_S), None, lambda _result, _error: fail(fault))
    with pytest.raises(ThreadLostError):
        await pool.run(lambda _: gate.wait(PATIENCE_S), None)
    assert [context["exception"] for context in logged] == [fault]
    assert pool.lost == 2
    gate.set()
    pool.close()
