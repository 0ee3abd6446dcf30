"""A worker's side and the main process's in one process, over a real socket."""

import asyncio
import inspect
import random
import socket
import threading
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models import (
    PLACE_BYTES,
    Batch,
    DecodedImage,
    Engine,
    EngineError,
    Interpolation,
    JpegImage,
    Kind,
    OutputKind,
    Pixels,
    Precision,
    Resize,
    Results,
    kind_of,
    read_jpeg,
)
from service import errors
from service.batching.batcher import Batcher
from service.batching.policy import NO_HURRY, Urgency
from service.engine.ranking import NOT_DECODED
from service.engine.runner import EngineRunner
from service.engine.supervised_engine import State
from service.errors import (
    DeadlineError,
    EngineFailedError,
    QueueFullError,
    RetryableError,
    ServiceError,
    ShuttingDownError,
)
from service.processes.remote import Link, RemoteRunner, _error, status_of
from service.processes.shared import Memory, ModelFacts, SharedModel
from service.processes.supervisor import Session
from service.processes.wire import Wire
from tests.support.kernels.jpegs import encoded, parts_of, scene
from tests.support.service.client import until
from tests.support.service.desk import submit
from tests.support.service.fakes import decode_digit, fake_info

SHAPE = (2, 3, 1)
CLASSES = 7


def image(tag: int) -> Pixels:
    return np.full(SHAPE, tag, np.uint8)


def decoded(tag: int) -> DecodedImage:
    """An image that is twice as large and is to be resized."""
    resize = Resize(
        size=(3, 2),
        box=(0.0, 0.0, 6.0, 4.0),
        crop=(0, 0, 3, 2),
        interpolation=Interpolation.BOX,
        x_reversed=False,
        y_reversed=False,
        transposed=False,
        frame=(3, 2),
        channels=(0,),
        paper=(0,),
    )
    return DecodedImage(np.full((4, 6, 1), tag, np.uint8), resize)


class TagEngine:
    """Scores that tell which image they are of; a batch waits for the gate."""

    max_batch = 4
    classes = CLASSES
    device = "fake"
    precision = Precision.FP32
    fallback_reason = ""
    layers = "2 of 3 layers on integers; in float: last"
    takes = Kind.TENSOR
    on_cpu = True

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.begun: list[int] = []
        self.kinds: list[list[Kind]] = []
        self.flags: list[int] | None = None
        self.last: Any = ()
        self.failing = False

    def warm_up(self) -> Engine:
        return self

    def run(self, images: Batch, inner: Collection[str] = ()) -> Results:
        self.begun.append(len(images))
        self.kinds.append([kind_of(each) for each in images])
        self.last = images
        assert self.gate.wait(10)
        tags = [int(np.ravel(each)[0]) for each in images]
        if self.failing:
            raise EngineError("the device fell off the bus")
        scores = [[tag + c for c in range(CLASSES)] for tag in tags]
        own = np.repeat(np.array(tags, np.float32), 2).reshape(-1, 2)
        flags = None if self.flags is None else np.array(self.flags, np.int32)
        named = dict.fromkeys(inner, -own)
        return Results(np.array(scores, np.float32), inner=named, flags=flags)

    def close(self) -> None: ...


class Side:
    """One worker's side, connected."""

    def __init__(
        self, runner: EngineRunner, shared: SharedModel, model: ModelFacts, worker: int
    ) -> None:
        ours, theirs = socket.socketpair()
        self.link = Link(Wire(theirs))
        self.runner = RemoteRunner(self.link, model, shared, worker)
        self.session = Session(Wire(ours), worker, [(runner, shared)])
        self.drains = 0
        self._main = runner
        self._slots = model.max_images

    async def connect(self) -> None:
        started = asyncio.Event()
        status = [status_of(self._main)]
        self.serving = asyncio.create_task(self.session.serve(status, started.set))
        commands = {"status": lambda: self.link.wire.say("listening"), "drain": self.on_drain}
        self.following = asyncio.create_task(self.link.follow(commands))
        await started.wait()

    def on_drain(self) -> None:
        self.drains += 1

    async def tags(self, *tags: int, urgency: Urgency = NO_HURRY) -> list[int]:
        """Submit images, and what they were taken for."""
        answered = await submit(self.runner, [image(tag) for tag in tags], urgency)
        for row in answered.results:
            assert (np.diff(row.scores) == 1).all()
            assert row.ranking is not None
            assert row.ranking[0] == [6, 5, 4, 3, 2]
        assert answered.queue_s >= 0
        return [int(row.scores[0]) for row in answered.results]

    @property
    def depth(self) -> int:
        return self._main.batcher.depth

    @property
    def all_free(self) -> bool:
        return sorted(self.runner.free) == list(range(self._slots))


@asynccontextmanager
async def sides(
    count: int = 1, *, slots: int = 8, takes: Kind = Kind.TENSOR
) -> AsyncIterator[tuple[TagEngine, EngineRunner, list[Side]]]:
    """An engine, and workers' sides of it."""
    engine = TagEngine()
    engine.takes = takes
    runner = EngineRunner([engine], SHAPE, OutputKind.LOGITS, on_batch=lambda _: None)
    info = replace(fake_info(), image_shape=SHAPE)
    model = ModelFacts(info, decode_digit, slots, CLASSES, 4, "fake", "fp32", takes)  # type: ignore[arg-type]
    shared = SharedModel(Memory(), count, model, 4)
    await runner.warm_up()
    every = [Side(runner, shared, model, number) for number in range(count)]
    for side in every:
        await side.connect()
    try:
        yield engine, runner, every
    finally:
        engine.gate.set()
        for side in every:
            side.following.cancel()
            await side.serving  # as the other end is gone
        assert await runner.close(5)


@pytest.mark.anyio
async def test_images_of_several_workers_travel_in_one_batch() -> None:
    async with sides(2) as (engine, _, (one, two)):
        engine.gate.clear()
        first = asyncio.create_task(one.tags(10))
        await until(lambda: engine.begun == [1])
        others = [asyncio.create_task(side.tags(tag)) for side, tag in ((one, 20), (two, 30))]
        several = asyncio.create_task(two.tags(40, 50))
        await until(lambda: one.depth == 4)
        engine.gate.set()
        assert await first == [10]
        assert [await other for other in others] == [[20], [30]]
        assert await several == [40, 50]
        assert engine.begun == [1, 4]
        assert one.all_free
        assert two.all_free


@pytest.mark.anyio
async def test_values_inside_the_network_come_to_the_worker_that_wants_them() -> None:
    async with sides() as (_, _, (side,)):
        posted: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        images = [image(20), image(30)]
        side.runner.post(images, posted.set_result, inner=["features"])
        plain = await side.tags(10)
        rows = (await posted).results
    assert plain == [10]
    assert [row.inner["features"].tolist() for row in rows] == [[-20, -20], [-30, -30]]
    assert [row.scores[0] for row in rows] == [20, 30]


@pytest.mark.anyio
async def test_a_slot_is_used_again_once_the_batch_that_reads_it_has_ended() -> None:
    async with sides(slots=3) as (engine, _, (side,)):
        engine.gate.clear()
        left = asyncio.create_task(side.tags(10, 11))
        await until(lambda: engine.begun == [2])
        left.cancel()
        await asyncio.wait([left])
        assert left.cancelled()
        others = asyncio.create_task(side.tags(20))
        await until(lambda: side.depth == 1)
        assert side.runner.free == []
        with pytest.raises(QueueFullError, match="images of withdrawn requests still run"):
            await side.tags(30)
        engine.gate.set()
        assert await others == [20]
        assert side.all_free
        assert engine.begun == [2, 1]


@pytest.mark.anyio
async def test_decoded_images_lie_in_slots_of_their_own_and_share_a_batch_with_pixels() -> None:
    async with sides(slots=3, takes=Kind.DECODED) as (engine, _, (side,)):
        await until(lambda: side.runner.takes is Kind.DECODED)
        posted: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        side.runner.post([image(20), decoded(30), image(40)], posted.set_result)
        assert [row.scores[0] for row in (await posted).results] == [20, 30, 40]
        assert engine.kinds == [[Kind.PIXELS, Kind.DECODED, Kind.PIXELS]]
        assert await side.tags(5, 6, 7) == [5, 6, 7]
        assert side.all_free
        engine.takes = Kind.TENSOR
        side.session.tell([status_of(side._main)])
        await until(lambda: side.runner.takes is Kind.TENSOR)


@pytest.mark.anyio
async def test_files_arrive_as_a_device_reads_them_and_their_flags_come_back() -> None:
    data = encoded(scene(40, 30)[..., 0])
    file = JpegImage(read_jpeg(parts_of(data)), 8, decoded(1).resize)
    place = np.zeros(PLACE_BYTES, np.uint8)
    file.write(place)
    async with sides(slots=3, takes=Kind.JPEG) as (engine, _, (side,)):
        await until(lambda: side.runner.takes is Kind.JPEG)
        posted: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        engine.flags = [0, 0, 5]
        side.runner.post([file, image(20), file], posted.set_result)
        assert [row.flags for row in (await posted).results] == [0, 0, 5]
        assert engine.kinds == [[Kind.JPEG, Kind.PIXELS, Kind.JPEG]]
        written = np.zeros(PLACE_BYTES, np.uint8)
        engine.last[2].write(written)
        assert written.tobytes() == place.tobytes()
        engine.flags = None
        posted = asyncio.get_running_loop().create_future()
        side.runner.post([file], posted.set_result)
        assert [row.flags for row in (await posted).results] == [NOT_DECODED]


@pytest.mark.anyio
async def test_what_is_given_up_while_it_waits_is_never_run() -> None:
    async with sides(slots=4) as (engine, _, (side,)):
        engine.gate.clear()
        running = asyncio.create_task(side.tags(10))
        await until(lambda: engine.begun == [1])
        waiting = asyncio.create_task(side.tags(20, 21, 22))
        await until(lambda: side.depth == 3)
        waiting.cancel()
        await until(lambda: side.depth == 0)
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
        await until(lambda: one.depth == 2)
        engine.gate.set()
        for task in (first, *both):
            with pytest.raises(EngineFailedError, match="the engine failed on this batch"):
                await task
        await until(lambda: one.all_free and two.all_free)
        engine.failing = False
        assert await one.tags(1) == [1]


@pytest.mark.anyio
async def test_the_batcher_has_the_last_word_on_deadlines() -> None:
    async with sides() as (engine, _, (side,)):
        engine.gate.clear()
        running = asyncio.create_task(side.tags(10))
        await until(lambda: engine.begun == [1])
        now = asyncio.get_running_loop().time()  # of the same clock, on Linux
        with pytest.raises(DeadlineError, match="its deadline passed") as late:
            await side.tags(40, urgency=Urgency(now - 1))
        assert 1 <= -late.value.allowed_s < 2
        assert late.value.expected_s >= 0
        # What was told of the queue is enough to know these, without asking.
        with pytest.raises(DeadlineError, match="passed"):
            side.runner.check_deadline(1, Urgency(now - 1))
        side.runner.update("READY", "", [], 3, 50.0, now + 20, 5.0, Kind.TENSOR)
        assert side.runner.expected_wait_s() == 50
        side.runner.check_deadline(1, Urgency(now + 26))
        with pytest.raises(DeadlineError):
            side.runner.check_deadline(1, Urgency(now + 24))
        engine.gate.set()
        assert await running == [10]
        assert await side.tags(1, urgency=Urgency(now + 100, 1)) == [1]


@pytest.mark.anyio
@pytest.mark.parametrize("priority", [1, 255, 10**9])
async def test_a_priority_may_be_any_number(priority: int) -> None:
    async with sides() as (_, _, (side,)):
        assert await side.tags(1, urgency=Urgency(inf, priority)) == [1]
        assert side.all_free


@pytest.mark.anyio
async def test_the_main_process_says_how_the_model_is_and_when_to_leave() -> None:
    async with sides() as (_, runner, (side,)):
        side.runner.state.check_ready()
        runner._engines[0].restarts += 2
        runner.refuse()
        side.session.wire.say("status", [status_of(runner)])
        await until(lambda: side.runner.engines == runner.engines)
        assert side.runner.engines[0].restarts == 2
        assert side.runner.state is State.DRAINING
        with pytest.raises(ShuttingDownError):
            side.runner.state.check_ready()
        side.session.wire.say("drain")
        await until(lambda: side.drains == 1)


@pytest.mark.anyio
async def test_giving_up_answers_at_once() -> None:
    async with sides() as (engine, runner, (side,)):
        engine.gate.clear()
        asked = [asyncio.create_task(side.tags(10, 11))]
        await until(lambda: engine.begun == [2])
        asked.append(asyncio.create_task(side.tags(12)))
        await until(lambda: side.depth == 1)
        assert await side.runner.close(1)
        for each in asked:
            with pytest.raises(ShuttingDownError, match="shut down before this was done"):
                await each
        await until(lambda: runner.batcher.depth == 0)
        engine.gate.set()
        await until(lambda: side.all_free)
        assert engine.begun == [2]


@pytest.mark.anyio
async def test_no_images_are_answered_too() -> None:
    async with sides() as (_, _, (side,)):
        assert (await submit(side.runner, [])).results == []


def _every_error() -> list[ServiceError]:
    kinds, found = [ServiceError], []
    for kind in kinds:
        kinds += [each for each in kind.__subclasses__() if each.__module__ == errors.__name__]
        if issubclass(kind, DeadlineError):
            found.append(kind(0.25, -0.5))
        elif issubclass(kind, RetryableError):
            found.append(kind("later", 2.5))
        else:
            found.append(kind("no"))
    return found


@pytest.mark.parametrize("error", _every_error(), ids=lambda e: type(e).__name__)
def test_every_error_arrives_as_it_was(error: ServiceError) -> None:
    told = _error(type(error).__name__, str(error), vars(error))
    assert type(told) is type(error)
    assert (str(told), told.code, vars(told)) == (str(error), error.code, vars(error))


def test_it_has_what_a_pipeline_uses_of_a_runner_and_its_batcher() -> None:
    """As the code of `service` has it: `pipeline.runner.X` and `runner.batcher.X`."""
    used = {
        EngineRunner: ("post", "warm_up", "refuse", "give_up", "close"),
        Batcher: ("expected_wait_s", "check_deadline"),
    }
    for kind, names in used.items():
        for name in names:
            wanted = inspect.signature(getattr(kind, name))
            found = inspect.signature(getattr(RemoteRunner, name))
            assert len(found.parameters) == len(wanted.parameters), name
    runner = EngineRunner([TagEngine()], SHAPE, OutputKind.LOGITS, on_batch=lambda _: None)
    model = ModelFacts(fake_info(), decode_digit, 1, CLASSES, 4, "fake", "fp32")  # type: ignore[arg-type]
    remote = RemoteRunner(Link(None), model, SharedModel(Memory(), 1, model, 4), 0)  # type: ignore[arg-type]
    for name in ("classes", "max_batch", "device", "precision", "state"):
        assert getattr(remote, name) == getattr(runner, name), name
    assert remote.batcher.depth == runner.batcher.depth


@pytest.mark.anyio
async def test_it_follows_the_engines_largest_batch_and_device() -> None:
    async with sides() as (engine, runner, (side,)):
        await until(lambda: bool(side.runner.engines))
        assert (side.runner.max_batch, side.runner.device) == (4, "fake")
        engine.max_batch, engine.device = 1, "another"
        side.runner.update(*status_of(runner))
        assert (side.runner.max_batch, side.runner.device) == (1, "another")


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
            # It left, or it shared a batch that failed.
            with suppress(asyncio.CancelledError, EngineFailedError):
                assert await asked == tags

    async def main() -> None:
        async with sides(3, slots=60) as (engine, _, every):
            await asyncio.gather(*(client(engine, side) for side in every for _ in range(3)))
            await until(lambda: all(side.all_free for side in every))

    asyncio.run(main())
