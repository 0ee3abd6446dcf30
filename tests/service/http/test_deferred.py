"""The application that a thread builds while the server already answers."""

import asyncio
from concurrent.futures import Future
from threading import Event, current_thread
from typing import Any

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from service.http.deferred import Deferred
from tests.support import PATIENCE_S

SCOPE = {"type": "http", "path": "/asked"}


async def receive() -> Any:
    raise AssertionError("no request here has a body")


async def send(_: Any) -> None:
    raise AssertionError("the application answers nothing")


class Built:
    """Builds an application that notes what it is asked for; waits for `may_end`."""

    def __init__(self, *, waits: bool = False) -> None:
        self.paths: list[str] = []
        self.threads: list[str] = []
        self.may_end = Event()
        if not waits:
            self.may_end.set()

    def __call__(self) -> ASGIApp:
        self.threads.append(current_thread().name)
        assert self.may_end.wait(PATIENCE_S)

        async def app(scope: Scope, _: Receive, __: Send) -> None:
            self.paths.append(scope["path"])

        return app


def test_requests_that_come_while_it_is_built_wait_and_are_answered_once_each() -> None:
    built = Built(waits=True)
    app = Deferred(built)

    async def ask() -> None:
        requests = [asyncio.create_task(app(SCOPE, receive, send)) for _ in range(3)]
        await asyncio.sleep(0)
        assert built.paths == []
        built.may_end.set()
        await asyncio.gather(*requests)
        await app(SCOPE, receive, send)

    asyncio.run(ask())
    assert len(built.threads) == 1
    assert built.threads != [current_thread().name]
    # First the request by which FastAPI describes its routes: not in the event loop.
    assert built.paths == ["/v2/health/live"] + ["/asked"] * 4


def test_it_is_built_before_the_first_request_if_that_is_begun() -> None:
    built = Built()
    app = Deferred(built)
    assert app.begin() is app.begin()
    app.begin().result(PATIENCE_S)
    assert built.paths == ["/v2/health/live"]
    asyncio.run(app(SCOPE, receive, send))
    assert len(built.threads) == 1


def test_a_client_that_leaves_before_the_build_begins_does_not_cancel_it() -> None:
    app = Deferred(Built())
    waiting: Future[ASGIApp] = Future()  # its thread has not begun
    app._building = waiting

    async def leave() -> None:
        request = asyncio.create_task(app(SCOPE, receive, send))
        await asyncio.sleep(0)
        request.cancel()
        await asyncio.wait([request])
        await asyncio.sleep(0)

    asyncio.run(leave())
    assert not waiting.cancelled()


def test_a_request_raises_the_error_of_the_build() -> None:
    def broken() -> ASGIApp:
        raise ImportError("no module of this name")

    app = Deferred(broken)
    for _ in range(2):
        with pytest.raises(ImportError, match="no module of this name"):
            asyncio.run(app(SCOPE, receive, send))
