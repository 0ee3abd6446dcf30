"""Runs an application behind the edge (access control) on a loopback port, in the event loop of a
test."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from starlette.types import ASGIApp
from uvicorn.server import ServerState

from service.edge.edge import Edge, Limits
from service.edge.keys import Keys
from service.hosting.admission import ByteRoom
from service.http.acceptor import Acceptor
from service.http.connection import Connection
from service.http.exchange import AnyEndpoint
from service.http.uvicorn_adapter import ConvoyConfig
from service.telemetry.record import RequestRecord
from tests.support import PATIENCE_S

_LONG_S = 10.0 * PATIENCE_S

PATIENT = Limits(
    head_s=_LONG_S,
    body_s=_LONG_S,
    body_grace_s=_LONG_S,
    answer_s=_LONG_S,
    refused_s=_LONG_S,
    idle_s=_LONG_S,
)
"""Limits that disconnect no client, because the tests' clients are slow on a busy machine."""


class OpenPort:
    """Holds a port, its edge, the records of the port's requests, and the clients that send bytes
    to the port."""

    def __init__(
        self, port: int, edge: Edge, entries: list[RequestRecord], state: ServerState
    ) -> None:
        self.port = port
        self.edge = edge
        self.entries = entries  # of requests that ended
        self.connections = state.connections
        self.repository: Any = None  # set by tests that need the application's models
        self._clients: list[asyncio.StreamWriter] = []

    async def connect(self, *, limit: int = 2**16) -> "Client":
        """Open a connection. The client reads at most about 2 × `limit` bytes ahead."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=limit)
        self._clients.append(writer)
        return Client(reader, writer)

    async def send(self, data: bytes) -> "Client":
        """Open a connection and send `data`."""
        client = await self.connect()
        client.send(data)
        return client

    async def ask(self, data: bytes) -> "Reply":
        """Return the answer to a request on a separate connection."""
        return await (await self.send(data)).reply()

    def close(self) -> None:
        """Abort the connections of all clients."""
        for writer in self._clients:
            writer.transport.abort()


class Client:
    """Sends and receives bytes on one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self.writer.write(data)

    async def reply(self, *, to_head: bool = False) -> "Reply":
        """Return the next answer. The answer to a HEAD request (`to_head`) has no body."""
        async with asyncio.timeout(PATIENCE_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.strip().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines)
            length = 0 if to_head else int(headers.get("content-length", "0"))
            body = await self.reader.readexactly(length)
        return Reply(int(first.split()[1]), headers, body)

    async def rest(self) -> bytes:
        """Return everything received until the server closes."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.read()


class Reply:
    """Holds a status, headers in lower case, and a body."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def error(self, status: int) -> str:
        """Check that this is an error with `status` in the common error format, and return its
        message."""
        assert self.status == status, self
        assert self.headers["content-type"] == "application/json"
        body = json.loads(self.body)
        assert list(body) == ["error"]
        return str(body["error"])

    def __repr__(self) -> str:
        return f"{self.status} {self.headers} {self.body[:500]!r}"


@asynccontextmanager
async def listening(
    app: ASGIApp,
    *,
    limits: Limits | None = None,
    keys: Keys | None = None,
    ended: Callable[[RequestRecord], Any] = lambda _: None,
    endpoints: Mapping[str, AnyEndpoint] | None = None,
    room: ByteRoom | None = None,
) -> AsyncIterator[OpenPort]:
    """Serve `app` with `limits`, by default PATIENT. `room` bounds the bytes of unread answers.
    Fails if a request is still in progress at the end of the block."""
    entries: list[RequestRecord] = []
    edge = Edge(limits or PATIENT, keys, [entries.append, ended])
    config = ConvoyConfig(
        app,
        edge,
        endpoints,
        room,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
    )
    config.load()
    state = ServerState()
    listener = socket.create_server(("127.0.0.1", 0))
    acceptor = Acceptor(listener, edge.turns, lambda: Connection(config, state, {}), 100)
    shown = OpenPort(listener.getsockname()[1], edge, entries, state)
    try:
        yield shown
    finally:
        shown.close()
        acceptor.close()
        listener.close()
    async with asyncio.timeout(PATIENCE_S):
        while state.connections or state.tasks:
            await asyncio.sleep(0.002)
    assert not edge.inside


def post(body: bytes, *headers: str, path: str = "/v1/classify", version: str = "1.1") -> bytes:
    """Return a request with this body."""
    first = f"POST {path} HTTP/{version}"
    lines = [first, "Host: convoy", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def get(path: str, *headers: str, method: str = "GET") -> bytes:
    """Return a request without a body."""
    lines = [f"{method} {path} HTTP/1.1", "Host: convoy", *headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
