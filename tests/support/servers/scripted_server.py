"""Runs a server on a loopback port, in a thread. The test chooses the answers."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from aiohttp import web

from loadtest.answers import PHASES
from tests.support import PATIENCE_S


@dataclass
class ReceivedRequests:
    """Holds the received bodies and headers, in order."""

    url: str = ""
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


Script = Callable[[bytes, int], Awaitable[web.Response]]
"""A function that returns the answer to the n-th body."""


def answer(index: int, status: int = 200) -> web.Response:
    """Return a good answer with the class `index`."""
    predictions = [
        {"index": index, "label": str(index), "probability": 0.9},
        {"index": (index + 1) % 10, "label": "", "probability": 0.05},
    ]
    content = {
        "model": "scripted",
        "results": [{"predictions": predictions}],
        "timing_ms": {**dict.fromkeys(PHASES, 0.1), "total": 0.5},
    }
    return web.Response(
        body=json.dumps(content), status=status, headers={"content-type": "application/json"}
    )


async def honest(body: bytes, _: int) -> web.Response:
    """Answer `b"7"` with class 7."""
    return answer(int(body[:1]))


@contextmanager
def scripted(
    script: Script = honest, path: str = "/v1/classify", metrics: str | None = None
) -> Iterator[ReceivedRequests]:
    """Run the server, and yield the requests that it has received so far."""
    seen = ReceivedRequests()
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def classify(request: web.Request) -> web.Response:
        body = await request.read()
        seen.bodies.append(body)
        seen.headers.append(dict(request.headers))
        return await script(body, len(seen.bodies) - 1)

    async def exposition(_: web.Request) -> web.Response:
        return web.Response(text=metrics, status=404 if metrics is None else 200)

    async def serve() -> None:
        app = web.Application()
        app.router.add_post(path, classify)
        app.router.add_get("/metrics", exposition)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        seen.url = f"http://{host}:{port}"
        ready.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert ready.wait(PATIENCE_S)
    try:
        yield seen
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(PATIENCE_S)
        loop.close()
