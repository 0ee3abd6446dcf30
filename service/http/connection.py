"""One connection: its parser, the edge's bounds, and the turns of its requests.

    bytes ── Parser ── head ── edge ─┬─ Refusal
                                     ├─ a model's endpoint ── Exchange
                                     └─ everything else ───── AsgiCall

A connection is closed that sends much, or little for long, without a request coming of it, and one
that does not take its answers.
"""

import asyncio
from enum import Enum, auto
from http import HTTPStatus
from math import inf
from typing import Any, cast

from service.edge.connections import Place, network_of
from service.errors import RequestTimeoutError, ServiceError, TooManyFromClientError
from service.http import framing
from service.http.exchange import Exchange
from service.http.parser import Head, Parser
from service.http.turns import Refusal, Turn, Turns, Work
from service.http.uvicorn_adapter import AsgiCall, ConvoyConfig, Peers, ServerState
from service.telemetry.record import RequestRecord
from service.telemetry.statistics import CLIENT_CLOSED_REQUEST

MAX_PIPELINED = 100
"""Of requests that wait on a connection: a read can bring 14,000, each of which takes 3 kB."""


class _Stage(Enum):
    """What the client owes."""

    OPENED = auto()  # a first request
    HEAD = auto()  # the rest of a head
    BODY = auto()  # the rest of a body
    WHOLE = auto()  # nothing: the server owes an answer
    IDLE = auto()  # perhaps another request
    REFUSED = auto()  # nothing: it has its last answer, and is given time to read that


# As globals, for speed: to look a member up in its class takes longer than to call a function.
_OPENED, _HEAD, _BODY, _WHOLE, _IDLE, _REFUSED = _Stage


class Connection(asyncio.Protocol):
    """A client's connection, as its transport, parser, uvicorn and the edge call it."""

    def __init__(
        self,
        config: ConvoyConfig,
        server_state: ServerState,
        app_state: dict[str, Any],  # noqa: ARG002
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """As uvicorn makes one for each connection that it accepts."""
        if not config.loaded:
            config.load()
        self._config = config
        self._edge = config.edge
        self._state = server_state
        self._loop = asyncio.get_running_loop()
        self._parser = Parser(self)
        self._parsing: Turn | None = None  # whose body comes
        # These are there once the connection is made.
        self._transport: asyncio.Transport
        self._peers: Peers
        self._turns: Turns
        self.address = ""
        self._place = Place.OPEN

        self._stage = _OPENED
        self._since = 0.0  # loop time; when the stage began
        self._refusal: ServiceError | None = None  # to come last
        self._unsent_since = 0.0  # when the sweep first found some of an answer not taken; 0: none
        self._closing = False

    # --- what the transport calls ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self._peers = Peers(self._config, self._state, self._transport)
        self._turns = Turns(self._peers, self._over, self._linger)
        connections = cast("set[Connection]", self._state.connections)
        connections.add(self)
        self._since = self._loop.time()
        self.address = network_of(self._peers.address)
        self._place = self._edge.open(self, connections)
        if self._place in (Place.REFUSED, Place.ADDRESS_REFUSED):
            self._refuse(self._edge.full(self._place))
            self._transport.close()  # it takes up one of them

    def connection_lost(self, _: Exception | None) -> None:
        """The client is gone, and does not wait for what is not answered."""
        cast("set[Connection]", self._state.connections).discard(self)
        self._edge.close(self)
        for turn in self._turns.take_all():
            turn.record.status = turn.record.status or CLIENT_CLOSED_REQUEST
            self._edge.leave(turn.record)
        self._parsing = None
        self._parser.close()
        self._peers.flow.resume_writing()  # an application that waits for that goes on, and ends

    def data_received(self, data: bytes) -> None:
        """Parse what arrived, unless the last answer is written, or comes."""
        if self._refusal is not None or self._stage is _REFUSED:
            return
        try:
            self._parser.feed(data)
        except ServiceError as error:
            self._refuse(error)

    def pause_writing(self) -> None:
        """Much of an answer is not taken."""
        self._peers.flow.pause_writing()

    def resume_writing(self) -> None:
        """Much of an answer was taken."""
        self._unsent_since = 0.0
        self._peers.flow.resume_writing()
        self._turns.go_on()

    # --- what the parser calls -------------------------------------------------------------------

    def on_begin(self) -> None:
        """A head begins."""
        self._stage = _HEAD
        self._since = self._loop.time()

    def on_head(self, head: Head) -> None:
        """A head is there: its turn begins, or waits."""
        if len(self._turns.queue) >= MAX_PIPELINED:
            raise TooManyFromClientError(
                f"{MAX_PIPELINED} requests of yours wait on this connection, and no more may; "
                "send the next when they are answered"
            )
        self._stage = _BODY
        self._since = self._loop.time()
        named = head.named
        record = RequestRecord(
            self._edge.request_id(named), self._peers.address, head.method, head.target, named
        )
        turn = Turn(record, keep_alive=head.keep_alive, expects=head.expects_continue)
        turn.work = self._work(record, head)
        self._parsing = turn
        self._turns.add(turn)

    def on_piece(self, piece: bytes) -> None:
        """Some of a body is there."""
        turn = self._parsing
        if turn is not None:
            turn.record.bytes_in += len(piece)
            self._turns.feed(turn, piece)

    def on_end(self) -> None:
        """A request is there."""
        turn, self._parsing = self._parsing, None
        if turn is not None:
            if self._stage is _BODY:
                self._stage = _WHOLE
            self._turns.end(turn)
            if not self._turns.queue and self._stage is _WHOLE:  # it was answered before its end
                self._owe_nothing()

    def _work(self, record: RequestRecord, head: Head) -> Work:
        """What answers the request."""
        refused = self._edge.admit(record)
        if self._place is Place.HEALTH and not self._edge.may_ask_after_health(record):
            refused = self._edge.full(self._place)
        if refused is not None:
            return Refusal(refused, self._turns.write)
        if record.method == b"POST":
            endpoint = self._config.endpoints.get(record.path)
            if endpoint is not None:
                return Exchange(endpoint, record, self._turns.write)
        return AsgiCall(self._peers, record, head, self._turns.go_on)

    # --- what uvicorn calls ----------------------------------------------------------------------

    def shutdown(self) -> None:
        """Close, once what is asked is answered."""
        self._closing = True
        if self._turns.queue:
            self._turns.close_after()
        else:
            self._transport.close()

    # --- what the edge calls ---------------------------------------------------------------------

    @property
    def silent_since(self) -> float | None:
        """Loop time since when the client owes a request; None: it does not, or it is closing."""
        if self._turns.queue or self._stage in (_BODY, _WHOLE) or self._transport.is_closing():
            return None
        return self._since

    def hang_up_on(self) -> None:
        """Close a silent connection: another needs its place."""
        if self._transport.get_write_buffer_size():
            self._transport.abort()
        else:
            self._transport.close()

    def inspect(self, now: float) -> None:
        """Close the connection where its client is too slow, at sending or at taking."""
        limits = self._edge.limits
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
        if self._stage is _BODY:
            self._inspect_body(took)
        elif self._stage is _HEAD:
            # One that is pipelined behind a request waits for that one's answer.
            if took > limits.head_s and not self._turns.queue:
                self._refuse(
                    RequestTimeoutError(
                        f"the request line and headers did not arrive within {limits.head_s:g} s"
                    )
                )
        else:
            owed = {_OPENED: limits.head_s, _IDLE: limits.idle_s, _REFUSED: limits.refused_s}
            if took > owed.get(self._stage, inf):
                self._transport.close()

    def _inspect_body(self, took: float) -> None:
        limits, turn = self._edge.limits, self._parsing
        if turn is None or self._peers.flow.read_paused or not turn.begun:
            self._since += limits.sweep_s  # the client cannot send: the server is busy
            return
        received = turn.record.bytes_in
        if took > limits.body_s:
            late = f"the body did not arrive within {limits.body_s:g} s"
        elif received < (took - limits.body_grace_s) * limits.body_rate:
            late = f"the body came too slowly, with {received} bytes in {took:.0f} s"
        else:
            return
        if turn.record.status:  # it was answered before its end
            self._transport.close()
        else:
            self._refuse(RequestTimeoutError(f"{late}; send it again, or smaller"))

    # --- how it ends -----------------------------------------------------------------------------

    def _over(self, turn: Turn) -> None:
        """A turn was answered; the next one's, if there is any."""
        self._state.total_requests += 1
        turn.record.status = turn.record.status or HTTPStatus.INTERNAL_SERVER_ERROR
        self._edge.leave(turn.record)
        if self._stage is _REFUSED or self._transport.is_closing():
            return
        if self._refusal is not None and all(left is self._parsing for left in self._turns.queue):
            self._refuse(self._refusal)
            return
        if not self._turns.queue:
            if self._stage is _WHOLE:
                self._owe_nothing()
            if self._closing and self._stage is _IDLE:
                self._transport.close()
                return
        if len(self._turns.queue) <= 1:  # of the last turn some may still have to come
            self._peers.flow.resume_reading()

    def _owe_nothing(self) -> None:
        """The last request is whole: an answer comes, or has come already."""
        self._stage = _WHOLE if self._turns.queue else _IDLE
        self._since = self._loop.time()

    def _refuse(self, error: ServiceError) -> None:
        """Answer with an error that is the last answer of the connection, in its turn."""
        if self._stage is _REFUSED or self._transport.is_closing():
            return
        refused = self._parsing
        if any(turn is not refused for turn in self._turns.queue):
            self._refusal = self._refusal or error  # those before it are answered first
            return
        if refused is not None and refused.record.status:
            self._transport.close()  # it has its answer, or some of it
            return
        record = refused.record if refused is not None else self._nameless()
        record.status = error.status
        head, body = framing.last_answer(
            HTTPStatus(error.status), str(error), record.id, error.headers()
        )
        record.bytes_out = len(body)
        self._transport.write(head + body)
        self._parsing = None
        self._turns.take_all()
        self._edge.leave(record)
        self._linger()

    def _linger(self) -> None:
        """Say that nothing more comes, and give the client time to read what has.

        Closing at once would reset the connection where more comes, and that may overtake it.
        """
        self._transport.write_eof()
        self._stage = _REFUSED
        self._since = self._loop.time()
        self._peers.flow.resume_reading()

    def _nameless(self) -> RequestRecord:
        """The record of a request without a head."""
        return RequestRecord(self._edge.request_id({}), self._peers.address, b"-", b"-", {})
