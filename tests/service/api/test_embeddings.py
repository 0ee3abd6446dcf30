"""`POST /v1/embeddings` with a fake engine. The embedding of a digit is (digit, 2)."""

import asyncio
import base64
import json
import threading
import weakref
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest
from pydantic import TypeAdapter

from models import Absent, Batch, Inner, Results, as_vectors
from service.api import embeddings
from service.api.app import create_app
from service.api.embeddings import PATH, EmbeddingsAnswer
from service.api.v2 import answer as v2_answer
from service.engine import supervised_engine
from service.hosting.repository import Repository
from service.hosting.vectors import embeddings_of
from tests.support import PATIENCE_S
from tests.support.service.client import AppClient, digits, error_of, serving, until
from tests.support.service.fakes import FakeEngine, decode_digit, fake_info, free

pytestmark = pytest.mark.anyio

FORM = {"content-type": "multipart/form-data; boundary=b"}


def base64_of(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def vectors(answer: httpx.Response) -> list[list[float]]:
    """Return the embeddings in an answer of either encoding."""
    assert answer.status_code == 200, answer.text
    TypeAdapter(EmbeddingsAnswer).validate_python(answer.json(), strict=True)
    data = answer.json()["data"]
    assert [each["index"] for each in data] == list(range(len(data)))
    return [
        np.frombuffer(base64.b64decode(each["embedding"]), "<f4").tolist()
        if isinstance(each["embedding"], str)
        else each["embedding"]
        for each in data
    ]


async def test_an_image_a_form_and_json_are_embedded() -> None:
    form = [("file", (f"{digit}.png", digit)) for digit in "314"]
    urls = [f"data:image/png;base64,{base64_of('5')}", base64_of("9")]
    async with serving() as (client, _):
        assert vectors(await client.post(PATH, content=b"7")) == [[7, 2]]
        assert vectors(await client.post(PATH, files=form)) == [[3, 2], [1, 2], [4, 2]]
        assert vectors(await client.post(PATH, json={"input": urls[0]})) == [[5, 2]]
        answer = await client.post(PATH, json={"input": urls, "model": "fake", "user": "me"})
        assert vectors(answer) == [[5, 2], [9, 2]]
    assert answer.json()["model"] == "fake"
    assert answer.json()["version"] == "1"
    assert answer.json()["usage"] == {"prompt_tokens": 0, "total_tokens": 0}


@pytest.mark.parametrize("encoding", ["float", "base64"])
async def test_vectors_come_as_numbers_or_base64_and_with_a_length_of_1(encoding: str) -> None:
    unit = np.array([7, 2], np.float32) / np.float32(53**0.5)
    fields = {"input": base64_of("7"), "encoding_format": encoding, "normalize": True}
    async with serving() as (client, _):
        query = f"?normalize=1&encoding_format={encoding}"
        for answer in (
            await client.post(PATH, json=fields),
            await client.post(PATH + query, content=b"7"),
        ):
            kind = str if encoding == "base64" else list
            assert isinstance(answer.json()["data"][0]["embedding"], kind)
            np.testing.assert_allclose(vectors(answer), [unit], rtol=1e-6)


async def test_the_path_of_a_model_takes_what_openais_client_sends() -> None:
    """OpenAI's client posts to base_url + /embeddings, and asks for base64."""
    body = {"input": [base64_of("7")], "model": "fake", "encoding_format": "base64"}
    async with serving() as (client, _):
        assert vectors(await client.post("/v1/models/fake/embeddings", json=body)) == [[7, 2]]
        error_of(await client.post("/v1/models/other/embeddings", json=body), 404)


async def test_one_batch_has_requests_that_want_either() -> None:
    gate = threading.Event()
    engine = FakeEngine(gate=gate)
    async with serving(engine) as (client, pipeline):
        gate.set()
        await client.post(PATH, content=b"1")
        gate.clear()
        first = asyncio.create_task(client.post("/v1/classify", content=b"1"))
        await until(lambda: len(engine.batches) > 1)
        posted = [
            asyncio.create_task(client.post(path, content=body))
            for path, body in ((PATH, b"5"), ("/v1/classify", b"6"), (PATH, b"8"))
        ]
        await until(lambda: pipeline.runner.batcher.depth == 3)
        gate.set()
        embedded, classified, last = await asyncio.gather(*posted)
        assert digits(await first) == [1]
    assert (vectors(embedded), digits(classified), vectors(last)) == ([[5, 2]], [6], [[8, 2]])
    assert engine.batches[-1] == 3
    assert engine.asked[-2:] == [(), ("features",)]  # computed once, for all of the batch


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({}, 400, "missing required field `input`"),
        ({"input": 7}, 400, "a data URL"),
        ({"input": [[1, 2]]}, 400, "a data URL"),
        ({"input": []}, 400, "`input` is empty"),
        ({"input": ""}, 400, "the text is empty"),
        ({"input": ["Nw==", "no base64!"]}, 400, "image 2 of 2: the text is not base64"),
        ({"input": "data:image/png,7"}, 400, "must begin like 'data:image/jpeg;base64,'"),
        ({"input": "https://example.com/cat.jpg"}, 400, "addresses are not fetched"),
        ({"input": base64_of("cat")}, 400, "no digit"),
        ({"input": "Nw==", "model": "other"}, 404, "base_url=.../v1/models/NAME"),
        ({"input": "Nw==", "dimensions": 3}, 422, "`dimensions` is 3, but the embeddings"),
        ({"input": "Nw==", "encoding_format": "int8"}, 400, "encoding_format"),
        ({"input": "Nw==", "norm": True}, 400, "unknown field `norm`"),
        ({"input": ["Nw=="] * 33}, 413, "at most 32"),
        ({"input": ["Nw=="] * 9000}, 413, "strings; send at most 32 images"),
    ],
)
async def test_a_wrong_request_in_json_is_told_what_is_right(
    body: dict[str, Any], status: int, says: str
) -> None:
    async with serving() as (client, _):
        assert says in error_of(await client.post(PATH, json=body), status)


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("top_k=3", "unknown parameter 'top_k'; the parameters are encoding_format and normalize"),
        ("normalize=yes", "normalize must be 0 or 1; got 'yes'"),
        ("encoding_format=int8", "encoding_format must be float or base64"),
    ],
)
async def test_a_wrong_query_is_refused(query: str, says: str) -> None:
    async with serving() as (client, _):
        assert says in error_of(await client.post(f"{PATH}?{query}", content=b"7"), 422)
        json_too = await client.post(f"{PATH}?normalize=1", json={"input": "Nw=="})
        assert "send each parameter as a field of the JSON" in error_of(json_too, 422)


async def test_json_that_is_none_is_refused_whatever_its_length() -> None:
    """A long answer is written in a thread."""
    headers = {"content-type": "application/json; charset=utf-8"}
    async with serving(max_body_bytes=2**20) as (client, _):
        for body in (b"", b"[1]", b"{" * 2**19, b'{"input": "\xff"}'):
            says = error_of(await client.post(PATH, content=body, headers=headers), 400)
            assert says.startswith("the JSON cannot be read: ")
        long = json.dumps({"input": base64_of("7" + "x" * 400_000)}).encode()
        assert vectors(await client.post(PATH, content=long, headers=headers)) == [[7, 2]]


@asynccontextmanager
async def served(*names: str, **changes: Any) -> AsyncIterator[AppClient]:
    """Serve models with these names and fake engines. Their descriptions are `fake_info`,
    changed."""
    repository = Repository(max_batch=8, max_queue=32, max_body_bytes=100_000, decode_threads=2)
    for name in names:
        info = replace(fake_info(name), **changes)
        repository.add(info, [FakeEngine()], free(decode_digit), None)
    await repository.warm_up()
    async with AppClient(create_app(repository)) as client:
        yield client
    await repository.close(PATIENCE_S)


async def test_a_model_without_an_embedding_says_why() -> None:
    async with served("fake", embedding=Absent("it is made up")) as client:
        says = error_of(await client.post(PATH, content=b"7"), 501)
        assert says == "the model 'fake' has no embedding: it is made up"
        assert digits(await client.post("/v1/classify", content=b"7")) == [7]


async def test_several_models_have_paths_of_their_own() -> None:
    async with served("a", "b") as client:
        says = error_of(await client.post(PATH, content=b"7"), 404)
        assert "/v1/models/a/embeddings, /v1/models/b/embeddings" in says
        assert vectors(await client.post("/v1/models/b/embeddings", content=b"7")) == [[7, 2]]


async def test_an_embedding_that_is_not_finite_is_no_answer() -> None:
    class Broken(FakeEngine):
        def run(self, images: Any, inner: Any = ()) -> Any:
            results = super().run(images, inner)
            return results._replace(inner={name: v * np.nan for name, v in results.inner.items()})

    async with serving(Broken()) as (client, _):
        says = error_of(await client.post(PATH, content=b"7"), 500)
        assert "not finite" in says


async def test_of_values_at_many_positions_only_averages_leave_the_engines_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The values of 128 images have 411 MB, and averaging them takes 80 ms."""
    wide = Inner("embedding", (64, 112, 112))
    made: list[weakref.ref[Any]] = []
    kept: list[bool] = []
    threads: list[threading.Thread] = []

    class WideEngine(FakeEngine):
        def run(self, images: Batch, inner: Collection[str] = ()) -> Results:
            values = np.ones((len(images), *wide.shape), np.float32)
            made.append(weakref.ref(values))
            return super().run(images)._replace(inner=dict.fromkeys(inner, values))

    def averaged(values: Any) -> Any:
        threads.append(threading.current_thread())
        return as_vectors(values)

    def seen(rows: Any, info: Any) -> Any:
        kept.extend(reference() is not None for reference in made)
        return embeddings_of(rows, info)

    monkeypatch.setattr(supervised_engine, "as_vectors", averaged)
    for module in (embeddings, v2_answer):
        monkeypatch.setattr(module, "embeddings_of", seen)
    repository = Repository(max_batch=8, max_queue=32, max_body_bytes=10_000, decode_threads=1)
    info = replace(fake_info(), embedding=wide, inner=[wide])
    repository.add(info, [WideEngine()], free(decode_digit), None)
    await repository.warm_up()
    made.clear()
    tensor = {"name": "image", "datatype": "UINT8", "shape": [1, 1, 1, 1], "data": [7]}
    outputs = [{"name": "embedding", "parameters": {"binary_data": True}}]
    async with AppClient(create_app(repository)) as client:
        answer = await client.post(f"{PATH}?encoding_format=base64", content=b"7")
        assert vectors(answer) == [[1] * 64]
        answer = await client.post(
            "/v2/models/fake/infer", json={"inputs": [tensor], "outputs": outputs}
        )
        assert answer.content[-256:] == np.ones(64, "<f4").tobytes()
    assert kept == [False] * 3  # the second answer sees both batches
    assert len(threads) == 2
    assert threading.main_thread() not in threads
    await repository.close(PATIENCE_S)
