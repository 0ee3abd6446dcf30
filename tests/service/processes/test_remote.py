"""A worker's side and the engine's in one process, over a real socket: what slots go through."""

import asyncio
import random
import socket
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from service.processes.board import Board
from service.processes.memory import Memory
from service.processes.remote import Channel, RemoteRunner
from service.processes.session import Model, Session
from service.processes.slots import Slots

from models import EngineError, Images, OutputKind, Pixels, Scores
from service.batching.policy import NO_HURRY, Urgency
from service.engine.runner import EngineRunner, State
from service.errors import (
    DeadlineError,
    EngineFailedError,
    QueueFullError,
    ShuttingDownError,
)
from tests.support.service.client import until
from tests.support.service.desk import submit

SHAPE = (2, 3, 1)
CLASSES = 7


def image(tag: int) -> Pixels:
    return np.full(SHAPE, tag, np.uint8)


class TagEngine:
    """Scores that tell which picture they are of; a batch waits for the gate."""

    max_batch = 4
    classes = CLASSES
    device = "fake"
    fallback_reason = ""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.begun: list[int] = []
        self.failing = False
        self.torn = False  # whether pictures changed while a batch ran

    def warm_up(self) -> None: ...

    def run(self, images: Sequence[Images] | Images) -> Scores:
        self.begun.append(len(images))
        before = [int(each.flat[0]) for each in images]
        assert self.gate.wait(10)
        self.torn |= any((each != tag).any() for tag, each in zip(before, images, strict=True))
        if self.failing:
            raise EngineError("the device fell off the bus")
        return np.array([[tag + c for c in range(CLASSES)] for tag in before], np.float32)

    def close(self) -> None: ...


class Side:
    """One worker's side, connected."""

    def __init__(self, model: Model, board: Board, number: int, slots: int) -> None:
        memory = Memory(Slots.bytes_of(SHAPE, CLASSES, slots))
        self.channel = Channel()
        self.runner = RemoteRunner(
            self.channel,
            0,
            board.line(),
            Slots(memory.view, SHAPE, CLASSES, slots),
            OutputKind.LOGITS,
            classes=CLASSES,
            max_batch=4,
            device="fake",
        )
        theirs = Slots(memory.view, SHAPE, CLASSES, slots)
        self.session = Session([(model, theirs)], lambda: None)
        self.slots = slots

    async def connect(self) -> None:
        one, other = socket.socketpair()
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: self.channel, sock=one)
        self.wire, _ = await loop.create_unix_connection(lambda: self.session, sock=other)

    async def tags(self, *tags: int, urgency: Urgency = NO_HURRY) -> list[int]:
        """Submit pictures, and what they were taken for."""
        answered = await submit(self.runner, [image(tag) for tag in tags], urgency)
        for row in answered.results:
            assert (np.diff(row.scores) == 1).all()
            assert row.ranking is not None
            assert row.ranking[0] == [6, 5, 4, 3, 2]
        assert answered.queue_s >= 0
        return [int(row.scores[0]) for row in answered.results]

    @property
    def all_free(self) -> bool:
        return self.runner.free == self.slots


@asynccontextmanager
async def sides(
    count: int = 1, *, slots: int = 8, max_queue: int = 64
) -> AsyncIterator[tuple[TagEngine, Model, list[Side]]]:
    """An engine, and workers' sides of it."""
    engine = TagEngine()
    runner = EngineRunner(
        engine, SHAPE, OutputKind.LOGITS, max_queue=max_queue, on_batch=lambda _: None
    )
    board = Board(count, 4, 4)
    model = Model(runner, board.line())
    await runner.warm_up()
    model.publish()
    every = [Side(model, board, number, slots) for number in range(count)]
    for side in every:
        await side.connect()
    try:
        yield engine, model, every
    finally:
        engine.gate.set()
        for side in every:
            side.wire.abort()
        assert await runner.close(5)
    assert not engine.torn


@pytest.mark.anyio
async def test_pictures_of_several_workers_travel_in_one_batch() -> None:
    async with sides(2) as (engine, _, (one, two)):
        engine.gate.clear()
        first = asyncio.create_task(one.tags(10))
        await until(lambda: engine.begun == [1])
        others = [asyncio.create_task(side.tags(tag)) for side, tag in ((one, 20), (two, 30))]
        several = asyncio.create_task(two.tags(40, 50))
        await until(lambda: one.runner.depth == 4)
        engine.gate.set()
        assert await first == [10]
        assert [await other for other in others] == [[20], [30]]
        assert await several == [40, 50]
        assert engine.begun == [1, 4]
        assert one.all_free
        assert two.all_free


@pytest.mark.anyio
async def test_a_slot_is_not_used_again_while_a_batch_that_nobody_wants_runs_on_it() -> None:
    async with sides(slots=2) as (engine, _, (side,)):
        engine.gate.clear()
        left = asyncio.create_task(side.tags(10, 11))
        await until(lambda: engine.begun == [2])
        left.cancel()
        await asyncio.wait([left])
        assert left.cancelled()
        await until(lambda: side.session.unended == 0)
        for _ in range(5):  # for what the engine's side may have said
            await asyncio.sleep(0.001)
        # Both slots are the engine's yet: there is no room.
        with pytest.raises(QueueFullError, match="1 images came, and there is room for 0 more"):
            await side.tags(20)
        engine.gate.set()  # it looks at its pictures again
        await until(lambda: side.all_free)
        assert await side.tags(20, 21) == [20, 21]


@pytest.mark.anyio
async def test_what_is_given_up_while_it_waits_is_never_run() -> None:
    async with sides(slots=4) as (engine, _, (side,)):
        engine.gate.clear()
        running = asyncio.create_task(side.tags(10))
        await until(lambda: engine.begun == [1])
        waiting = asyncio.create_task(side.tags(20, 21, 22))
        await until(lambda: side.runner.depth == 3)
        waiting.cancel()
        await until(lambda: side.runner.free == 3)  # while the batch runs
        assert side.runner.depth == 0
        engine.gate.set()
        assert await running == [10]
        assert engine.begun == [1]


@pytest.mark.anyio
async def test_a_batch_that_fails_fails_its_requests_and_frees_their_slots() -> None:
    async with sides(2) as (engine, _, (one, two)):
        engine.gate.clear()
        engine.failing = True
        first = asyncio.create_task(one.tags(10))
        await until(lambda: engine.begun == [1])
        both = [asyncio.create_task(side.tags(20)) for side in (one, two)]
        await until(lambda: one.runner.depth == 2)
        engine.gate.set()
        for task in (first, *both):
            with pytest.raises(EngineFailedError, match="the engine failed on this batch"):
                await task
        await until(lambda: one.all_free and two.all_free)
        engine.failing = False
        assert await one.tags(1) == [1]


@pytest.mark.anyio
async def test_the_batcher_has_the_last_word_on_room_and_deadlines() -> None:
    async with sides(max_queue=2) as (engine, _, (side,)):
        engine.gate.clear()
        running = asyncio.create_task(side.tags(10))
        await until(lambda: engine.begun == [1])
        waiting = asyncio.create_task(side.tags(20))
        await until(lambda: side.runner.depth == 1)
        with pytest.raises(QueueFullError, match="1 of at most 2 images are waiting") as full:
            await side.tags(30, 31)
        assert full.value.retry_after_s > 0
        loop_now = asyncio.get_running_loop().time()  # of the same clock, on Linux
        with pytest.raises(DeadlineError, match="its deadline passed") as late:
            await side.tags(40, urgency=Urgency(loop_now - 1))
        assert 1 <= -late.value.allowed_s < 2
        # What is on the board is enough to know this one, without asking.
        with pytest.raises(DeadlineError, match="passed"):
            side.runner.check_deadline(1, Urgency(loop_now - 1))
        side.runner.check_deadline(1, Urgency(loop_now + 100))
        assert side.runner.expected_wait_s() > 0
        engine.gate.set()
        assert [await running, await waiting] == [[10], [20]]
        await until(lambda: side.all_free)
        assert await side.tags(1, urgency=Urgency(loop_now + 100, 1)) == [1]


@pytest.mark.anyio
@pytest.mark.parametrize("priority", [255, 256, 10**9])
async def test_a_priority_may_be_any_number(priority: int) -> None:
    async with sides() as (_, _, (side,)):
        assert await side.tags(1, urgency=Urgency(inf, priority)) == [1]
        assert side.all_free


@pytest.mark.anyio
async def test_of_a_worker_that_is_gone_nothing_runs_and_others_notice_nothing() -> None:
    async with sides(2) as (engine, model, (one, two)):
        engine.gate.clear()
        running = asyncio.create_task(one.tags(10))
        await until(lambda: engine.begun == [1])
        lost = asyncio.create_task(one.tags(20, 21))
        kept = asyncio.create_task(two.tags(30))
        await until(lambda: two.runner.depth == 3)
        one.wire.abort()
        for task in (running, lost):
            with pytest.raises(ShuttingDownError, match="the engine's process ended"):
                await task
        assert one.runner.state is State.DRAINING
        with pytest.raises(ShuttingDownError):
            await one.tags(1)
        await until(lambda: two.runner.depth == 1)
        engine.gate.set()
        assert await kept == [30]
        assert engine.begun == [1, 1]
        assert model.runner.load.running == 0


@pytest.mark.anyio
async def test_the_board_says_how_the_model_is() -> None:
    async with sides() as (_, model, (side,)):
        assert side.runner.state.name == "READY"
        assert side.runner.latency.max_batch == 4
        assert await side.tags(1) == [1]
        assert side.runner.latency.seconds == model.runner.latency.seconds
        assert side.runner.restarts == 0
        model.runner.restarts += 2
        model.runner.refuse()
        model.publish()
        assert side.runner.restarts == 2
        assert side.runner.state.name == "DRAINING"


@pytest.mark.anyio
async def test_giving_up_answers_at_once_and_frees_the_slots_later() -> None:
    async with sides() as (engine, _, (side,)):
        engine.gate.clear()
        asked = asyncio.create_task(side.tags(10, 11))
        await until(lambda: engine.begun == [2])
        assert await side.runner.close(1)
        with pytest.raises(ShuttingDownError, match="shut down before this was done"):
            await asked
        assert not side.all_free
        engine.gate.set()
        await until(lambda: side.all_free)


@pytest.mark.anyio
async def test_a_picture_of_another_shape_is_refused_and_takes_no_slot() -> None:
    async with sides() as (_, __, (side,)):
        with pytest.raises(ValueError, match="an image of shape"):
            await submit(side.runner, [image(1), np.zeros((1, 1, 1), np.uint8)])
        assert side.all_free
        assert (await submit(side.runner, [])).results == []


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_whatever_is_submitted_left_and_failed_no_result_is_anothers(seed: int) -> None:
    """Many clients of three workers, some leaving, on an engine that fails now and then."""
    draw = random.Random(seed)

    async def client(engine: TagEngine, side: Side) -> None:
        for _ in range(4):
            tags = [draw.randrange(200) for _ in range(draw.choice((1, 1, 1, 2, 5)))]
            asked = asyncio.create_task(side.tags(*tags))
            if draw.random() < 0.3:
                for _ in range(draw.randrange(6)):
                    await asyncio.sleep(0)
                asked.cancel()
            engine.failing = draw.random() < 0.1
            # It left, it shared a batch that failed, or there was no room.
            with suppress(asyncio.CancelledError, EngineFailedError, QueueFullError):
                assert await asked == tags

    async def main() -> None:
        async with sides(3, slots=6) as (engine, _, every):
            await asyncio.gather(*(client(engine, side) for side in every for _ in range(3)))
            await until(lambda: all(side.all_free for side in every))

    asyncio.run(main())
