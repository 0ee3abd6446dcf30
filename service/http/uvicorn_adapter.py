"""All that Convoy knows of uvicorn's insides; its version is bounded in pyproject.toml.

uvicorn owns the server: listening, the date header, ending. `Connection` is a protocol of ours
that it is configured with, and that hands requests which are not for a model to an `AsgiCall`:
uvicorn's own cycle, driven by calls. `tests/service/http/test_uvicorn_adapter.py` names every
attribute that is relied on here.
"""

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast
from urllib.parse import unquote

import httptools
from starlette.types import ASGIApp, Message, Scope
from uvicorn import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle
from uvicorn.protocols.utils import get_local_addr, get_remote_addr
from uvicorn.server import ServerState

from service.edge.edge import Edge
from service.http.exchange import Endpoint
from service.http.parser import Head
from service.telemetry.record import RequestRecord

__all__ = ["STATUS_LINE", "AsgiCall", "ConvoyConfig", "Peers", "ServerState"]

_log = logging.getLogger("uvicorn.error")


class ConvoyConfig(Config):
    """uvicorn's settings, with what its connections share of ours."""

    def __init__(
        self,
        app: ASGIApp,
        edge: Edge,
        endpoints: Mapping[bytes, Endpoint] | None = None,
        **options: Any,
    ) -> None:
        """`endpoints` by path: requests that connections answer without ASGI."""
        super().__init__(app, **options)
        self.edge = edge
        self.endpoints = endpoints or {}


class Peers:
    """Both ends of a connection, as uvicorn has them."""

    __slots__ = ("address", "client", "config", "flow", "server", "state", "transport")

    def __init__(
        self, config: ConvoyConfig, state: ServerState, transport: asyncio.Transport
    ) -> None:
        self.config = config
        self.state = state
        self.transport = transport
        self.flow = FlowControl(transport)
        self.client = get_remote_addr(transport)  # address and port
        self.server = get_local_addr(transport)
        # The client's; it has none on a Unix socket.
        self.address = self.client[0] if self.client else ""


class AsgiCall:
    """One request that the application answers; it may not begin before those ahead of it ended."""

    __slots__ = ("_cycle", "_head", "_on_end", "_peers", "_record", "keep_alive")

    def __init__(
        self,
        peers: "Peers",
        record: RequestRecord,
        head: Head,
        on_end: Callable[[], None],
    ) -> None:
        """`on_end` is called when the answer is written."""
        self._peers = peers
        self._record = record
        self._head = head
        self._on_end = on_end
        self._cycle: RequestResponseCycle | None = None
        self.keep_alive = True

    def begin(self) -> None:
        """Have the application answer."""
        peers = self._peers
        default = peers.state.default_headers
        self._cycle = cycle = RequestResponseCycle(
            scope=self._scope(),
            transport=peers.transport,
            flow=peers.flow,
            logger=_log,
            access_logger=_log,
            access_log=False,
            default_headers=[*default, (b"x-request-id", self._record.id)],
            message_event=asyncio.Event(),
            expect_100_continue=self._head.expects_continue,
            keep_alive=self.keep_alive,
            on_response=self._on_end,
        )
        running = cycle.run_asgi(cast(Any, self._watched))
        loop = asyncio.get_running_loop()
        # An empty context: nothing that one request sets is seen by another.
        task = loop.create_task(running, context=contextvars.Context())
        task.add_done_callback(peers.state.tasks.discard)
        peers.state.tasks.add(task)

    def feed(self, chunk: bytes) -> None:
        """Some of the body is there."""
        cycle = self._cycle
        if cycle is None or cycle.response_complete:
            return
        cycle.body += chunk
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self._peers.flow.pause_reading()
        cycle.message_event.set()

    def end(self) -> None:
        """The body is there."""
        if self._cycle is not None:
            self._cycle.more_body = False
            self._cycle.message_event.set()

    def abandon(self) -> None:
        """The client is gone: the application is told when it asks."""
        cycle, self._cycle = self._cycle, None
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()

    def close_after(self) -> None:
        """Close the connection after this answer."""
        if self._cycle is not None:
            self._cycle.keep_alive = False

    @property
    def answered(self) -> bool:
        """Whether the answer is written."""
        return self._cycle is not None and self._cycle.response_complete

    def _watched(self, scope: Scope, receive: Any, send: Any) -> Awaitable[None]:
        record, cycle, transport = self._record, self._cycle, self._peers.transport

        def watch(message: Message) -> Awaitable[None]:
            if transport.is_closing() and cycle is not None:
                # The client has gone, and the connection will hear of it: uvloop raises where it
                # was reset, if written to before that.
                cycle.disconnected = True
            if self._cycle is None:
                pass  # nobody reads it
            elif message["type"] == "http.response.body":
                record.bytes_out += len(message.get("body", b""))
            else:
                record.status = message["status"]
            sent: Awaitable[None] = send(message)
            return sent

        answering: Awaitable[None] = self._peers.config.loaded_app(scope, receive, watch)
        return answering

    def _scope(self) -> Any:
        peers = self._peers
        config = peers.config
        url = httptools.parse_url(self._head.target)
        raw_path = url.path
        path = raw_path.decode("ascii")
        return {
            "type": "http",
            "asgi": {"version": config.asgi_version, "spec_version": "2.3"},
            "http_version": self._head.version,
            "server": peers.server,
            "client": peers.client,
            "scheme": "http",
            "method": self._head.method.decode("ascii"),
            "root_path": config.root_path,
            "path": config.root_path + (unquote(path) if "%" in path else path),
            "raw_path": config.root_path.encode("ascii") + raw_path,
            "query_string": url.query or b"",
            "headers": self._head.headers,
            "state": {"record": self._record},
        }
