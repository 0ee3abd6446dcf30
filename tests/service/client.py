"""An HTTP client of an application over fakes, in process, and what its tests ask of answers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import httpx

from service.app import create_app
from service.pipeline import Pipeline
from tests.service.fakes import FakeEngine, make_pipeline

PATH = "/v1/classify"


@asynccontextmanager
async def serving(
    engine: FakeEngine | None = None, *, warm: bool = True, **options: Any
) -> AsyncIterator[tuple[httpx.AsyncClient, Pipeline]]:
    """A client of an application over fakes, and its pipeline; nothing may be left inside it."""
    pipeline = make_pipeline(engine, **options)
    if warm:
        await pipeline.warm_up()
    transport = httpx.ASGITransport(create_app(pipeline, model="fake"), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://convoy") as client:
        yield client, pipeline
        assert await pipeline.drain(5)
        admission = pipeline.admission
        assert (admission.requests, admission.images, admission.bytes) == (0, 0, 0)
    await pipeline.close(5)


def digits(answer: httpx.Response) -> list[int]:
    """The likeliest class of each image of an answer."""
    assert answer.status_code == 200, answer.text
    return [result["predictions"][0]["index"] for result in answer.json()["results"]]


def error_of(answer: httpx.Response, status: int) -> str:
    """The message of an error, which has this status and the one shape."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert list(body) == ["error"]
    message = body["error"]
    assert isinstance(message, str)
    assert message
    return message


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread or task is about to do."""
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.002)


async def metric(client: httpx.AsyncClient, sample: str) -> float:
    """The value of one line of /metrics."""
    text = (await client.get("/metrics")).text
    lines = [line for line in text.splitlines() if line.startswith(f"{sample} ")]
    assert lines, f"{sample} is not in\n{text}"
    return float(lines[0].split()[-1])


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
    """A receive channel: a whole body, then nothing until the client leaves."""
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
