"""HTTP/1.1 as uvicorn reads it, with an edge: bounds, keys, ids, refusals in the one error shape.

    head ── check_head ── claims? ── no ── uvicorn's way: ASGI
              │             └── yes ── a subclass's own way
              └ refused: 401, 429                     └── request_ended ── log, count, next

uvicorn's parser takes heads and trailers of any length at any pace, and answers what is no HTTP in
plain text. Here a connection is closed that sends much, or little for long, without a request
coming of it, and one that does not take its answers.
"""

from collections import deque
from enum import Enum, auto
from http import HTTPStatus
from math import inf
from typing import Any, NoReturn, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from service import framing
from service.access import Entry
from service.connections import Place, network_of
from service.edge import EdgeConfig
from service.errors import (
    BadRequestError,
    RequestTimeoutError,
    ServiceError,
    TooManyFromClientError,
)

MAX_PIPELINED = 100
"""Of requests that wait on a connection: a read can bring 14,000, each of which takes 3 kB."""

# As nginx counts a request whose client did not wait for the answer.
CLIENT_CLOSED_REQUEST = 499

_NONE = Entry(b"", "", b"", b"", {}, None)  # type: ignore[arg-type]


class _Stage(Enum):
    """What the client owes."""

    OPENED = auto()  # a first request
    HEAD = auto()  # the rest of a head
    BODY = auto()  # the rest of a body
    WHOLE = auto()  # nothing: the server owes an answer
    IDLE = auto()  # perhaps another request
    REFUSED = auto()  # nothing: it was told No, and is given time to read that


# As globals, for speed: to look a member up in its class takes longer than to call a function.
_OPENED, _HEAD, _BODY, _WHOLE, _IDLE, _REFUSED = _Stage


class BoundedHttp(HttpToolsProtocol):
    """A connection within bounds.

    A subclass that answers some requests itself overrides `claims`, then `on_body` and
    `on_message_complete` (calling `count_body` and `count_message`), and calls `request_ended` when
    it has written an answer. The edge may close the transport at any time; `connection_lost`
    follows.
    """

    def __init__(self, config: EdgeConfig, *args: Any, **options: Any) -> None:
        super().__init__(config, *args, **options)
        self.edge = config.edge
        self.entry = _NONE  # of the head that was read last
        self.entries: deque[Entry] = deque()  # not answered yet; answers keep their order
        self._behind = self.app
        self._working: RequestResponseCycle | None = None  # the last that uvicorn began
        self._pending = 0  # bytes since the parser last had something to show for them
        self._stage = _OPENED
        self._since = 0.0  # loop time; when the stage began
        self._refusal: tuple[HTTPStatus, str, dict[str, str]] | None = None  # to come last
        self._unsent_since = 0.0  # when the sweep first found some of an answer not taken; 0: none
        self._head_bytes = 0  # of the head that is coming
        self._place = Place.OPEN
        self.address = ""

    # --- what a subclass has to do with ----------------------------------------------------------

    def claims(self, _: Entry) -> bool:
        """Whether the request whose head is there is answered without ASGI, by a subclass.

        Its target, method and headers are in the entry. It was let in, and has an id, which its
        answer should carry as X-Request-Id.
        """
        return False

    def check_head(self) -> ServiceError | None:
        """Begin `entry`, for the head that is there; why it is not let in, if it is not."""
        headers = dict(self.headers)
        edge = self.edge
        self.entry = entry = Entry(
            edge.request_id(headers),
            self.client[0] if self.client else "",
            self.parser.get_method(),
            self.url,
            headers,
            self._behind,
        )
        self.entries.append(entry)
        edge.admit(entry)
        if self._place is Place.HEALTH and not edge.may_ask_after_health(entry):
            entry.refusal = edge.full(self._place)
        return entry.refusal

    def count_body(self, body: bytes) -> None:
        """Some of the body came."""
        self._pending = 0
        self.entry.bytes_in += len(body)

    def count_message(self) -> None:
        """The request is whole."""
        self._pending = 0
        self._stage = _WHOLE if self.entries else _IDLE

    def request_ended(self, status: int, bytes_out: int) -> None:
        """The oldest request's answer is written, or none will be; the next one's turn."""
        entry = self.entries.popleft()
        entry.status = status
        entry.bytes_out = bytes_out
        entry.release()
        self.edge.leave(entry)
        self._go_on()

    def hang_up(self) -> None:
        """Whoever works at an answer may stop: it would not be written. Called once or twice."""
        working = self._working  # others wait behind it, and are not begun
        if working is not None and not working.response_complete:
            working.disconnected = True
            working.message_event.set()

    # --- what httptools and uvicorn call ---------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """A client is there."""
        super().connection_made(transport)
        self._since = self.loop.time()
        self.address = network_of(self.client[0]) if self.client else ""
        self._place = self.edge.open(self, cast("set[BoundedHttp]", self.connections))
        if self._place in (Place.REFUSED, Place.ADDRESS_REFUSED):
            self._refuse(self.edge.full(self._place))
            self.transport.close()  # it takes up one of them

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone, and does not wait for what is not answered."""
        self.hang_up()
        self.edge.close(self)
        while self.entries:
            entry = self.entries.popleft()
            entry.status = entry.status or CLIENT_CLOSED_REQUEST
            entry.release()
            self.edge.leave(entry)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what arrived; 431 where no head comes of it, closed where no body does."""
        if self._refusal is not None or self._stage is _REFUSED:
            return
        self._pending += len(data)
        while data:
            try:
                self.parser.feed_data(data)
                break
            except httptools.HttpParserUpgrade as upgrade:
                data = self._stay() + data[upgrade.args[0] :]
            except httptools.HttpParserError as error:
                self._refuse(framing.not_http(str(error)))
                return
        if self._pending > framing.MAX_HEAD_BYTES:
            self._refuse(framing.head_too_large())

    def on_message_begin(self) -> None:
        """A head begins. The scope is made when it is known to be needed."""
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._head_bytes = 0
        self._stage = _HEAD
        self._since = self.loop.time()

    def on_url(self, url: bytes) -> None:
        """Some of a target is there."""
        self.url += url
        self._head_bytes += len(url)
        if len(self.url) > framing.MAX_TARGET_BYTES:
            self._stop(framing.target_too_long())

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header is there, of the head or behind a body in chunks."""
        name = name.lower()
        headers = self.headers
        headers.append((name, value))
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > framing.MAX_HEAD_BYTES or len(headers) > framing.MAX_HEADERS:
            self._stop(framing.head_too_large())
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True

    def on_headers_complete(self) -> None:
        """A head is there."""
        self._pending = 0
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                self._stop(BadRequestError("CONNECT is for proxies, and this is none"))
            return  # it comes again, by `_stay`
        if len(self.entries) >= MAX_PIPELINED:
            wait = f"{MAX_PIPELINED} requests of yours wait on this connection, and no more may"
            self._stop(TooManyFromClientError(wait))
        wrong = framing.check_framing(self.parser.get_http_version(), self.headers)
        if wrong is not None:
            self._stop(wrong)
        self._stage = _BODY
        self._since = self.loop.time()
        if self.check_head() is None and self.claims(self.entry):
            return
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers += headers  # the list that the scope has
        self.app = self.entry  # what uvicorn starts, now or in its turn
        super().on_headers_complete()
        named = (b"x-request-id", self.entry.id)
        self.cycle.default_headers = [*self.cycle.default_headers, named]
        self.headers = []  # for what follows a body in chunks, which is read and dropped
        self.entry.cycle = self.cycle

    def on_body(self, body: bytes) -> None:
        """Some of a body is there."""
        self.count_body(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request is there."""
        if self.parser.should_upgrade():
            return
        self.count_message()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """uvicorn has written an answer."""
        if self.entries:
            entry = self.entries[0]
            self.request_ended(entry.status or HTTPStatus.INTERNAL_SERVER_ERROR, entry.bytes_out)
        else:
            self._go_on()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._working = cycle
        super()._start_asgi_task(cycle, app)

    def resume_writing(self) -> None:
        """Much of an answer was taken."""
        self._unsent_since = 0.0
        super().resume_writing()

    # --- what the edge calls ---------------------------------------------------------------------

    @property
    def silent_since(self) -> float | None:
        """Loop time since when the client owes a request; None: it does not, or it is closing."""
        if self.entries or self._stage in (_BODY, _WHOLE) or self.transport.is_closing():
            return None
        return self._since

    def hang_up_on(self) -> None:
        """Close a silent connection: another needs its place."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def inspect(self, now: float) -> None:
        """Close the connection where its client is too slow, at sending or at taking."""
        limits = self.edge.limits
        if self.transport.get_write_buffer_size():
            if not self._unsent_since:
                self._unsent_since = now
            elif now - self._unsent_since > limits.answer_s:
                self.transport.abort()
                return
        else:
            self._unsent_since = 0.0
        if self.transport.is_closing():
            return
        took = now - self._since
        if self._stage is _BODY:
            self._inspect_body(took)
        elif self._stage is _HEAD:
            # One that is pipelined behind a request waits for that one's answer.
            if took > limits.head_s and not self.entries:
                self._refuse(
                    RequestTimeoutError(
                        f"the request line and headers did not arrive within {limits.head_s:g} s"
                    )
                )
        elif took > self._patience:
            self.transport.close()

    @property
    def _patience(self) -> float:
        """For how long nothing has to come, in a stage in which nothing is begun."""
        limits = self.edge.limits
        owed = {_OPENED: limits.head_s, _IDLE: limits.idle_s, _REFUSED: limits.refused_s}
        return owed.get(self._stage, inf)

    def _inspect_body(self, took: float) -> None:
        limits = self.edge.limits
        if self.flow.read_paused or (self.entries and self.entries[0] is not self.entry):
            self._since += limits.sweep_s  # the client cannot send: the server is busy
        elif took > limits.body_s:
            self._cut_body(f"the body did not arrive within {limits.body_s:g} s")
        elif self.entry.bytes_in < (took - limits.body_grace_s) * limits.body_rate:
            self._cut_body(
                f"the body came too slowly, with {self.entry.bytes_in} bytes in {took:.0f} s"
            )

    def _cut_body(self, message: str) -> None:
        if self.entry.status or not self.entries:  # it was answered before its end
            self.transport.close()
        else:
            self._refuse(RequestTimeoutError(f"{message}; send it again, or smaller"))

    # --- within ----------------------------------------------------------------------------------

    def _stay(self) -> bytes:
        """The head that asks for another protocol, for a new parser, and without that.

        A server need not change to another. The old parser takes no body after such a head.
        """
        was, self.parser = self.parser, httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
        return framing.without_upgrade(
            was.get_method(), self.url, was.get_http_version(), self.headers
        )

    def _stop(self, error: ServiceError) -> NoReturn:
        """Refuse what is being parsed, and all that follows."""
        self._refuse(error)
        raise error  # ends the parser, which has no other way

    def _go_on(self) -> None:
        if self._stage is _WHOLE and not self.entries:
            self._stage = _IDLE
            self._since = self.loop.time()
        # The rest is uvicorn's own, without a timer a request: the sweep closes what is idle.
        self.server_state.total_requests += 1
        if self._stage is _REFUSED or self.transport.is_closing():
            return
        if self._refusal is not None and not self._is_owed_more:
            self._refuse_as(*self._refusal)
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())

    def _refuse(self, error: ServiceError) -> None:
        self._refuse_as(HTTPStatus(error.status), str(error), error.headers())

    def _refuse_as(self, status: HTTPStatus, message: str, headers: dict[str, str]) -> None:
        """The last answer of the connection, written here and now."""
        if self._leaving:
            return
        if self._is_owed_more:
            self._refusal = self._refusal or (status, message, headers)
            return
        if self._stage is _BODY and (not self.entries or self.entries[0].status):
            self.transport.close()  # it has its answer, or some of it
            return
        entry = self.entries.popleft() if self.entries else self._nameless()
        head, body = framing.last_answer(status, message, entry.id, headers)
        entry.status = status.value
        entry.bytes_out = len(body)
        entry.release()
        self.transport.write(head + body)
        # Closing at once would reset the connection where more comes, and that may overtake this.
        self.transport.write_eof()
        self._stage = _REFUSED
        self._since = self.loop.time()
        self.flow.resume_reading()
        self.edge.leave(entry)
        self.hang_up()

    @property
    def _leaving(self) -> bool:
        return self._stage is _REFUSED or self.transport.is_closing()

    @property
    def _is_owed_more(self) -> bool:
        """Whether a refusal would be taken for the answer to a request before what it refuses."""
        if self._stage is _BODY:
            return self.entries[0] is not self.entry if self.entries else False
        return bool(self.entries)

    def _nameless(self) -> Entry:
        """The entry of a request without a head."""
        client = self.client[0] if self.client else ""
        return Entry(self.edge.request_id({}), client, b"-", b"-", {}, self._behind)
