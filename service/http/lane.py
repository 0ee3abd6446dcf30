"""The shortest way for the commonest request: a POST that is whole in a moment.

    head ── known path, length told, small ── no ── uvicorn's own way: ASGI, the application
                                           └─ yes ── body ── the path's exchange ── one write

uvicorn's way makes for every request a scope, a cycle, an event, and two messages out, each a
coroutine; FastAPI adds five layers of middleware and a search for the route. Together that was more
than half of what a request to a quick model cost when measured. A path in the lane is a route too,
which documents it, answers 405, and takes over whenever a request is in any way unusual.
"""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, cast

from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from service.errors import QueueFullError
from service.hosting.admission import Visit
from service.http.body import content_length
from service.http.exchange import Arrival, Exchange
from service.http.protocol import BoundedHttp
from service.telemetry.record import Entry

# A body that a connection may keep, until it is whole, without asking the application.
MAX_LANE_BYTES = 2**20

_UNUSUAL = frozenset((b"transfer-encoding", b"expect", b"content-encoding"))

_POST = b"POST"

_Pairs = Iterable[tuple[bytes, bytes]]


class LaneHttp(BoundedHttp):
    """A connection whose requests to `lanes`, by path, are answered without ASGI."""

    lanes: ClassVar[Mapping[bytes, Exchange]]

    _arriving: "_Call | None" = None  # its body is
    _call: "_Call | None" = None  # until it is answered
    _defaults: _Pairs | None = None  # what every answer has, and as it is written
    _default_lines = b""

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
        if not _UNUSUAL.isdisjoint(headers):
            return False
        length = content_length(headers)
        if length is None or length > MAX_LANE_BYTES or length > exchange.max_body_bytes:
            return False
        if not exchange.at_once(headers, length):
            return False
        visit = Visit(exchange.pipeline.admission)
        try:
            visit.hold_bytes(length)
        except QueueFullError:  # to be told by the application
            visit.leave()
            return False
        call = _Call(entry, exchange, visit, query)
        call.keep_alive = (
            self.parser.should_keep_alive() and self.parser.get_http_version() != "1.0"
        )
        self._arriving = self._call = call
        self.cycle = cast(RequestResponseCycle, call)
        return True

    def on_body(self, body: bytes) -> None:
        """Some of a body is there."""
        call = self._arriving
        if call is None:
            super().on_body(body)
        else:
            self.count_body(body)
            call.chunks.append(body)

    def on_message_complete(self) -> None:
        """A request is there."""
        call, self._arriving = self._arriving, None
        if call is None:
            super().on_message_complete()
        else:
            self.count_message()
            chunks, call.chunks = call.chunks, []
            body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            call.exchange.score(call, body, self._write)

    def hang_up(self) -> None:
        """The client is gone, or was sent away."""
        call, self._call = self._call, None
        self._arriving = None
        if call is not None:
            call.leave()
        super().hang_up()

    def _write(self, response: Response) -> None:
        call, self._call = self._call, None
        if call is None:  # nobody is there
            return
        call.response_complete = True
        # An idle connection would keep it, and with it the pictures.
        if self.cycle is call:  # type: ignore[comparison-overlap]
            self.cycle = None  # type: ignore[assignment]
        if self.transport.is_closing():
            return
        status, body, keep_alive = response.status_code, bytes(response.body), call.keep_alive
        defaults = self.server_state.default_headers
        if defaults is not self._defaults:  # a new list each second, for the date
            self._defaults, self._default_lines = defaults, _lines(defaults)
        whole = b"%bx-request-id: %b\r\n%b%b%b\r\n%b" % (
            STATUS_LINE[status],
            self.entries[0].id,
            self._default_lines,
            _lines(response.raw_headers),
            b"" if keep_alive else b"connection: close\r\n",
            body,
        )
        self.transport.write(whole)
        if not keep_alive:
            self.transport.close()
        self.request_ended(status, len(body))


def _lines(headers: _Pairs) -> bytes:
    return b"".join([b"%b: %b\r\n" % header for header in headers])


class _Event:
    """What uvicorn tells a cycle by; this one hears of it elsewhere."""

    def set(self) -> None:
        """Nobody waits for it."""


_NOBODY_WAITS = _Event()


class _Call(Arrival):
    """A request in the lane, to uvicorn a cycle like any other."""

    __slots__ = (
        "chunks",
        "disconnected",
        "exchange",
        "keep_alive",
        "response_complete",
    )

    message_event = _NOBODY_WAITS

    def __init__(self, entry: Entry, exchange: Exchange, visit: Visit, query: bytes) -> None:
        pipeline = exchange.pipeline
        super().__init__(entry.headers, query, pipeline, visit, entry.started, entry)
        self.exchange = exchange
        self.keep_alive = True
        self.chunks: list[bytes] = []
        self.response_complete = False
        self.disconnected = False

    def leave(self) -> None:
        """The client is gone, or was sent away."""
        self.disconnected = True
        self.withdraw()
        self.visit.leave()
        self.exchange.abandoned(self.started, self.entry.status if self.entry else 0)


def lane_protocol(lanes: Mapping[str, Exchange]) -> type[LaneHttp]:
    """The protocol with these lanes, by path."""
    known: dict[str, Any] = {"lanes": {path.encode(): lane for path, lane in lanes.items()}}
    return type("LaneHttp", (LaneHttp,), known)
