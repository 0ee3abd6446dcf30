"""The shortest way for the commonest request: a POST that is whole in a moment.

    head ── known path, length told, small ── no ── uvicorn's own way: ASGI, the application
                                           └─ yes ── body ── the path's exchange ── one write

uvicorn's way makes for every request a scope, a cycle, an event, and two messages out, each a
coroutine; FastAPI adds five layers of middleware and a search for the route. Together that was more
than half of what a request to a quick model cost when measured. A path in the lane is a route too,
which documents it, answers 405, and takes over whenever a request is in any way unusual.
"""

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Any, ClassVar, Self, cast

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from service.access import Entry
from service.admission import Visit
from service.body import WholeBody, content_length
from service.connection import raise_departure
from service.errors import QueueFullError
from service.exchange import Arrival, Exchange
from service.protocol import CLIENT_CLOSED_REQUEST, BoundedHttp

# A body that a connection may keep, until it is whole, without asking the application.
MAX_LANE_BYTES = 2**20

_POST = b"POST"
_UNUSUAL = frozenset((b"transfer-encoding", b"expect"))


class LaneHttp(BoundedHttp):
    """A connection whose requests to `lanes`, by path, are answered without ASGI."""

    lanes: ClassVar[Mapping[bytes, Exchange]]

    _arriving: "_Call | None" = None  # its body is
    _call: "_Call | None" = None  # until it is answered

    def claims(self, entry: Entry) -> bool:
        """Whether the lane takes the request whose head is there."""
        if self.cycle is not None and not self.cycle.response_complete:
            return False  # pipelined; uvicorn keeps the order
        if self.flow.write_paused:
            return False  # answers are not taken; uvicorn waits with the next
        path, _, query = entry.target.partition(b"?")
        exchange = self.lanes.get(path)
        if exchange is None or entry.method != _POST:
            return False
        headers = entry.headers
        length = content_length(headers)
        most = min(MAX_LANE_BYTES, exchange.max_body_bytes)
        if length is None or length > most or not _UNUSUAL.isdisjoint(headers):
            return False
        visit = Visit(exchange.pipeline.admission)
        try:
            visit.hold_bytes(length)
        except QueueFullError:  # to be told by the application
            visit.leave()
            return False
        keep_alive = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        call = _Call(entry, exchange, visit, query, keep_alive)
        self._arriving = self._call = call
        self.cycle = cast(RequestResponseCycle, call)
        return True

    def on_body(self, body: bytes) -> None:
        """Some of a body is there."""
        if self._arriving is None:
            super().on_body(body)
        else:
            self.count_body(body)
            self._arriving.chunks.append(body)

    def on_message_complete(self) -> None:
        """A request is there."""
        call, self._arriving = self._arriving, None
        if call is None:
            super().on_message_complete()
        else:
            self.count_message()
            call.task = self.loop.create_task(self._answer(call))

    def hang_up(self) -> None:
        """The client is gone, or was sent away."""
        call, self._call = self._call, None
        if self._arriving is not None:
            self._arriving = None
            if call is not None:
                call.leave()
        elif call is not None:
            call.abandon()
        super().hang_up()

    async def _answer(self, call: "_Call") -> None:
        exchange, pipeline = call.exchange, call.exchange.pipeline
        chunks = call.chunks
        body = WholeBody(
            call.entry.headers,
            chunks[0] if len(chunks) == 1 else b"".join(chunks),
            max_images=pipeline.admission.max_images_a_request,
        )
        chunks.clear()
        arrival = Arrival(
            call.entry.headers,
            call.query,
            body,
            call,
            pipeline,
            call.visit,
            call.entry.started,
            call.entry,
        )
        self._write(call, await exchange.respond(arrival))

    def _write(self, call: "_Call", response: Response) -> None:
        call.response_complete = True
        if self._call is not call:  # nobody is there
            return
        self._call = None
        if self.transport.is_closing():
            return
        parts = [STATUS_LINE[response.status_code], b"x-request-id: ", call.entry.id, b"\r\n"]
        for name, value in self.server_state.default_headers:
            parts += (name, b": ", value, b"\r\n")
        for name, value in response.raw_headers:
            parts += (name, b": ", value, b"\r\n")
        body = bytes(response.body)
        parts += (b"\r\n" if call.keep_alive else b"connection: close\r\n\r\n", body)
        self.transport.write(b"".join(parts))
        if not call.keep_alive:
            self.transport.close()
        self.request_ended(response.status_code, len(body))


class _Call:
    """A request in the lane, to uvicorn a cycle like any other; as a context, its departure.

    Inside, ClientDisconnect is raised when the client leaves; elsewhere nothing is cancelled.
    """

    __slots__ = (
        *("entry", "exchange", "visit", "query", "keep_alive", "chunks", "task"),
        *("response_complete", "disconnected", "message_event", "_inside"),
    )

    def __init__(
        self,
        entry: Entry,
        exchange: Exchange,
        visit: Visit,
        query: bytes,
        keep_alive: bool,
    ) -> None:
        self.entry = entry
        self.exchange = exchange
        self.visit = visit
        self.query = query
        self.keep_alive = keep_alive
        self.chunks: list[bytes] = []
        self.task: asyncio.Task[None] | None = None
        self.response_complete = False
        self.disconnected = False
        self.message_event = _NOBODY_WAITS
        self._inside = False

    def __enter__(self) -> Self:
        if self.disconnected:
            raise ClientDisconnect
        self._inside = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._inside = False
        if self.disconnected and self.task is not None:
            raise_departure(self.task, error)

    def leave(self) -> None:
        """The client is gone, or was sent away, before the body was whole."""
        self.visit.leave()
        self.exchange.abandoned(self.entry.started, self.entry.status or CLIENT_CLOSED_REQUEST)

    def abandon(self) -> None:
        """The client is gone."""
        self.disconnected = True
        if self._inside and self.task is not None:
            self.task.cancel()


class _Event:
    """What uvicorn tells a cycle by; this one hears of it elsewhere."""

    def set(self) -> None:
        """Nobody waits for it."""


_NOBODY_WAITS = _Event()


def lane_protocol(lanes: Mapping[str, Exchange]) -> type[LaneHttp]:
    """The protocol with these lanes, by path."""
    known: dict[str, Any] = {"lanes": {path.encode(): lane for path, lane in lanes.items()}}
    return type("LaneHttp", (LaneHttp,), known)
