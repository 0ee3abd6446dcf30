"""Runs a server in the event loop of a test. A client sends bytes to the server."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial, wraps
from typing import Any, cast

import uvicorn
from uvicorn.server import ServerState

from service.api.app import create_app
from service.edge.call_turns import CallTurns
from service.hosting.repository import Repository
from service.http.acceptor import Acceptor
from service.http.server import http_settings
from service.http.uvicorn_adapter import ConvoyConfig
from service.settings import Settings
from tests.support import PATIENCE_S
from tests.support.servers.listening import Client
from tests.support.service.client import until
from tests.support.service.fakes import FakeEngine, make_repository

PATH = "/v1/classify"


class Http(Client):
    """A connection to the server. It decodes the JSON of answers."""

    async def head(self) -> bytes:
        """Return the headers of the next answer."""
        return await self.reader.readuntil(b"\r\n\r\n")

    async def answer(self) -> tuple[int, dict[str, str], Any]:
        """Return status, headers and JSON of the next answer."""
        reply = await self.reply()
        return reply.status, reply.headers, json.loads(reply.body)

    async def digit(self) -> int:
        """Return the likeliest class in the next answer."""
        status, _, body = await self.answer()
        assert status == 200, body
        index: int = body["results"][0]["predictions"][0]["index"]
        return index

    async def ended(self) -> bool:
        """Return whether the server closed the connection without another answer."""
        return await self.rest() == b""

    def abort(self) -> None:
        """Abort the connection."""
        self.writer.transport.abort()


class LiveServer:
    """Holds a running server, and the paths that its application received over ASGI."""

    def __init__(
        self,
        repository: Repository,
        port: int,
        asked: list[str],
        connections: set[Any],
        acceptor: Acceptor,
        turns: CallTurns,
    ) -> None:
        self.repository = repository
        self.connections = connections
        self.pipeline = next(iter(repository.models.values()))
        self.asked = asked
        self.acceptor = acceptor
        self.turns = turns
        self.port = port

    async def connect(self) -> Http:
        return Http(*await asyncio.open_connection("127.0.0.1", self.port))


@asynccontextmanager
async def served(
    engine: FakeEngine | None = None, *, stock: bool = False, direct: bool = True, **options: Any
) -> AsyncIterator[LiveServer]:
    """Serve a repository with fakes. Convoy's own connections receive the requests, with or without
    the direct path. If `stock`, an unchanged uvicorn receives them instead."""
    repository = make_repository(engine, **options)
    app = create_app(repository)
    await repository.warm_up()
    asked: list[str] = []

    async def watched(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["path"])
        await app(scope, receive, send)

    if stock:
        config = uvicorn.Config(watched, log_config=None, access_log=False, lifespan="off")
    else:
        config = http_settings(
            watched, Settings(access_log=False, direct_path=direct), endpoints=app.endpoints
        )
    config.load()
    state = ServerState()
    turns = config.edge.turns if isinstance(config, ConvoyConfig) else CallTurns()
    listener = socket.create_server(("127.0.0.1", 0))
    protocol = cast(Any, config.http_protocol_class)
    make = partial(protocol, config, state, {})
    acceptor = Acceptor(listener, turns, make, config.backlog)
    try:
        port = listener.getsockname()[1]
        yield LiveServer(repository, port, asked, state.connections, acceptor, turns)
    finally:
        acceptor.close()
        listener.close()
        for connection in cast("set[Any]", state.connections.copy()):
            (connection.transport if stock else connection._transport).abort()
        await until(lambda: not repository.requests and not repository.room.taken)
        assert await repository.close(PATIENCE_S)


FORM = "content-type: multipart/form-data; boundary=cut"


def form(*files: bytes) -> bytes:
    head = b'--cut\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
    return b"".join(head + file + b"\r\n" for file in files) + b"--cut--\r\n"


def run(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def wrapper(*args: Any, **options: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **options), 2 * PATIENCE_S))

    return wrapper
