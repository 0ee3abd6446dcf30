"""The HTTP interface with a fake engine that is full, fails or is not warm yet, and with clients
that leave."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from models import EngineError, OutputKind
from tests.support import PATIENCE_S
from tests.support.service.client import (
    PATH,
    SCOPE,
    collect,
    digits,
    error_of,
    metric,
    one_chunk_then,
    serving,
    until,
)
from tests.support.service.fakes import CLASSES, FakeEngine, decode_digit

pytestmark = pytest.mark.anyio


# --- what is full, failing, early or late --------------------------------------------------------


async def test_beyond_the_bounds_requests_are_told_to_come_back_and_room_is_given_again() -> None:
    gate = threading.Event()
    engine = FakeEngine(gate=gate, max_batch=2)
    async with serving(engine, max_queue=4) as (client, pipeline):
        inside = []
        for n in range(6):  # as many as run and wait
            inside.append(asyncio.create_task(client.post(PATH, content=str(n).encode())))
            await until(lambda n=n: pipeline.admission.images == n + 1)  # type: ignore[misc]
            if n == 0:
                await until(lambda: engine.batches == [1])
        refused = await client.post(PATH, content=b"9")
        assert "try again" in error_of(refused, 429)
        assert int(refused.headers["retry-after"]) >= 1
        assert pipeline.admission.expected_wait_s() > 0  # the batch that runs has taken some time

        async def receive() -> Any:
            pytest.fail("there is no room, and yet the body was read")

        sent: list[Any] = []
        # The same client: another's newest image would give way to one of a client with none.
        same = ("127.0.0.1", 123)
        scope = {**SCOPE, "client": same, "headers": [(b"content-length", b"1")]}
        await client.app(scope, receive, collect(sent))
        assert sent[0]["status"] == 429
        gate.set()
        assert [digits(a) for a in await asyncio.gather(*inside)] == [[n] for n in range(6)]
        assert digits(await client.post(PATH, content=b"9")) == [9]


async def test_images_being_decoded_count_as_inside() -> None:
    gate = threading.Event()

    def decode(data: bytes) -> Any:
        gate.wait(PATIENCE_S)
        return decode_digit(data)

    async with serving(FakeEngine(max_batch=1), decode=decode, max_queue=3, decode_threads=1) as (
        client,
        pipeline,
    ):
        inside = [asyncio.create_task(client.post(PATH, content=b"1")) for _ in range(4)]
        await until(lambda: pipeline.admission.images == 4)
        error_of(await client.post(PATH, content=b"1"), 429)
        gate.set()
        for answer in await asyncio.gather(*inside):
            digits(answer)


async def test_the_bytes_of_all_bodies_together_are_bounded() -> None:
    reading = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield b"1" * 900_000
        await reading.wait()

    async with serving(max_body_bytes=1_000_000, max_queue=8) as (client, pipeline):
        limit = pipeline.admission.room.max_bytes
        slow = [
            asyncio.create_task(client.post(PATH, content=slowly()))
            for _ in range(limit // 900_000)
        ]
        await until(lambda: pipeline.admission.room.taken > limit - 900_000)
        error_of(await client.post(PATH, content=b"1" * 900_000), 429)
        assert pipeline.admission.room.taken <= limit
        reading.set()
        for answer in await asyncio.gather(*slow):
            assert answer.status_code in (200, 429)


async def test_a_body_counts_only_until_it_is_decoded() -> None:
    gate = threading.Event()
    async with serving(FakeEngine(gate=gate)) as (client, pipeline):
        request = asyncio.create_task(client.post(PATH, content=b"4"))
        await until(lambda: pipeline.admission.images == 1 and pipeline.admission.room.taken == 0)
        assert not request.done()
        gate.set()
        assert digits(await request) == [4]


async def test_an_engine_that_fails_answers_500_and_the_next_request_is_answered() -> None:
    engine = FakeEngine()
    async with serving(engine) as (client, _):
        engine.failing = True
        error_of(await client.post(PATH, content=b"1"), 500)
        engine.failing = False
        assert digits(await client.post(PATH, content=b"1")) == [1]
        assert await metric(client, "convoy_failed_batches_total") == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("output", list(OutputKind))
async def test_scores_that_are_no_numbers_fail_their_own_image_only(
    bad: float, output: OutputKind
) -> None:
    def scores(images: Any) -> Any:
        result = np.full((len(images), CLASSES), 0.1, np.float32)
        result[images[:, 0, 0, 0] == 6, 3] = bad
        return result

    gate = threading.Event()
    engine = FakeEngine(scores=scores, gate=gate)
    async with serving(engine, output=output) as (client, pipeline):
        tasks = [asyncio.create_task(client.post(PATH, content=d)) for d in (b"1", b"6", b"2")]
        await until(lambda: pipeline.admission.images == 3)
        gate.set()
        good, failed, also_good = await asyncio.gather(*tasks)
        assert "not finite" in error_of(failed, 500)
        assert good.status_code == also_good.status_code == 200


async def test_until_it_is_warm_it_is_live_but_not_ready() -> None:
    gate = threading.Event()
    async with serving(FakeEngine(warm_up=lambda: gate.wait(PATIENCE_S)), warm=False) as (
        client,
        pipeline,
    ):
        warming = asyncio.create_task(pipeline.runner.warm_up())
        assert (await client.get("/v2/health/live")).json() == {"live": True}
        not_ready = await client.get("/v2/health/ready")
        assert "warming up" in error_of(not_ready, 503)
        assert not_ready.headers["retry-after"] == "1"
        assert "warming up" in error_of(await client.post(PATH, content=b"1"), 503)
        assert await metric(client, "convoy_ready") == 0
        gate.set()
        await warming
        assert (await client.get("/v2/health/ready")).json() == {"ready": True}
        assert await metric(client, "convoy_ready") == 1
        assert digits(await client.post(PATH, content=b"1")) == [1]


async def test_an_engine_that_cannot_be_warmed_up_is_never_ready() -> None:
    def fail() -> None:
        raise EngineError("no memory")

    async with serving(FakeEngine(warm_up=fail), warm=False) as (client, pipeline):
        with pytest.raises(EngineError, match="no memory"):
            await pipeline.runner.warm_up()
        assert "failed" in error_of(await client.get("/v2/health/ready"), 503)
        error_of(await client.post(PATH, content=b"1"), 503)


async def test_while_draining_what_is_inside_is_answered_and_nothing_new_is_taken() -> None:
    gate = threading.Event()
    async with serving(FakeEngine(gate=gate)) as (client, pipeline):
        inside = [asyncio.create_task(client.post(PATH, content=b"8")) for _ in range(5)]
        await until(lambda: pipeline.admission.images == 5)
        draining = asyncio.create_task(pipeline.drain(PATIENCE_S))
        await asyncio.sleep(0)
        assert "shutting down" in error_of(await client.post(PATH, content=b"1"), 503)
        assert "shutting down" in error_of(await client.get("/v2/health/ready"), 503)
        assert (await client.get("/v2/health/live")).status_code == 200
        assert not draining.done()
        gate.set()
        assert await draining
        assert [digits(answer) for answer in await asyncio.gather(*inside)] == [[8]] * 5


async def test_what_is_not_drained_in_time_is_answered_503() -> None:
    gate = threading.Event()
    async with serving(FakeEngine(gate=gate)) as (client, pipeline):
        inside = asyncio.create_task(client.post(PATH, content=b"8"))
        await until(lambda: pipeline.admission.images == 1)
        assert not await pipeline.drain(0.01)
        await pipeline.runner.give_up()
        error_of(await inside, 503)
        gate.set()


# --- clients that leave --------------------------------------------------------------------------


async def test_a_client_that_leaves_while_it_waits_is_never_computed() -> None:
    gate = threading.Event()
    engine = FakeEngine(gate=gate)
    async with serving(engine) as (client, pipeline):
        first = asyncio.create_task(client.post(PATH, content=b"1"))
        await until(lambda: engine.batches == [1])
        app = client.app
        leaving = asyncio.Event()
        sent: list[Any] = []
        waiting = asyncio.create_task(app(SCOPE, one_chunk_then(leaving), collect(sent)))
        await until(lambda: pipeline.admission.images == 2)
        leaving.set()
        await waiting
        assert pipeline.admission.images == 1
        gate.set()
        assert digits(await first) == [1]
        assert digits(await client.post(PATH, content=b"2")) == [2]
        assert engine.batches == [1, 1]
        assert await metric(client, 'convoy_requests_total{status="499"}') == 1


async def test_a_client_that_leaves_while_it_sends_leaves_nothing_behind() -> None:
    async with serving() as (client, _):
        messages = [
            {"type": "http.request", "body": b"1" * 1000, "more_body": True},
            {"type": "http.disconnect"},
        ]

        async def receive() -> Any:
            return messages.pop(0)

        await client.app(SCOPE, receive, collect([]))
        assert await metric(client, 'convoy_requests_total{status="499"}') == 1


async def test_cancelling_the_server_task_is_not_taken_for_a_client_that_left() -> None:
    gate = threading.Event()
    engine = FakeEngine(gate=gate)
    async with serving(engine) as (client, _):
        app = client.app
        receive = one_chunk_then(asyncio.Event())
        task = asyncio.create_task(app(SCOPE, receive, collect([])))
        await until(lambda: engine.batches == [1])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.set()
