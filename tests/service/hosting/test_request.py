"""A request to a model, independent of any protocol. It ends exactly once, and then holds no
resources."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from time import perf_counter

import numpy as np
import pytest

from models import Pixels, Serving
from service.batching.policy import DEFAULT_PRIORITY, NO_HURRY, Urgency
from service.engine.lane import Cost
from service.errors import (
    Code,
    DecoderLostError,
    EngineFailedError,
    ForbiddenError,
    PayloadTooLargeError,
    QueueFullError,
    ServiceError,
)
from service.fair_queue import ANYONE, Client
from service.hosting.pipeline import Pipeline
from service.hosting.request import ImageRequest, Outcome, Request
from service.hosting.request import _named as named
from service.images.decode_pool import Decoding
from service.telemetry.record import RequestRecord
from tests.support import PATIENCE_S
from tests.support.service.client import until
from tests.support.service.fakes import FakeEngine, decode_digit, make_repository

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def pipeline_of(engine: FakeEngine) -> AsyncIterator[Pipeline]:
    repository = make_repository(engine)
    await repository.warm_up()
    (pipeline,) = repository.models.values()
    yield pipeline
    assert pipeline.admission.requests == 0
    assert pipeline.admission.room.taken == 0
    assert await repository.close(PATIENCE_S)


def opened(pipeline: Pipeline, then: Callable[[Outcome], None], client: Client = ANYONE) -> Request:
    record = RequestRecord(b"1", "127.0.0.1", b"POST", b"/", b"", {}, client)
    call = Request(pipeline, record, then)
    call.open()
    return call


async def outcome_of(pipeline: Pipeline, body: bytes) -> Outcome:
    ended: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    call = opened(pipeline, ended.set_result)
    call.hold(len(body), "this one is longer")
    call.record.received = perf_counter()
    try:
        call.infer(ImageRequest([body], None))
        outcome = await ended
        if not isinstance(outcome, Exception):
            assert call.phases(outcome).total > 0
            call.finish(outcome)
    except ServiceError as error:
        call.fail(error)
        outcome = await ended
    return outcome


def requests(pipeline: Pipeline) -> dict[int, int]:
    return pipeline.metrics.counts.sum().requests


async def test_a_call_ends_with_scores_or_with_an_error_that_has_a_code() -> None:
    engine = FakeEngine()
    async with pipeline_of(engine) as pipeline:
        scored = await outcome_of(pipeline, b"7")
        assert not isinstance(scored, Exception)
        assert scored.results[0].scores.argmax() == 7
        engine.failing = True
        failed = await outcome_of(pipeline, b"7")
        assert isinstance(failed, EngineFailedError)
        refused = await outcome_of(pipeline, b"no digit")
        assert isinstance(refused, ServiceError)
        assert (failed.code, refused.code) == (Code.FAILED, Code.MALFORMED)
        assert requests(pipeline) == {200: 1, Code.FAILED: 1, Code.MALFORMED: 1}


async def test_an_abandoned_call_is_counted_once_and_never_ends() -> None:
    ends: list[Outcome] = []
    async with pipeline_of(FakeEngine(delay_s=0.05)) as pipeline:
        call = opened(pipeline, ends.append)
        call.infer(ImageRequest([b"7"], None))
        call.abandon(Code.TOO_SLOW)
        call.abandon(Code.CLIENT_LEFT)
        call.fail(ServiceError("later"))
        await asyncio.sleep(0.1)
        assert ends == []
        assert requests(pipeline) == {200: 0, Code.TOO_SLOW: 1}


async def test_a_defect_ends_a_call_with_itself_and_a_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ends: list[Outcome] = []
    async with pipeline_of(FakeEngine()) as pipeline:
        opened(pipeline, ends.append).fail(RuntimeError("a defect"))
        assert [str(end) for end in ends] == ["a defect"]
        assert requests(pipeline)[Code.FAILED] == 1
    assert "request 1 failed unexpectedly" in caplog.text


async def test_a_body_is_held_once_however_often_its_length_is_told() -> None:
    async with pipeline_of(FakeEngine()) as pipeline:
        call = opened(pipeline, lambda _: None)
        before = pipeline.admission.room.taken
        for length in (10, 5, 30):
            call.hold(length, "")
        assert pipeline.admission.room.taken - before == 30
        with pytest.raises(PayloadTooLargeError, match="this body has more"):
            call.hold(10**12, "this body has more")
        call.abandon(Code.CLIENT_LEFT)


async def test_a_call_that_ended_is_freed_without_the_collector() -> None:
    async with pipeline_of(FakeEngine()) as pipeline:
        gc.collect()
        gc.disable()
        try:
            assert not isinstance(await outcome_of(pipeline, b"3"), Exception)
            assert not [each for each in gc.get_objects() if isinstance(each, Request)]
        finally:
            gc.enable()


@pytest.mark.anyio
async def test_every_image_is_charged_to_its_client_whatever_the_protocol() -> None:
    charged: list[int] = []
    async with pipeline_of(FakeEngine()) as pipeline:
        call = opened(pipeline, lambda _outcome: None)
        call.record.charge = lambda _record, images: charged.append(images)
        call.infer(ImageRequest([b"7", b"8"], None))
        call.abandon(Code.CLIENT_LEFT)
    assert charged == [2]


@pytest.mark.parametrize(
    ("asked", "deadline_s", "level"),
    [
        (NO_HURRY, 0.25, 3),
        (Urgency(deadline=0.1), 0.1, 3),
        (Urgency(deadline=9.0, priority=5), 0.25, 5),
    ],
)
async def test_a_models_own_deadline_is_the_latest_and_its_priority_the_default(
    monkeypatch: pytest.MonkeyPatch, asked: Urgency, deadline_s: float, level: int
) -> None:
    async with pipeline_of(FakeEngine()) as pipeline:
        serving = Serving(timeout_ms=250, priority=3)
        pipeline.info = replace(pipeline.info, serving=serving)
        call = opened(pipeline, lambda _: None)
        started, found = call.record.started, []
        monkeypatch.setattr(Request, "_start", lambda _, wanted: found.append(wanted.urgency))
        call.infer(ImageRequest([b"x"], None, asked._replace(deadline=started + asked.deadline)))
        call.abandon(Code.CLIENT_LEFT)
    (urgency,) = found
    assert (urgency.deadline, urgency.level) == (started + deadline_s, level)


async def test_a_model_without_its_own_leaves_urgency_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[Urgency] = []
    monkeypatch.setattr(Request, "_start", lambda _, wanted: found.append(wanted.urgency))
    async with pipeline_of(FakeEngine()) as pipeline:
        call = opened(pipeline, lambda _: None)
        call.infer(ImageRequest([b"x"], None))
        call.abandon(Code.CLIENT_LEFT)
    assert found == [NO_HURRY]


async def test_a_models_own_priority_is_nothing_that_a_client_must_be_allowed() -> None:
    async with pipeline_of(FakeEngine()) as pipeline:
        pipeline.info = replace(pipeline.info, serving=Serving(priority=1))
        ordinary = Client("a", 1.0, DEFAULT_PRIORITY)
        for urgency, refused in ((NO_HURRY, False), (Urgency(priority=1), True)):
            ended: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
            call = opened(pipeline, ended.set_result, ordinary)
            try:
                call.infer(ImageRequest([b"7"], None, urgency))
                outcome = await ended
                assert not isinstance(outcome, Exception)
                assert not refused
                call.finish(outcome)
            except ForbiddenError as error:
                call.fail(error)
                assert refused


async def test_what_another_client_has_to_read_is_not_read_first() -> None:
    gate, read = threading.Event(), list[str]()

    def slowly(name: str) -> str:
        gate.wait(60)
        return name

    async with pipeline_of(FakeEngine()) as pipeline:
        hostile = [opened(pipeline, lambda _: None, Client("hostile")) for _ in range(5)]
        honest = opened(pipeline, lambda _: None, Client("honest"))
        try:
            for call in hostile:
                call.aside(slowly, "hostile", read.append)
            honest.aside(str.upper, "honest", read.append)
            await until(lambda: read == ["HONEST"])
        finally:
            gate.set()
        await until(lambda: len(read) == 6)
        for call in (*hostile, honest):
            call.abandon(Code.CLIENT_LEFT)


async def test_what_a_client_that_left_sent_is_not_read() -> None:
    gate, begun = threading.Event(), list[str]()

    def slowly(name: str) -> None:
        begun.append(name)
        gate.wait(60)

    async with pipeline_of(FakeEngine()) as pipeline:
        first, left, last = (opened(pipeline, lambda _: None) for _ in range(3))
        ended: list[None] = []
        try:
            first.aside(slowly, "first", ended.append)
            left.aside(slowly, "left", ended.append)
            last.aside(slowly, "last", ended.append)
            left.abandon(Code.CLIENT_LEFT)
        finally:
            gate.set()
        await until(lambda: len(ended) == 2)
        assert begun == ["first", "last"]
        for call in (first, last):
            call.abandon(Code.CLIENT_LEFT)


async def test_what_is_read_counts_in_full_where_it_is_more_than_the_body() -> None:
    gate = threading.Event()
    async with pipeline_of(FakeEngine(gate=gate)) as pipeline:
        room = pipeline.admission.room
        for images, counted in ((2, 64), (8, 128)):
            call = opened(pipeline, lambda _: None)
            call.hold(64, "")
            call.infer(ImageRequest([], [np.zeros((4, 1, 1), np.float32)] * images))
            assert room.taken == counted
            call.abandon(Code.CLIENT_LEFT)
        call = opened(pipeline, lambda _: None)
        with pytest.raises(QueueFullError):
            call.infer(ImageRequest([], [np.zeros((room.max_bytes,), np.uint8)] * 2))
        call.abandon(Code.CLIENT_LEFT)
        gate.set()


async def test_what_a_file_is_copied_to_counts_beside_it() -> None:
    gate = threading.Event()

    def slowly(file: bytes) -> Pixels:
        gate.wait(60)
        return decode_digit(file)

    def prepared(file: bytes) -> Decoding:
        return Decoding(Cost(), partial(slowly, file), copied=1000)

    repository = make_repository(FakeEngine(), prepare=prepared)
    await repository.warm_up()
    (pipeline,) = repository.models.values()
    room, ended = repository.room, list[Outcome]()
    try:
        call = opened(pipeline, ended.append)
        call.hold(1, "")
        call.infer(ImageRequest([b"7"], None))
        assert room.taken == 1001
    finally:
        gate.set()
    await until(lambda: len(ended) == 1)
    call.abandon(Code.CLIENT_LEFT)
    assert room.taken == 0
    assert await repository.close(PATIENCE_S)


def test_the_number_of_an_image_comes_before_its_message() -> None:
    """Some errors take something other than a message."""
    lost = DecoderLostError("was ended by signal 9")
    full = QueueFullError("the queue is full", 2.5)
    for error in (lost, full):
        found = named(error, 0, 4)
        assert type(found) is type(error)
        assert str(found) == f"image 1 of 4: {error}"
        assert found.__cause__ is error
    assert vars(named(full, 0, 4)) == vars(full)
    assert named(lost, 0, 1) is lost
