"""When the batcher is closed, it finishes all accepted requests in bounded time."""

import asyncio
import contextlib
from collections.abc import Sequence

import pytest

from service.batching.latency import Latency
from service.errors import ShuttingDownError
from tests.support.service.desk import Desk, in_virtual_time, letters, outcomes
from tests.support.service.running import in_flight
from tests.support.service.virtual_time import now, turns, until


@in_virtual_time
async def test_close_refuses_new_work_and_finishes_what_was_accepted() -> None:
    desk = Desk(max_batch=2)
    accepted = await desk.submit("abcde")
    closing = asyncio.create_task(desk.batcher.close(timeout_s=10))
    await turns(1)
    with pytest.raises(ShuttingDownError):
        await desk.ask("f")
    await closing
    assert now() == 3
    assert letters(await accepted) == "ABCDE"


@in_virtual_time
async def test_close_keeps_to_the_largest_batch_that_was_learnt() -> None:
    desk = Desk(max_batch=4)
    desk.batcher.learn(Latency((1.0, 1.0)))
    accepted = await desk.submit("abcde")
    await desk.batcher.close(timeout_s=10)
    assert letters(await accepted) == "ABCDE"
    assert desk.batches == ["ab", "cd", "e"]


@in_virtual_time
async def test_close_fails_what_takes_longer_than_its_timeout() -> None:
    desk = Desk(max_batch=2)
    done, running, waiting = [await desk.submit(group) for group in ["a", "bc", "de"]]
    await desk.batcher.close(timeout_s=1.5)
    assert now() == 1.5
    assert (desk.batcher.depth, in_flight(desk.batcher)) == (0, 0)
    first, second, third = await outcomes(done, running, waiting)
    assert letters(first) == "A"
    assert isinstance(second, ShuttingDownError)
    assert isinstance(third, ShuttingDownError)
    assert second is not third
    assert desk.batches == ["a", "bc"]


@in_virtual_time
async def test_close_does_not_wait_for_a_run_that_resists_being_cancelled() -> None:
    async def stubborn(items: Sequence[str]) -> Sequence[str]:
        for _ in range(5):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1)
        return items

    desk = Desk(stubborn)
    tasks = [await desk.submit("a"), await desk.submit("b")]
    await desk.batcher.close(timeout_s=0)
    await desk.batcher.close()
    assert now() == 0
    ended = await outcomes(*tasks)
    assert [type(outcome) for outcome in ended] == [ShuttingDownError] * 2
    await until(10)  # its late results go nowhere
    assert desk.batches == ["a"]


@in_virtual_time
async def test_close_of_a_batcher_at_rest_returns_at_once() -> None:
    never_used, idle = Desk(), Desk()
    await idle.ask("a")
    for desk in (never_used, idle):
        await desk.batcher.close()
        await desk.batcher.close()
        with pytest.raises(ShuttingDownError):
            await desk.ask("b")
    assert now() == 1


@in_virtual_time
async def test_a_second_close_may_shorten_the_wait_of_the_first() -> None:
    desk = Desk(max_batch=1)
    task = await desk.submit("abcdefgh")
    patient = asyncio.create_task(desk.batcher.close())
    await until(2.5)
    await desk.batcher.close(timeout_s=0)
    await patient
    assert now() == 2.5
    assert isinstance((await outcomes(task))[0], ShuttingDownError)


@in_virtual_time
async def test_a_close_that_is_cancelled_leaves_the_batcher_draining() -> None:
    desk = Desk(max_batch=2)
    task = await desk.submit("abc")
    closing = asyncio.create_task(desk.batcher.close(timeout_s=1.5))
    await turns(2)
    closing.cancel()
    with pytest.raises(ShuttingDownError):
        await desk.ask("d")
    assert letters(await task) == "ABC"
