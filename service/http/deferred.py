"""Builds an ASGI application in a thread, so that the server can start before the application is
ready."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

# A request that the server sends itself.
_FIRST: Mapping[str, Any] = {
    "type": "http",
    "http_version": "1.1",
    "method": "GET",
    "scheme": "http",
    "path": "/v2/health/live",
    "raw_path": b"/v2/health/live",
    "root_path": "",
    "query_string": b"",
    "headers": [],
}


class Deferred:
    """Builds an application on `begin` or on the first request, and passes all requests to it.

    Importing FastAPI and describing the routes would take a third of the server's start time.
    Requests to models do not use this application.
    """

    def __init__(self, build: Callable[[], ASGIApp]) -> None:
        """`build` creates the application. It is called in a thread. If it raises an error, every
        request raises the same error."""
        self._build = build
        self._building: Future[ASGIApp] | None = None
        self._app: ASGIApp | None = None

    def begin(self) -> "Future[ASGIApp]":
        """Start building the application if this has not been started. Return a future of the
        application."""
        if self._building is None:
            thread = ThreadPoolExecutor(1, "application")
            self._building = thread.submit(self._built)
            thread.shutdown(wait=False)
        return self._building

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request to the application. If necessary, wait until the application is
        built."""
        if self._app is None:
            # Shielded: a client that leaves must not cancel what the others wait for.
            self._app = await asyncio.shield(asyncio.wrap_future(self.begin()))
        await self._app(scope, receive, send)

    def _built(self) -> ASGIApp:
        app = self._build()
        # FastAPI describes its routes when it first looks for one, which takes 27 ms.
        asyncio.run(_first(app))
        return app


async def _first(app: ASGIApp) -> None:
    await app(dict(_FIRST), _no_body, _to_nobody)


async def _no_body() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _to_nobody(_: Message) -> None:
    pass
