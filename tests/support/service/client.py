"""Sends HTTP requests to an application with fakes in the same process. Checks the answers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import httpx
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families

from service.api.app import create_app
from service.hosting.pipeline import Pipeline
from tests.support import PATIENCE_S
from tests.support.service.fakes import FakeEngine, make_repository

PATH = "/v1/classify"


class AppClient(httpx.AsyncClient):
    """Sends requests to an application in this process. Tests may also call the application
    directly."""

    def __init__(self, app: FastAPI) -> None:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        super().__init__(transport=transport, base_url="http://convoy")
        self.app = app


@asynccontextmanager
async def serving(
    engine: FakeEngine | None = None, *, warm: bool = True, **options: Any
) -> AsyncIterator[tuple[AppClient, Pipeline]]:
    """Yield a client of an application with fakes, and the application's pipeline. Fails if a
    request remains in the pipeline at the end of the block."""
    repository = make_repository(engine, **options)
    (pipeline,) = repository.models.values()
    if warm:
        await repository.warm_up()
    async with AppClient(create_app(repository)) as client:
        yield client, pipeline
        assert await pipeline.drain(PATIENCE_S)
        admission = pipeline.admission
        assert (admission.requests, admission.images, admission.room.taken) == (0, 0, 0)
    await repository.close(PATIENCE_S)


def digits(answer: httpx.Response) -> list[int]:
    """Return the likeliest class of each image in an answer."""
    assert answer.status_code == 200, answer.text
    return [result["predictions"][0]["index"] for result in answer.json()["results"]]


def error_of(answer: httpx.Response, status: int) -> str:
    """Check that an answer is an error with this status in the common format, and return its
    message."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert list(body) == ["error"]
    message = body["error"]
    assert isinstance(message, str)
    assert message
    return message


async def until(condition: Callable[[], bool]) -> None:
    """Wait until another thread or task has made the condition true."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.002)


async def metric(client: httpx.AsyncClient, sample: str) -> float:
    """Return the value of a sample of /metrics. Labels that are not given are summed over all their
    values."""
    return metric_in((await client.get("/metrics")).text, sample)


def metric_in(text: str, sample: str) -> float:
    """Return the same value as `metric`, but from the given text of /metrics."""
    (wanted,) = samples_in(f"{sample} 0\n")
    values = [
        value
        for name, labels, value in samples_in(text)
        if name == wanted[0] and wanted[1].items() <= labels.items()
    ]
    assert values, f"{sample} is not in\n{text}"
    return sum(values)


def samples_in(text: str) -> list[tuple[str, dict[str, str], float]]:
    """Return name, labels and value of every sample in the text of /metrics."""
    families = text_string_to_metric_families(text)
    return [(s.name, s.labels, s.value) for family in families for s in family.samples]


SCOPE: Any = {
    "type": "http",
    "method": "POST",
    "path": PATH,
    "query_string": b"",
    "headers": [],
}


async def stream(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


def one_chunk_then(leaving: asyncio.Event) -> Callable[[], Any]:
    """Return an ASGI receive function. Its first call returns a whole body. Later calls wait until
    the client leaves."""
    bodies = [{"type": "http.request", "body": b"1", "more_body": False}]

    async def receive() -> Any:
        if bodies:
            return bodies.pop()
        await leaving.wait()
        return {"type": "http.disconnect"}

    return receive


def collect(sent: list[Any]) -> Callable[[Any], Any]:
    async def send(message: Any) -> None:
        sent.append(message)

    return send
