"""Warm-up may reduce an engine's largest batch. All code that forms or shows batches then uses the
new value."""

import asyncio
import threading

import pytest

from models import Precision
from service.engine.supervised_engine import State
from service.engine.watchdog import Bounds
from service.hosting.pipeline import Pipeline
from tests.support.service.client import PATH, AppClient, digits, metric, serving, until
from tests.support.service.fakes import FakeEngine


def lowered(to: int = 1, gate: threading.Event | None = None) -> FakeEngine:
    """Return an engine whose largest batch is 4 until it is warm, and then `to`."""

    def lower() -> None:
        engine.max_batch = to

    engine = FakeEngine(max_batch=4, gate=gate, warm_up=lower)
    return engine


async def shown(client: AppClient) -> list[float]:
    """Return the largest batch that each endpoint shows."""
    (model,) = (await client.get("/v1/models")).json()["models"]
    config = (await client.get("/v2/models/fake/config")).json()
    preferred = config["dynamic_batching"]["preferred_batch_size"]
    assert preferred == list(range(1, config["max_batch_size"] + 1))
    return [model["max_batch"], config["max_batch_size"]]


async def ask_at_once(
    client: AppClient, count: int, gate: threading.Event, pipeline: Pipeline
) -> list[int]:
    """Request digits, and open the engine's gate when all of them are accepted."""
    asked = [asyncio.create_task(client.post(PATH, content=str(d).encode())) for d in range(count)]
    await until(lambda: pipeline.admission.images == count)
    gate.set()
    return [digit for task in asked for digit in digits(await task)]


@pytest.mark.anyio
@pytest.mark.parametrize("largest", [1, 2])
async def test_batches_and_all_that_tells_of_them_keep_to_it(largest: int) -> None:
    gate = threading.Event()
    engine = lowered(largest, gate)
    async with serving(engine) as (client, pipeline):
        assert await shown(client) == [largest, largest]
        assert await metric(client, "convoy_engine_max_batch") == largest
        assert await ask_at_once(client, 7, gate, pipeline) == list(range(7))
    assert max(engine.batches) == largest
    assert sum(engine.batches) == 7


@pytest.mark.anyio
async def test_of_two_engines_each_keeps_to_its_own() -> None:
    gate = threading.Event()
    one, other = lowered(1, gate), FakeEngine(max_batch=4, gate=gate)
    async with serving(one, others=[other]) as (client, pipeline):
        assert await shown(client) == [4, 4]
        assert await ask_at_once(client, 9, gate, pipeline) == list(range(9))
    assert set(one.batches) == {1}
    assert max(other.batches) > 1


@pytest.mark.anyio
async def test_it_may_be_another_after_a_restart() -> None:
    failing, again = FakeEngine(max_batch=4), lowered()
    failing.failing = True
    bounds = Bounds(batch_s=1000)
    async with serving(failing, reopen=lambda: again, bounds=bounds) as (client, pipeline):
        assert await shown(client) == [4, 4]
        for _ in range(5):
            assert (await client.post(PATH, content=b"1")).status_code == 500
        await until(lambda: pipeline.runner.state is State.READY)
        assert await shown(client) == [1, 1]
        answer = await client.post(PATH, files=[("file", str(d).encode()) for d in range(5)])
        assert digits(answer) == list(range(5))
    assert again.batches == [1] * 5


@pytest.mark.anyio
async def test_what_is_shown_is_the_precision_that_the_engine_computes_in() -> None:
    engine = FakeEngine()
    engine.precision = Precision.TF32
    engine.layers = "2 of 3 layers on integers; in float: last"
    async with serving(engine) as (client, _):
        (model,) = (await client.get("/v1/models")).json()["models"]
        assert model["precision"] == "tf32"
        assert model["layers"] == engine.layers
        metrics = (await client.get("/metrics")).text
        assert 'precision="tf32"' in metrics
