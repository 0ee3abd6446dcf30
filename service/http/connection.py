"""Serves one client's connection: parses its bytes, enforces the limits and queues its requests.

    bytes ── Parser ── head ── edge ─┬─ ErrorReply
                                     ├─ a model's endpoint ── Exchange
                                     └─ everything else ───── AsgiCall

A connection is closed if its client sends too many bytes without completing a request, sends too
slowly, or does not read its answers.

A FIN after complete requests can mean two things. Either the client has closed only its sending
side and waits for the answers, or it has closed the whole connection and its requests should be
withdrawn. To find out, the server sends `100 Continue` after a while. An HTTP/1.1 client that waits
ignores this line. If the connection is closed, the client's operating system replies with a reset.
"""

import asyncio
import select
from functools import partial
from http import HTTPStatus
from math import inf
from typing import Any, cast

from typing_extensions import override

from service.edge.call_turns import Turn
from service.edge.connections import GRACE_S, KEPT_S, network_of
from service.errors import (
    BadRequestError,
    Code,
    QueueFullError,
    RequestTimeoutError,
    ServiceError,
    TooManyConnectionsError,
    TooManyFromClientError,
)
from service.fair_queue import ANYONE
from service.hosting.admission import Held
from service.http.acceptor import reports
from service.http.answer_queue import CONTINUE, AnswerQueue, ErrorReply, QueuedRequest, Work
from service.http.exchange import Exchange
from service.http.parser import Head, Parser
from service.http.uvicorn_adapter import AsgiCall, ConvoyConfig, Peers, ServerState
from service.telemetry.record import RequestRecord

# Seconds until a client that closed its sending side is asked (again) whether it is still there.
# Then seconds between two checks of a connection that should be closed, but has bytes to read.
_ASK_S, _LOOK_S = 0.1, 0.01

MAX_PIPELINED = 100
"""The most requests that may wait on a connection. One read can return 14,000 requests, which take
3 kB of memory each."""


# What the server waits for: a first request; the rest of a head; the rest of a body; nothing,
# because it owes an answer; perhaps another request; the client's reading of its last answer. Plain
# numbers, for speed: an attribute of an Enum takes longer than a function call.
_OPENED, _HEAD, _BODY, _WHOLE, _IDLE, _REFUSED = range(6)

# Statuses of requests that even an idle server refuses: they are invalid, or their deadline cannot
# be met.
_WRONG = frozenset((*range(400, 500), Code.TOO_LATE)) - {Code.TOO_MANY, Code.CLIENT_LEFT}


class Connection(asyncio.BufferedProtocol):
    """Serves one client: parses its bytes, and passes requests to `Edge` and `AnswerQueue`."""

    def __init__(
        self,
        config: ConvoyConfig,
        server_state: ServerState,
        app_state: dict[str, Any],  # noqa: ARG002
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Prepare for a connection. uvicorn calls this when it accepts a connection."""
        self._config = config
        self._edge = config.edge
        self._state = server_state
        self._loop = asyncio.get_running_loop()
        self._parser = Parser(self)
        self._parsing: QueuedRequest | None = None  # whose body is being received
        # These three are set when the connection is made.
        self._transport: asyncio.Transport
        self._peers: Peers
        self._answers: AnswerQueue
        self.address = ""
        self._caller = ANYONE
        self._health_only = False
        self._stage = _OPENED
        self._since = 0.0  # loop time at which the stage began
        self._looked = 0.0  # loop time of the last sweep
        self._posted = False  # its last request was for a model
        self._deaf = False  # after an error, received bytes are dropped
        self._unsent_since = 0.0  # time of the sweep that first found part of an answer unread
        self._unsent: Held | None = None  # the reservation of a long answer that is not read
        self._turn: Turn | None = None  # of what it sends after a refusal
        self._unparsed = b""  # bytes that take long to parse
        self._at_end = False  # the client closed its sending side before the answers
        self._owes = False  # a turn: its last request was refused, or the client may have left

    # --- called by the transport -----------------------------------------------------------------

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start serving, or close at once if there are too many connections."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it
        self._peers = Peers(self._config, self._state, self._transport)
        self._answers = AnswerQueue(self._peers, self._over, self._linger)
        connections = cast("set[Connection]", self._state.connections)
        connections.add(self)
        self._since = self._looked = self._loop.time()
        self.address = network_of(self._peers.address)
        self._caller = self._edge.client_of(self.address)
        try:
            self._health_only = self._edge.open(self, connections)
        except TooManyConnectionsError as error:
            self._refuse(error)
            self._transport.close()  # without lingering: it takes up a connection

    @override
    def connection_lost(self, _: Exception | None) -> None:
        """Abandon the unanswered requests, because the connection is lost."""
        cast("set[Connection]", self._state.connections).discard(self)
        self._edge.connections.close(self)
        self._release_unsent()
        if self._answers.queue or self._owes:
            self._edge.turns.owe(self._caller.name)
        while self._answers.queue:
            queued = self._answers.queue.popleft()
            if queued.begun:
                queued.work.abandon()
            queued.record.status = queued.record.status or Code.CLIENT_LEFT
            self._edge.leave(queued.record)
        self._parsing = None
        if self._turn is not None:
            self._turn.withdraw()
        self._unparsed = b""
        self._parser.close()
        self._peers.flow.resume_writing()  # an application that waits to write continues, and ends

    @override
    def get_buffer(self, _: int) -> bytearray:
        """Return the buffer that receives bytes. All connections share it."""
        return self._config.received

    @override
    def buffer_updated(self, size: int) -> None:
        """Parse the received bytes. If earlier bytes still wait to be parsed, store them."""
        data = self._config.received
        if self._unparsed:  # reading was resumed meanwhile
            self._unparsed += data[:size]
            self._transport.pause_reading()
        else:
            self._parse(data, size)

    @override
    def eof_received(self) -> bool:
        """Return True, which keeps the connection open, if the client closed its sending side after
        complete requests. Otherwise return False, which closes the connection."""
        if self._unparsed:
            self._at_end = True
            return True
        queue = self._answers.queue
        within = self._parsing is not None or self._stage == _HEAD
        if not queue or (within and not self._deaf):
            return False
        self._at_end = True
        queue[-1].keep_alive = False
        self._loop.call_later(_ASK_S, self._ask)
        return True

    @override
    def pause_writing(self) -> None:
        """Stop writing, because the client does not read its answers. Reserve memory for the bytes
        that were not sent yet."""
        self._peers.flow.pause_writing()
        queue = self._answers.queue
        caller = queue[0].record.caller if queue else self._caller
        self._unsent = unsent = Held(self._config.room, caller, self._abort_soon)
        try:
            unsent.hold_bytes(self._transport.get_write_buffer_size())
        except QueueFullError:
            self._release_unsent()
            self._abort_soon(None)

    @override
    def resume_writing(self) -> None:
        self._release_unsent()
        self._unsent_since = 0.0
        self._peers.flow.resume_writing()
        self._answers.go_on()

    def _abort_soon(self, _: ServiceError | None) -> None:
        self._loop.call_soon(self._transport.abort)  # not within a write

    def _release_unsent(self) -> None:
        if self._unsent is not None:
            self._unsent.release()
            self._unsent = None

    def _parse(self, data: bytes | bytearray, size: int) -> None:
        """Parse the first `size` bytes of `data`. If they contain many requests, parse the rest
        later, so that other clients go first."""
        if self._deaf:
            return
        try:
            self._unparsed = self._parser.parse(data, size)
        except ServiceError as error:
            self._refuse(error)
        if self._transport.is_closing():
            self._unparsed = b""
        elif self._unparsed:
            self._transport.pause_reading()
            self._loop.call_soon(self._edge.turns.post, self._caller.name, self._parse_rest)

    def _parse_rest(self) -> None:
        data, self._unparsed = self._unparsed, b""
        if not data:  # the connection is lost
            return
        self._parse(data, len(data))
        if self._unparsed or self._transport.is_closing():
            return
        if not self._at_end:
            if not self._peers.flow.read_paused:
                self._transport.resume_reading()
        elif not self.eof_received():
            self._transport.close()

    # --- called by the parser --------------------------------------------------------------------

    def on_begin(self) -> None:
        """Start the time limit for receiving a request line and headers."""
        if not self._deaf:
            self._stage = _HEAD
            self._since = self._loop.time()

    def on_head(self, head: Head) -> None:
        """Queue a request whose headers have arrived."""
        queue = self._answers.queue
        # An earlier request, perhaps of the same read, ends the connection.
        if self._deaf or (queue and queue[-1].last):
            return
        if len(queue) >= MAX_PIPELINED:
            raise TooManyFromClientError(
                f"{MAX_PIPELINED} of your requests wait on this connection, which is the limit; "
                "send the next one when these are answered"
            )
        self._stage = _BODY
        self._since = self._loop.time()
        named = head.named
        request_id, address = self._edge.request_id(named), self._peers.address
        path, _, query = head.target.partition(b"?")
        record = RequestRecord(request_id, address, head.method, path, query, named, self._caller)
        self._parsing = queued = QueuedRequest(
            record, head.keep_alive, head.expects_continue, head.version
        )
        queued.work = self._work(record, head)
        self._answers.add(queued)

    def on_piece(self, piece: bytes) -> None:
        """Pass a part of a body to its request."""
        queued = self._parsing
        if queued is not None:
            queued.record.bytes_in += len(piece)
            self._answers.pass_on(queued, piece)

    def on_end(self) -> None:
        """Mark the body of the current request as complete."""
        queued, self._parsing = self._parsing, None
        if queued is not None:
            if self._stage == _BODY:
                self._stage = _WHOLE
            self._answers.end(queued)

    def _work(self, record: RequestRecord, head: Head) -> Work:
        """Return the object that handles a request."""
        write = self._answers.write
        refused = self._edge.admit(record, health_only=self._health_only)
        if refused is not None:
            return ErrorReply(refused, write)
        if record.method == b"POST":
            now = partial(self._config.endpoints.get, record.path.decode("latin-1"))
            endpoint = now()
            if endpoint is not None:
                return Exchange(endpoint, record, write, now)
        try:
            return AsgiCall(self._peers, record, head, self._answers)
        except BadRequestError as error:
            return ErrorReply(error, write)

    # --- called by the server --------------------------------------------------------------------

    @property
    def is_kept(self) -> bool:
        """Return whether the client is likely to send another request soon, because its last POST
        was answered a moment ago. Requests with other methods do not count, because health checks
        and metrics are requested periodically."""
        kept = self._stage == _IDLE and self._posted and not self._transport.is_closing()
        return kept and self._loop.time() - self._since < KEPT_S

    def shutdown(self) -> None:
        """Close the connection after answering the requests in progress, and a request that may be
        arriving."""
        if self._answers.queue:
            self._answers.queue[-1].last = True
            return
        if self._stage not in (_OPENED, _IDLE) or self._transport.is_closing():
            return
        wait_s = self._since + GRACE_S - self._loop.time()
        if wait_s <= 0 and self._reports(select.POLLIN):  # to close now would reset it
            wait_s = _LOOK_S
        if wait_s > 0:
            self._loop.call_later(wait_s, self.shutdown)
        else:
            self._transport.close()

    # --- called by the edge ----------------------------------------------------------------------

    @property
    def silent_since(self) -> float | None:
        """Return the loop time at which the server began to wait for a request.

        Returns None if the server waits for no request, or if the connection is closing.
        """
        if self._answers.queue or self._stage in (_BODY, _WHOLE) or self._transport.is_closing():
            return None
        return self._since

    def hang_up_on(self) -> None:
        """Close this silent connection, because a new connection replaces it."""
        if self._transport.get_write_buffer_size():
            self._transport.abort()
        else:
            self._transport.close()

    def inspect(self, now: float) -> None:
        """Close the connection if its client has sent or read too slowly up to the time `now`."""
        limits = self._edge.limits
        passed, self._looked = now - self._looked, now
        if not self._transport.get_write_buffer_size():
            self._unsent_since = 0.0
        elif not self._unsent_since:
            self._unsent_since = now
        elif now - self._unsent_since > limits.answer_s:
            self._transport.abort()
            return
        if self._transport.is_closing():
            return
        took = now - self._since
        if self._stage == _BODY:
            self._inspect_body(took, passed)
        elif self._stage == _HEAD:
            # A head after other requests has to wait for their answers.
            if took > limits.head_s and not self._answers.queue:
                late = f"the request line and headers did not arrive within {limits.head_s:g} s"
                self._refuse(RequestTimeoutError(f"{late}; send them faster"))
        else:
            owed = {_OPENED: limits.head_s, _IDLE: limits.idle_s, _REFUSED: limits.refused_s}
            if took > owed.get(self._stage, inf):
                self._transport.close()

    def _inspect_body(self, took: float, passed: float) -> None:
        limits, queued = self._edge.limits, self._parsing
        if queued is None or self._peers.flow.read_paused or not queued.begun:
            self._since += passed  # the client cannot send: the server does not read
            return
        received = queued.record.bytes_in
        if took > limits.body_s:
            late = f"the body did not arrive within {limits.body_s:g} s"
        elif received < (took - limits.body_grace_s) * limits.body_rate:
            late = f"the body arrived too slowly, {received} bytes in {took:.0f} s"
        else:
            return
        self._refuse(RequestTimeoutError(f"{late}; send the body again, or a smaller body"))

    # --- how it ends -----------------------------------------------------------------------------

    def _over(self, queued: QueuedRequest) -> None:
        """Stop counting an answered request, and start the time limit for the next request."""
        self._state.total_requests += 1
        queued.record.status = queued.record.status or HTTPStatus.INTERNAL_SERVER_ERROR
        is_wrong = queued.record.status in _WRONG
        self._owes = is_wrong or self._at_end or queued.record.status == Code.TOO_MANY
        self._edge.leave(queued.record)
        del queued.work  # breaks a reference cycle
        if self._stage == _REFUSED or self._transport.is_closing():
            return
        if not self._answers.queue:
            if self._stage == _WHOLE:
                self._stage = _IDLE
                self._since = self._loop.time()
                self._posted = queued.record.method == b"POST"
            if self._stage == _IDLE and queued.last:  # answered before `shutdown`
                self.shutdown()
                return
        turns, caller = self._edge.turns, queued.record.caller
        if is_wrong:
            # Refusals are as cheap to cause as other calls, and also fill the event loop.
            self._peers.flow.pause_reading()
            self._answers.held = True
            self._turn = turns.post(caller.name, self._read_again)
        elif len(self._answers.queue) <= 1:  # the body of the last one may still be arriving
            self._peers.flow.resume_reading()

    def _read_again(self) -> None:
        self._answers.held = False
        self._answers.go_on()
        if len(self._answers.queue) <= 1 and not self._answers.held:
            self._peers.flow.resume_reading()

    def _refuse(self, error: ServiceError) -> None:
        """Send an error after the answers to earlier requests, and close the connection."""
        if self._deaf or self._transport.is_closing():
            return
        self._deaf = True
        queued, self._parsing = self._parsing, None
        if queued is None:  # there is no head
            request_id = self._edge.request_id({})
            record = RequestRecord(
                request_id, self._peers.address, b"-", b"-", b"", {}, self._caller
            )
            queued = QueuedRequest(record, keep_alive=False)
            self._answers.queue.append(queued)
        elif queued.record.status:  # its answer is written, or part of it
            self._transport.close()
            return
        elif queued.begun:
            queued.record.refused = error.code
            queued.work.abandon()
        queued.work, queued.keep_alive, queued.begun = (
            ErrorReply(error, self._answers.write),
            False,
            False,
        )
        self._answers.go_on()

    def _ask(self, *, asked: bool = False) -> None:
        """Check whether a client that closed its sending side has closed the whole connection. If
        so, withdraw its requests."""
        if not self._answers.queue or self._transport.is_closing():
            return
        if self._reports():
            self._transport.abort()
            return
        queued = self._answers.queue[0]
        if not asked and queued.version != "1.0" and not queued.record.status:
            self._transport.write(CONTINUE)
        self._loop.call_later(_ASK_S, partial(self._ask, asked=True))

    def _reports(self, event: int = 0) -> bool:
        return reports(self._transport.get_extra_info("socket"), event)

    def _linger(self) -> None:
        """Close the sending side of the connection after the answers. Close the other side later,
        to give the client time to read the answers."""
        try:
            self._transport.write_eof()
        except OSError:  # asyncio's raises if the client has left; uvloop's does not
            self._transport.abort()
        self._deaf = True
        self._parsing = None
        self._stage = _REFUSED
        self._since = self._loop.time()
        self._peers.flow.resume_reading()
