"""Deadlines and priorities over HTTP, and the latency L(n) that warm-up measures."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from models import EngineError, Images, Scores
from service.api.app import create_app
from service.api.v1 import urgency_from
from service.batching.policy import NO_HURRY, Urgency
from service.edge.keys import Keys
from service.errors import InvalidParameterError
from tests.support import PATIENCE_S
from tests.support.servers.listening import listening, post
from tests.support.service.client import PATH, digits, error_of, serving, until
from tests.support.service.fakes import FakeEngine, decode_digit, make_repository, one_hot

INFER = "/v2/models/fake/infer"


def infer(digit: int, **parameters: int) -> dict[str, Any]:
    """Return a V2 request for an image of a digit."""
    tensor = {"name": "image", "datatype": "UINT8", "shape": [1, 1, 1, 1], "data": [digit]}
    return {"inputs": [tensor], "parameters": parameters}


def test_the_headers_say_how_soon() -> None:
    headers = {b"accept": b"*/*", b"x-timeout-ms": b"2.5", b"x-priority": b"1"}
    assert urgency_from(headers, 3.0) == Urgency(3.0025, 1)
    assert urgency_from({b"x-priority": b"0"}, 3.0) is NO_HURRY
    assert urgency_from({}, 3.0) is NO_HURRY


@pytest.mark.parametrize("value", [b"", b"0", b"-1", b"nan", b"inf", b"soon", b"1e999", b"1" * 999])
def test_a_timeout_that_is_no_positive_number_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidParameterError, match="X-Timeout-Ms"):
        urgency_from({b"x-timeout-ms": value}, 0.0)


@pytest.mark.parametrize("value", [b"", b"-1", b"1.5", b"high", b"1" * 9999, "²".encode("latin-1")])
def test_a_priority_that_is_no_whole_number_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidParameterError, match="X-Priority"):
        urgency_from({b"x-priority": value}, 0.0)


# --- warming up ----------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_warming_up_measures_batches_of_every_size() -> None:
    engine = FakeEngine(delay_s=0.004, max_batch=3)
    async with serving(engine, measure_s=10 * PATIENCE_S) as (_, pipeline):
        assert sorted(engine.batches) == sorted([1, 2, 3] * 5)
        latency = pipeline.runner.batcher.latency()
        assert 0.004 <= latency.of(1) <= latency.of(3)
        assert len(engine.threads) == 1, "the engine's own"


@pytest.mark.anyio
async def test_an_engine_that_cannot_be_measured_has_failed_to_warm_up() -> None:
    engine = FakeEngine()
    engine.failing = True
    repository = make_repository(engine, measure_s=1)
    with pytest.raises(EngineError):
        await repository.warm_up()
    assert not repository.ready
    await repository.close(PATIENCE_S)


# --- deadlines -----------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_what_cannot_be_done_in_time_is_refused_before_it_is_decoded() -> None:
    decoded: list[bytes] = []

    def decode(data: bytes) -> Any:
        decoded.append(data)
        return decode_digit(data)

    engine = FakeEngine(delay_s=0.03, max_batch=2)
    async with serving(engine, decode=decode, measure_s=10 * PATIENCE_S) as (client, _):
        engine.batches.clear()
        refused = await client.post(PATH, content=b"7", headers={"X-Timeout-Ms": "10"})
        assert "would be done in" in error_of(refused, 504)
        refused = await client.post(INFER, json=infer(7, timeout=10_000))
        assert "would be done in" in error_of(refused, 504)
        assert (decoded, engine.batches) == ([], [])
        headers = {"X-Timeout-Ms": f"{PATIENCE_S}000"}
        assert digits(await client.post(PATH, content=b"7", headers=headers)) == [7]
        answered = await client.post(INFER, json=infer(7, timeout=PATIENCE_S * 1_000_000))
        assert answered.status_code == 200
        error_of(await client.post(PATH, content=b"7", headers={"X-Timeout-Ms": "never"}), 422)


@pytest.mark.anyio
async def test_one_that_waits_is_refused_when_its_time_has_passed() -> None:
    gate = threading.Event()
    engine = FakeEngine(gate=gate)
    async with serving(engine) as (client, pipeline):
        running = asyncio.create_task(client.post(PATH, content=b"1"))
        await until(lambda: engine.batches == [1])
        refused = await client.post(PATH, content=b"2", headers={"X-Timeout-Ms": "50"})
        error_of(refused, 504)
        assert pipeline.admission.images == 1
        gate.set()
        assert digits(await running) == [1]
        assert engine.batches == [1]


# --- priorities ----------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize("v2", [False, True], ids=["header", "V2"])
async def test_a_higher_priority_is_run_first(v2: bool, tmp_path: Path) -> None:
    gate = threading.Event()
    ran: list[int] = []

    def scores(images: Images) -> Scores:
        ran.extend(images[:, 0, 0, 0])
        return one_hot(images)

    engine = FakeEngine(gate=gate, max_batch=1, scores=scores)
    file = tmp_path / "keys"
    file.touch(0o600)
    file.write_text("of-the-phones priority=1\n")  # without a key none is above the default

    def request(digit: int, priority: int) -> bytes:
        key = "X-API-Key: of-the-phones"
        if v2:
            return post(json.dumps(infer(digit, priority=priority)).encode(), key, path=INFER)
        return post(str(digit).encode(), key, f"X-Priority: {priority}")

    repository = make_repository(engine)
    (pipeline,) = repository.models.values()
    await repository.warm_up()
    app = create_app(repository)
    async with listening(app, endpoints=app.endpoints, keys=Keys(file)) as server:
        sent = []
        for waiting, (digit, priority) in enumerate([(0, 0), (3, 3), (2, 0), (1, 1)]):
            sent.append(await server.send(request(digit, priority)))
            await until(lambda: engine.batches == [1])
            await until(lambda n=waiting: pipeline.metrics.pending() == n)  # type: ignore[misc]
        gate.set()
        for client in sent:
            assert (await client.reply()).status == 200
    assert ran == [0, 1, 2, 3]
    assert await repository.close(PATIENCE_S)
