"""Contains all code that uses uvicorn's internals. These may change in any version, so
pyproject.toml limits the version of uvicorn.

uvicorn runs the event loop, writes the date header, and shuts the server down. Convoy's `Acceptor`
listens, and creates a `Connection` for each connection. A `Connection` passes requests that are not
for a model to an `AsgiCall`, which is uvicorn's request cycle.
`tests/service/http/test_uvicorn_adapter.py` names every attribute used here.
"""

import asyncio
import contextvars
import logging
import sys
from collections.abc import Mapping
from typing import Any, Protocol, cast
from urllib.parse import unquote

import httptools
from starlette.types import ASGIApp, Receive, Scope, Send
from typing_extensions import override
from uvicorn import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle
from uvicorn.protocols.utils import get_local_addr, get_remote_addr
from uvicorn.server import ServerState

from service.edge.call_turns import Turn
from service.edge.edge import Edge
from service.errors import BadRequestError, ShuttingDownError
from service.hosting.admission import ByteRoom
from service.http.exchange import AnyEndpoint
from service.http.parser import Head
from service.http.responses import refusal
from service.telemetry.record import RequestRecord

__all__ = ["STATUS_LINE", "AsgiCall", "ConvoyConfig", "Peers", "ServerState"]

_log = logging.getLogger("uvicorn.error")


_READ_BYTES = 2**18  # the most bytes of one read, the same as in uvloop


class ConvoyConfig(Config):
    """uvicorn's settings, with the objects that all of Convoy's connections share."""

    def __init__(
        self,
        app: ASGIApp,
        edge: Edge,
        endpoints: Mapping[str, AnyEndpoint] | None = None,
        room: ByteRoom | None = None,
        **options: Any,
    ) -> None:
        """`endpoints` maps paths to the endpoints that connections call without ASGI. The caller
        may change this mapping later. `room` counts the bytes of answers that clients have not
        read. All connections receive bytes in the buffer `received`."""
        super().__init__(app, **options)
        self.edge = edge
        self.received = bytearray(_READ_BYTES)
        self.room = room or ByteRoom(sys.maxsize)
        self.endpoints = {} if endpoints is None else endpoints


class Peers:
    """Holds the addresses of both ends of a connection, and uvicorn's objects for its state and
    flow control."""

    def __init__(
        self, config: ConvoyConfig, state: ServerState, transport: asyncio.Transport
    ) -> None:
        self.config = config
        self.state = state
        self.transport = transport
        self.flow = FlowControl(transport)
        self.client = get_remote_addr(transport)  # address and port
        self.server = get_local_addr(transport)
        # A Unix socket's client has no address, and a client that has already left has none either.
        self.address = self.client[0] if self.client else ""


class AnswerProgress(Protocol):
    """The interface through which an `AsgiCall` tells the connection's queue that the call's answer
    begins or is complete."""

    def decide_last(self) -> bool:
        """Return whether to close the connection after this answer. This is called just before the
        answer's headers are written."""

    def make_last(self) -> None:
        """Close the connection after this answer."""

    def answered(self) -> None:
        """Mark the request as answered."""


class AsgiCall(RequestResponseCycle):
    """Passes one request to the ASGI application, and sends the application's answer to the
    client."""

    def __init__(
        self, peers: Peers, record: RequestRecord, head: Head, answers: AnswerProgress
    ) -> None:
        """Initialise uvicorn's request cycle. Raises BadRequestError if the request's target is
        malformed."""
        super().__init__(
            scope=_scope(peers, record, head),
            transport=peers.transport,
            flow=peers.flow,
            logger=_log,
            access_logger=_log,
            access_log=False,
            default_headers=[],
            message_event=asyncio.Event(),
            expect_100_continue=head.expects_continue,
            keep_alive=True,
            on_response=answers.answered,
        )
        self._peers = peers
        self._record = record
        self._answers = answers
        self._turn: Turn | None = None  # since `begin`

    def begin(self) -> None:
        """Queue the start of the application in `call_turns`, which limits how often requests that
        need no model begin. This is called after all earlier requests of the connection were
        answered."""
        self._turn = self._peers.config.edge.turns.post(self._record.caller.name, self._begin)

    def _begin(self) -> None:
        state = self._peers.state
        self.default_headers = [*state.default_headers, (b"x-request-id", self._record.id)]
        running = self.run_asgi(cast(Any, self._run))
        # An empty context: no request sees the context variables of another.
        task = asyncio.get_running_loop().create_task(running, context=contextvars.Context())
        task.add_done_callback(state.tasks.discard)
        state.tasks.add(task)

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application. If the server shuts down first, uvicorn cancels the application, and
        would answer 500 in plain text."""
        try:
            await self._peers.config.loaded_app(scope, receive, send)
        except asyncio.CancelledError:
            if self.response_started:
                raise
            error = ShuttingDownError("the server is shutting down; use another server")
            await refusal(error)(scope, receive, send)

    def add_piece(self, chunk: bytes) -> None:
        """Append a part of the request's body."""
        if self.response_complete:
            return
        self.body += chunk
        if len(self.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        self.message_event.set()

    def end(self) -> None:
        """Mark the request's body as complete."""
        self.more_body = False
        self.message_event.set()

    def abandon(self) -> None:
        """Let the application's next call of `receive` report that the client has disconnected. If
        the application has not begun, do not start it."""
        if self._turn is not None:
            self._turn.withdraw()
        self.disconnected = True
        self.message_event.set()

    @override
    async def send(self, message: Any) -> None:
        """Write a message from the application, unless the client has disconnected. Record its
        status and size."""
        if not self.disconnected:
            if message["type"] == "http.response.body":
                self._record.bytes_out += len(message.get("body", b""))
            else:
                self._record.status = message["status"]
                self.keep_alive = not self._answers.decide_last()
            # uvloop raises on a write to a connection that was reset, until it reports the reset.
            self.disconnected = self.transport.is_closing()
        await super().send(message)
        if not self.keep_alive:  # the application may have decided this
            # `AnswerQueue` closes the connection, not uvicorn: not while the body arrives.
            self._answers.make_last()
            self.keep_alive = True


def _scope(peers: Peers, record: RequestRecord, head: Head) -> Any:
    """Return the ASGI scope of a request. Raises BadRequestError if the request target is
    malformed."""
    try:
        url = httptools.parse_url(head.target)
    except httptools.HttpParserInvalidURLError as error:
        raise BadRequestError("malformed request target; send a path, such as /v2") from error
    config, raw_path = peers.config, url.path or b"/"
    path = raw_path.decode("ascii")
    return {
        "type": "http",
        "asgi": {"version": config.asgi_version, "spec_version": "2.3"},
        "http_version": head.version,
        "server": peers.server,
        "client": peers.client,
        "scheme": "http",
        "method": head.method.decode("ascii"),
        "root_path": config.root_path,
        "path": config.root_path + (unquote(path) if "%" in path else path),
        "raw_path": config.root_path.encode("ascii") + raw_path,
        "query_string": url.query or b"",
        "headers": head.headers,
        "state": {"record": record},
    }
