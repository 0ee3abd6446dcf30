"""The threads that work for the event loop."""

import asyncio
import threading
import time
import weakref

import pytest

from service.workers import Workers

pytestmark = pytest.mark.anyio


async def test_a_job_runs_in_a_thread_and_its_result_comes_back() -> None:
    workers = Workers("test", 1)
    ident = await workers.run(lambda _: threading.get_ident(), None)
    assert ident != threading.get_ident()
    assert await workers.run(str.upper, "a") == "A"
    workers.close()


async def test_jobs_start_in_order_and_run_side_by_side() -> None:
    workers = Workers("test", 2)
    started: list[int] = []
    meeting = threading.Barrier(2)

    def meet(n: int) -> int:
        started.append(n)
        meeting.wait(10)
        return n

    assert await asyncio.gather(*[workers.run(meet, n) for n in range(6)]) == list(range(6))
    assert {frozenset(started[i : i + 2]) for i in (0, 2, 4)} == {
        frozenset({0, 1}),
        frozenset({2, 3}),
        frozenset({4, 5}),
    }
    workers.close()


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt()])
async def test_whatever_a_job_raises_goes_to_who_waits_and_the_thread_lives_on(
    error: BaseException,
) -> None:
    def fail(_: None) -> None:
        raise error

    workers = Workers("test", 1)
    job = workers.run(fail, None)
    await asyncio.wait([job])
    assert job.exception() is error
    assert await workers.run(abs, -1) == 1
    workers.close()


async def test_a_job_cancelled_before_its_turn_is_never_run() -> None:
    workers = Workers("test", 1)
    gate = threading.Event()
    ran: list[int] = []
    first = workers.run(lambda _: gate.wait(10), None)
    second = workers.run(ran.append, 2)
    third = workers.run(ran.append, 3)
    second.cancel()
    gate.set()
    await asyncio.gather(first, third)
    assert ran == [3]
    workers.close()


async def test_a_job_cancelled_while_it_runs_ends_unnoticed() -> None:
    workers = Workers("test", 1)
    started, gate = threading.Event(), threading.Event()

    def wait(_: None) -> None:
        started.set()
        gate.wait(10)

    job = workers.run(wait, None)
    while not started.is_set():
        await asyncio.sleep(0.001)
    job.cancel()
    gate.set()
    assert await workers.run(abs, -1) == 1
    workers.close()


async def test_an_idle_thread_keeps_nothing_of_its_last_job() -> None:
    class Picture:
        pass

    workers = Workers("test", 1)
    picture = Picture()
    gone = weakref.ref(picture)
    await workers.run(id, picture)
    del picture
    for _ in range(500):
        if gone() is None:
            break
        await asyncio.sleep(0.01)
    assert gone() is None
    workers.close()


async def test_closed_threads_finish_their_jobs_and_end() -> None:
    def alive() -> int:
        return sum(thread.name.startswith("ending-") for thread in threading.enumerate())

    workers = Workers("ending", 3)
    assert alive() == 3
    jobs = [workers.run(time.sleep, 0.01) for _ in range(6)]
    workers.close()
    await asyncio.gather(*jobs)
    for _ in range(500):
        if not alive():
            break
        await asyncio.sleep(0.01)
    assert not alive()


def test_a_job_that_outlives_its_loop_harms_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    workers = Workers("test", 1)
    gate = threading.Event()

    async def leave() -> None:
        workers.run(lambda _: gate.wait(10), None)

    asyncio.run(leave())
    gate.set()
    assert asyncio.run(use(workers)) == 1
    assert "Traceback" not in capsys.readouterr().err
    workers.close()


async def use(workers: Workers) -> int:
    return await workers.run(abs, -1)
