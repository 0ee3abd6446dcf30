"""The V2 protocol over HTTP with a fake engine: compression, refusals, costs."""

import asyncio
import gzip
import json
import threading
import tracemalloc
import zlib
from typing import Any

import httpx
import numpy as np
import pytest

import service.api.v2.infer_endpoint
from models import Images, Scores
from service.api.app import create_app
from service.api.v2.interpretation import InferRequest
from service.api.v2.parse import parse_request
from service.errors import ServiceError
from service.hosting.repository import Repository
from service.http.compression import compress, inflate, wanted_coding
from tests.support import PATIENCE_S
from tests.support.service.client import AppClient, error_of, metric, serving, until
from tests.support.service.fakes import FakeEngine, decode_digit, fake_info, free

PATH = "/v2/models/fake/infer"
RAW = {"inference-header-content-length": "0"}


def request_of(*digits: int, **fields: Any) -> dict[str, Any]:
    """Return a request for images of digits, as pixels."""
    tensor = {
        "name": "image",
        "datatype": "UINT8",
        "shape": [len(digits), 1, 1, 1],
        "data": list(digits),
    }
    return {"inputs": [tensor], **fields}


def best(answer: httpx.Response) -> list[int]:
    """Return the class with the largest score for each image."""
    assert answer.status_code == 200, answer.text
    (output,) = answer.json()["outputs"]
    found: list[int] = np.array(output["data"]).reshape(output["shape"]).argmax(axis=1).tolist()
    return found


# --- compression ---------------------------------------------------------------------------------


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_what_is_compressed_is_inflated_to_the_byte(coding: str) -> None:
    data = bytes(range(256)) * 100
    assert inflate(compress(data, coding), coding, len(data)) == data
    with pytest.raises(ServiceError, match="inflates to more") as refused:
        inflate(compress(data, coding), coding, len(data) - 1)
    assert refused.value.code == 413


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_long_bodies_are_inflated_in_pieces(coding: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, 300_000, np.uint8).tobytes()
    for data in (noise, bytes(5_000_000), noise + bytes(3 * 2**20) + noise):
        packed = compress(data, coding)
        assert inflate(packed, coding, len(data)) == data
        for spoilt, says in (
            (packed[:-1], "ends early"),
            (packed[: len(packed) // 2], "ends early"),
            (packed + bytes(70_000), "data follows"),
        ):
            with pytest.raises(ServiceError, match=says):
                inflate(spoilt, coding, len(data))
        with pytest.raises(ServiceError, match="inflates to more"):
            inflate(packed, coding, len(data) - 1)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda data: data[:-1], "ends early"),
        (lambda data: b"", "ends early"),
        (lambda data: data + b"x", "data follows"),
        (lambda data: b"x" + data, "malformed"),
        (lambda data: data[:200] + bytes([data[200] ^ 255]) + data[201:], "malformed"),
    ],
)
def test_a_spoilt_body_is_refused(coding: str, spoil: Any, says: str) -> None:
    data = np.random.default_rng(0).integers(0, 256, 1000, np.uint8).tobytes()
    with pytest.raises(ServiceError, match=says) as refused:
        inflate(spoil(compress(data, coding)), coding, 10_000)
    assert refused.value.code == 400


@pytest.mark.parametrize(
    ("accept", "coding"),
    [
        ("", None),
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("br, deflate;q=0.5, GZIP ; q=0.8", "gzip"),
        ("gzip;q=0.3, deflate", "deflate"),
        ("gzip;q=0", None),
        ("gzip;q=soon", None),
        ("gzip, deflate", "gzip"),
        ("identity, br, *", None),
    ],
)
def test_an_answer_is_compressed_as_the_client_prefers(accept: str, coding: str | None) -> None:
    assert wanted_coding(accept, 10_000) == coding
    assert wanted_coding(accept, 512) == coding
    assert wanted_coding(accept, 511) is None  # it would only grow


@pytest.mark.anyio
@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_bodies_are_compressed_both_ways(coding: str) -> None:
    body = compress(json.dumps(request_of(*[3] * 20)).encode(), coding)
    headers = {"content-encoding": coding, "accept-encoding": coding}
    async with serving() as (client, _):
        answer = await client.post(PATH, content=body, headers=headers)
        assert best(answer) == [3] * 20
        assert answer.headers["content-encoding"] == coding
        assert answer.headers["vary"] == "accept-encoding"
        plain = await client.post(PATH, content=body, headers={**headers, "accept-encoding": ""})
        assert best(plain) == [3] * 20
        assert "content-encoding" not in plain.headers


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_a_bomb_is_inflated_no_further_than_to_the_limit(coding: str) -> None:
    bomb = compress(bytes(20_000_000), coding)
    tracemalloc.start()
    try:
        with pytest.raises(ServiceError, match="inflates to more"):
            inflate(bomb, coding, 100_000)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 500_000


@pytest.mark.anyio
async def test_a_bomb_costs_no_more_than_a_large_body() -> None:
    bomb = gzip.compress(bytes(50_000_000))
    async with serving(max_body_bytes=100_000) as (client, pipeline):
        answer = await client.post(PATH, content=bomb, headers={"content-encoding": "gzip"})
        assert "inflates to more" in error_of(answer, 413)
        # What it did inflate to counts as a body does, and is given back.
        body = zlib.compress(bytes(90_000))
        pipeline.admission.room.max_bytes = 80_000
        answer = await client.post(PATH, content=body, headers={"content-encoding": "deflate"})
        error_of(answer, 429)
        assert pipeline.admission.room.taken == 0


# --- requests ------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_no_content_type_is_needed_and_any_is_taken() -> None:
    body = json.dumps(request_of(4)).encode()
    async with serving() as (client, _):
        for content_type in (None, "application/json", "application/octet-stream", "text/plain"):
            headers = {"content-type": content_type} if content_type else {}
            assert best(await client.post(PATH, content=body, headers=headers)) == [4]


@pytest.mark.anyio
@pytest.mark.parametrize("path", [PATH, "/v2/models/fake/versions/1/infer"])
async def test_pixels_and_files_travel_in_batches_and_come_back_in_order(path: str) -> None:
    gate = threading.Event()
    engine = FakeEngine(gate=gate)
    async with serving(engine) as (client, pipeline):
        first = asyncio.create_task(client.post(path, json=request_of(9)))
        await until(lambda: engine.batches == [1])
        pixels = asyncio.create_task(client.post(path, json=request_of(1, 2, 3)))
        file = {"name": "image", "datatype": "BYTES", "shape": [1], "data": ["NA=="]}  # b"4"
        one = asyncio.create_task(client.post(path, json={"inputs": [file]}))
        v1 = asyncio.create_task(client.post("/v1/classify", content=b"5"))
        await until(lambda: pipeline.metrics.pending() == 5)  # decoded, all of them
        gate.set()
        assert best(await first) == [9]
        assert best(await pixels) == [1, 2, 3]
        assert best(await one) == [4]
        assert (await v1).status_code == 200
        assert engine.batches == [1, 5]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("body", "headers", "status", "says"),
    [
        (b"", {}, 400, "failed to parse"),
        (b"\x05\x06", RAW, 400, "1 bytes of UINT8 1×1×1 as input 'image'"),
        (b"\xff\xd8\xff", RAW, 400, "the picture is no digit"),
        (b"{}", {"inference-header-content-length": "-1"}, 400, "whole number of bytes"),
        (b"{}", {"inference-header-content-length": "9" * 5000}, 400, "whole number of bytes"),
        (b"{}", {"inference-header-content-length": "3"}, 400, "but the body has 2 bytes"),
        (b"{}", {"content-encoding": "br"}, 415, "use gzip or deflate"),
        (b"{}", {"content-encoding": "gzip"}, 400, "malformed gzip"),
        (b"x" * 100_001, {}, 413, "at most 100000 bytes"),
    ],
)
async def test_bad_input_is_refused_and_the_next_request_is_answered(
    body: bytes, headers: dict[str, str], status: int, says: str
) -> None:
    async with serving() as (client, _):
        answer = await client.post(PATH, content=body, headers=headers)
        assert says in error_of(answer, status)
        assert best(await client.post(PATH, json=request_of(8))) == [8]
        assert await metric(client, f'convoy_requests_total{{status="{status}"}}') == 1
        # Of Triton's failures none, as what is refused for how it is made is none of Triton's.
        assert await metric(client, "nv_inference_request_failure_total") == 0


@pytest.mark.anyio
async def test_too_many_images_are_refused_before_they_are_read() -> None:
    async with serving(max_queue=8) as (client, _):
        answer = await client.post(PATH, json=request_of(*[1] * 9))
        assert "at most 8" in error_of(answer, 413)
        assert best(await client.post(PATH, json=request_of(*[1] * 8))) == [1] * 8


@pytest.mark.anyio
async def test_what_is_full_failing_or_unknown_is_answered_as_everywhere() -> None:
    gate = threading.Event()
    engine = FakeEngine(gate=gate, max_batch=1)
    async with serving(engine, max_queue=1) as (client, pipeline):
        waiting = [asyncio.create_task(client.post(PATH, json=request_of(1))) for _ in range(2)]
        await until(lambda: pipeline.admission.images == 2)
        refused = await client.post(PATH, json=request_of(1))
        assert "try again" in error_of(refused, 429)
        assert int(refused.headers["retry-after"]) >= 1
        gate.set()
        assert [best(answer) for answer in await asyncio.gather(*waiting)] == [[1], [1]]
        engine.failing = True
        error_of(await client.post(PATH, json=request_of(1)), 500)
        engine.failing = False
        for path in ("/v2/models/no/infer", "/v2/models/fake/versions/2/infer"):
            message = error_of(await client.post(path, json=request_of(1)), 404)
            assert message.startswith("Request for unknown model: '")
        error_of(await client.get(PATH), 405)


@pytest.mark.anyio
@pytest.mark.parametrize("bad", [np.nan, np.inf])
async def test_scores_that_are_no_numbers_are_no_answer(bad: float) -> None:
    def scores(images: Images) -> Scores:
        return np.full((len(images), 10), bad, np.float32)

    async with serving(FakeEngine(scores=scores)) as (client, _):
        for headers in ({}, RAW):
            body = b"\x01" if headers else json.dumps(request_of(1)).encode()
            answer = await client.post(PATH, content=body, headers=headers)
            assert "not finite" in error_of(answer, 500)


@pytest.mark.anyio
async def test_long_json_is_read_in_a_thread_and_short_json_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = []

    def parse(*args: Any, **named: Any) -> InferRequest:
        threads.append(threading.current_thread().name)
        return parse_request(*args, **named)

    monkeypatch.setattr(service.api.v2.infer_endpoint, "parse_request", parse)
    wide = b" " * 40_000
    long = json.dumps(request_of(3, 4)).encode().replace(b"[3, 4]", b"[%b3,%b4]" % (wide, wide))
    async with serving() as (client, _):
        assert best(await client.post(PATH, json=request_of(2))) == [2]
        assert best(await client.post(PATH, content=long)) == [3, 4]
        error_of(await client.post(PATH, content=long.replace(b"UINT8", b"UINT7")), 400)
    own = threading.current_thread().name
    assert [name == own for name in threads] == [True, False, False]


@pytest.mark.anyio
async def test_pixels_count_as_bytes_inside_until_they_are_answered() -> None:
    gate = threading.Event()
    async with serving(FakeEngine(gate=gate)) as (client, pipeline):
        request = asyncio.create_task(client.post(PATH, content=b"\x04", headers=RAW))
        await until(lambda: pipeline.admission.images == 1)
        assert pipeline.admission.room.taken == 1
        gate.set()
        assert (await request).status_code == 200


@pytest.mark.anyio
async def test_the_index_takes_only_what_it_understands() -> None:
    async with serving() as (client, _):
        index = "/v2/repository/index"
        assert len((await client.post(index)).json()) == 1
        assert len((await client.post(index, json={"ready": True})).json()) == 1
        for body in (b"{", b"[]", b'{"ready": 1}'):
            error_of(await client.post(index, content=body), 400)
        error_of(await client.post(index, content=b" " * 5000), 413)


@pytest.mark.anyio
async def test_of_several_models_one_may_be_the_default() -> None:
    repository = Repository(
        max_batch=8, max_queue=8, max_body_bytes=1000, decode_threads=1, default="b"
    )
    for name in ("a", "b"):
        repository.add(fake_info(name), [FakeEngine()], free(decode_digit))
    await repository.warm_up()
    with pytest.raises(ValueError, match="two models are named 'a'"):
        repository.add(fake_info("a"), [FakeEngine()], free(decode_digit))
    async with AppClient(create_app(repository)) as client:
        assert (await client.post("/v1/classify", content=b"1")).json()["model"] == "b"
        assert (await client.post("/v1/models/a/classify", content=b"1")).json()["model"] == "a"
        error_of(await client.post("/v1/models/c/classify", content=b"1"), 404)
    await repository.close(PATIENCE_S)


@pytest.mark.anyio
async def test_the_openapi_document_has_the_protocol_and_no_operation_twice() -> None:
    async with serving() as (client, _):
        document = (await client.get("/openapi.json")).json()
    paths = document["paths"]
    assert {
        *("/v2", "/v2/health/ready", "/v2/models/{model}/infer", "/v2/repository/index"),
        *("/v2/models/stats", "/v2/models/{model}/versions/{version}/config"),
    } <= set(paths)
    assert not any("sharedmemory" in path for path in paths)
    operations = [op["operationId"] for methods in paths.values() for op in methods.values()]
    assert len(operations) == len(set(operations))
    infer = paths["/v2/models/{model}/versions/{version}/infer"]["post"]
    assert "UINT8 pixels, in RGB or grey" in infer["description"]
    assert [p["name"] for p in infer["parameters"]] == ["model", "version"]
    assert {"200", "400", "404", "413", "429", "500", "503", "504"} <= set(infer["responses"])
