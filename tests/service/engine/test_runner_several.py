"""Several engines with one queue. If one engine hangs or fails, the others continue."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from models import DeviceLostError, EngineError
from service.engine.supervised_engine import State
from service.errors import EngineFailedError
from service.hosting.pipeline import Pipeline
from tests.service.engine.test_runner import HUNG, HangingEngine, expire, only, post, ready, score
from tests.support import PATIENCE_S
from tests.support.service.client import digits, error_of, metric, samples_in, serving, until
from tests.support.service.fakes import (
    FakeEngine,
    decode_digit,
    fake_info,
    free,
    make_repository,
)


class LostEngine(FakeEngine):
    """An engine that loses its device in the first batch."""

    def run(self, images: Any, inner: Any = ()) -> Any:
        """Raise an error."""
        super().run(images, inner)
        raise DeviceLostError("the GPU fell off the bus")


def state(pipeline: Pipeline) -> State:
    """Return the runner's current state."""
    return pipeline.runner.state


async def by_engine(client: httpx.AsyncClient, name: str) -> list[float]:
    """Return the values of a metric, in the order of the engines."""
    samples = samples_in((await client.get("/metrics")).text)
    return [value for _, value in sorted((s[1]["engine"], s[2]) for s in samples if s[0] == name)]


@pytest.mark.anyio
async def test_batches_run_on_both_engines_at_once() -> None:
    gate = threading.Event()
    one, other = (FakeEngine(gate=gate, max_batch=2) for _ in range(2))
    async with serving(one, others=[other]) as (client, _):
        asked = [asyncio.create_task(post(client, digit)) for digit in (1, 2, 3, 4)]
        await until(lambda: one.batches != [] and other.batches != [])
        gate.set()
        assert [digits(answer) for answer in await asyncio.gather(*asked)] == [[1], [2], [3], [4]]
        assert sum(await by_engine(client, "convoy_engine_images_total")) == 4
        assert min(await by_engine(client, "convoy_engine_batches_total")) >= 1
    assert one.threads.isdisjoint(other.threads)
    assert one.closed
    assert other.closed


@pytest.mark.anyio
async def test_one_request_s_images_are_answered_in_order_by_both_engines() -> None:
    """The request's later images are finished before its first images."""
    gate = threading.Event()
    one, other = FakeEngine(gate=gate, max_batch=2), FakeEngine(max_batch=2)
    async with serving(one, others=[other]) as (client, _):
        files = [("file", (f"{n}.png", str(n).encode(), "image/png")) for n in range(8)]
        asked = asyncio.create_task(client.post("/v1/classify", files=files))
        await until(lambda: sum(one.batches) == 2 and sum(other.batches) == 6)
        gate.set()
        assert digits(await asked) == list(range(8))


@pytest.mark.anyio
async def test_under_load_one_engine_hangs_and_restarts_and_no_other_answer_is_lost() -> None:
    hanging, good, again = HangingEngine(), FakeEngine(max_batch=2), FakeEngine(max_batch=2)
    opening = threading.Event()

    def reopen() -> FakeEngine:
        opening.wait(30)
        return again

    statuses: list[int] = []
    async with serving(hanging, others=[good], bounds=HUNG, reopen=reopen) as (client, pipeline):

        async def ask(client_number: int, until_all: Callable[[], bool]) -> None:
            number = client_number
            while not until_all():
                number += 1
                answer = await post(client, number % 10)
                statuses.append(answer.status_code)
                if answer.status_code == 200:
                    assert digits(answer) == [number % 10]

        over = asyncio.Event()
        clients = [asyncio.create_task(ask(number, over.is_set)) for number in range(6)]
        await until(lambda: hanging.batches != [] and len(statuses) > 50)
        assert set(statuses) == {200}, "the other engine answers"
        stuck = hanging.batches[0]
        expire(pipeline)
        await until(lambda: 500 in statuses)
        assert pipeline.runner.state is State.READY
        assert (await client.get("/v2/health/ready")).status_code == 200
        assert await by_engine(client, "convoy_engine_ready") == [0, 1]
        before = len(statuses)
        await until(lambda: len(statuses) > before + 50)
        opening.set()
        await until(lambda: again.batches != [])
        before = len(statuses)
        await until(lambda: len(statuses) > before + 50)
        over.set()
        await asyncio.gather(*clients)
        assert await by_engine(client, "convoy_engine_ready") == [1, 1]
        assert await by_engine(client, "convoy_engine_restarts_total") == [1, 0]
        assert statuses.count(500) == stuck, "those in the batch that hung, and no others"
        assert set(statuses) == {200, 500}
        hanging.free.set()


@pytest.mark.anyio
async def test_it_is_not_ready_only_while_no_engine_serves() -> None:
    engines = [HangingEngine(), HangingEngine()]
    gate = threading.Event()

    def reopen() -> FakeEngine:
        gate.wait(PATIENCE_S)
        return FakeEngine(max_batch=2)

    async with serving(engines[0], others=engines[1:], bounds=HUNG, reopen=reopen) as (client, p):
        stuck = [asyncio.create_task(post(client, digit)) for digit in (1, 2, 3, 4)]
        await until(lambda: all(engine.batches for engine in engines))
        waiting = asyncio.create_task(post(client, 5))
        await until(lambda: p.admission.images == 5)
        expire(p, 0)
        await until(lambda: p.runner.engines[0].restarts == 1)
        assert state(p) is State.READY
        assert not waiting.done()
        expire(p, 1)
        assert "restarting" in error_of(await waiting, 503)
        assert state(p) is State.RESTARTING
        for answer in await asyncio.gather(*stuck):
            assert answer.status_code in (500, 503)
        gate.set()
        await ready(p)
        assert digits(await post(client, 6)) == [6]
        await until(lambda: all(engine.ready for engine in p.runner.engines))
        for engine in engines:
            engine.free.set()


@pytest.mark.anyio
async def test_an_engine_that_is_lost_for_good_leaves_the_others_until_the_last() -> None:
    repository = make_repository(LostEngine(), others=[LostEngine()])
    await repository.warm_up()
    failure = asyncio.create_task(repository.failure())
    pipeline: Pipeline = only(repository)
    with pytest.raises(EngineFailedError):
        await score(pipeline)
    assert state(pipeline) is State.READY
    assert [engine.ready for engine in pipeline.runner.engines].count(True) == 1
    assert not failure.done()
    with pytest.raises(EngineFailedError):
        await score(pipeline)
    assert isinstance(await failure, EngineError)
    assert state(pipeline) is State.FAILED
    assert await repository.close(PATIENCE_S)


@pytest.mark.anyio
async def test_two_models_share_each_device_by_its_number() -> None:
    """Four engines are on two devices. At most two batches run at a time, one on each device."""
    running: list[int] = []
    most: list[int] = []

    def run_on(number: int) -> Callable[[Any], Any]:
        def scores(images: Any) -> Any:
            running.append(number)
            most.append(running.count(number))
            threading.Event().wait(0.002)
            running.remove(number)
            return FakeEngine()._scores(images)

        return scores

    engines = [FakeEngine(scores=run_on(number % 2)) for number in range(4)]
    repository = make_repository(engines[0], others=[engines[1]], max_queue=64)
    repository.add(fake_info("other"), engines[2:], free(decode_digit))
    await repository.warm_up()
    both = list(repository.models.values())
    await asyncio.gather(*(score(both[number % 2]) for number in range(60)))
    assert max(most) == 1
    assert all(engine.batches for engine in engines)
    assert await repository.close(PATIENCE_S)


@pytest.mark.anyio
async def test_what_the_metrics_say_adds_up() -> None:
    async with serving(FakeEngine(), others=[FakeEngine(), FakeEngine()]) as (client, _):
        for digit in range(9):
            await post(client, digit)
        assert await by_engine(client, "convoy_engine_images_total") == [3, 3, 3]
        assert await metric(client, "convoy_batch_size_count") == 9
        assert min(await by_engine(client, "convoy_engine_busy_seconds_total")) > 0
