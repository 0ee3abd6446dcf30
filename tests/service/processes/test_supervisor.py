"""The main process's side of a worker that goes, or that is broken."""

import asyncio

import pytest

from service.engine.supervised_engine import State
from service.errors import ShuttingDownError
from service.processes.remote import status_of
from tests.service.processes.test_remote import sides
from tests.support.service.client import until


@pytest.mark.anyio
async def test_of_a_worker_that_is_gone_nothing_runs_and_others_notice_nothing() -> None:
    async with sides(2) as (engine, runner, (one, two)):
        engine.gate.clear()
        running = asyncio.create_task(one.tags(10))
        await until(lambda: engine.begun == [1])
        lost = asyncio.create_task(one.tags(20, 21))
        kept = asyncio.create_task(two.tags(30))
        await until(lambda: runner.batcher.depth == 3)
        one.link.wire._writer.close()  # type: ignore[union-attr]
        await until(lambda: runner.batcher.depth == 1)
        for task in (running, lost):
            with pytest.raises(ShuttingDownError, match="the engine's process ended"):
                await task
        assert one.runner.state is State.DRAINING
        with pytest.raises(ShuttingDownError):
            await one.tags(1)
        engine.gate.set()
        assert await kept == [30]
        assert engine.begun == [1, 1]


@pytest.mark.anyio
async def test_a_worker_that_asks_for_what_there_is_not_is_left() -> None:
    for message in (["submit", 1, 5, [0], 1.0, 0], ["submit", 1, 0, [99], 1.0, 0], ["submit"]):
        async with sides(2) as (_, _, (one, two)):
            one.link.wire.say(*message)
            await until(lambda one=one: one.link.lost)  # type: ignore[misc]
            assert await two.tags(3) == [3]


@pytest.mark.anyio
async def test_a_worker_has_the_last_status_once_it_says_so() -> None:
    async with sides(2) as (_, runner, (one, two)):
        await two.session.knows.wait()
        one.session.tell([["WARMING", *status_of(runner)[1:]]])
        assert not one.session.knows.is_set()
        await one.session.knows.wait()
        assert (one.runner.state, two.runner.state) == (State.WARMING, State.READY)
        assert (one.session.unknown, two.session.unknown) == (0, 0)
        assert two.link.wire._writer is not None
        two.link.wire._writer.close()
        two.session.tell([status_of(runner)])
        await two.session.knows.wait()  # one that is gone is not waited for
