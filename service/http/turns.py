"""The requests of one connection, answered in order: the first is being worked on, others wait.

A turn's work is an `Exchange` with a model, an `AsgiCall` of the application, or a refusal; they
are driven by the same calls.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from starlette.responses import Response

from service.errors import ServiceError
from service.http.body import SHORT_BYTES, is_short
from service.http.responses import refusal
from service.http.uvicorn_adapter import STATUS_LINE, AsgiCall, Peers
from service.telemetry.record import RequestRecord

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Work(Protocol):
    """What answers a request."""

    @property
    def answered(self) -> bool:
        """Whether it was answered, or abandoned."""

    def begin(self) -> None:
        """It is its turn."""

    def feed(self, chunk: bytes) -> None:
        """Some of the body is there."""

    def end(self) -> None:
        """The body is there."""

    def abandon(self) -> None:
        """The client is gone, or was sent away."""


class Refusal:
    """The work of answering a request that is not let in."""

    def __init__(self, error: ServiceError, respond: Callable[[Response], None]) -> None:
        self._error = error
        self._respond = respond
        self.answered = False

    def begin(self) -> None:
        """Answer."""
        self.answered = True
        self._respond(refusal(self._error))

    def feed(self, chunk: bytes) -> None:
        """The body does not matter."""

    def end(self) -> None:
        """The body does not matter."""

    def abandon(self) -> None:
        """There is nothing to call off."""


class Turn:
    """A request and its place among those of its connection."""

    __slots__ = ("begun", "chunks", "expects", "keep_alive", "record", "skipped", "whole", "work")

    def __init__(self, record: RequestRecord, *, keep_alive: bool, expects: bool) -> None:
        self.record = record
        self.keep_alive = keep_alive
        self.expects = expects  # 100 Continue before it sends the body
        self.work: Work  # set before it is added
        self.begun = False
        self.whole = False  # all of it is there
        self.chunks: list[bytes] = []  # that came before its turn
        self.skipped = 0  # bytes that came after its answer


class Turns:
    """A queue of turns, and the writing of their answers."""

    def __init__(
        self, peers: Peers, on_over: Callable[[Turn], None], linger: Callable[[], None]
    ) -> None:
        """`on_over` is called when a turn was answered; `linger` ends the connection gently."""
        self._peers = peers
        self._on_over = on_over
        self._linger = linger
        self.queue: deque[Turn] = deque()  # not answered yet
        self._pumping = False
        self._closing = False
        self._defaults: object = None  # the headers that every answer has, and as they are written
        self._default_lines = b""

    def add(self, turn: Turn) -> None:
        """Put a turn behind the others, or begin with it."""
        self.queue.append(turn)
        if len(self.queue) > 1:
            self._peers.flow.pause_reading()
        else:
            self.go_on()

    def feed(self, turn: Turn, piece: bytes) -> None:
        """Some of its body is there."""
        if not turn.begun:
            turn.chunks.append(piece)
        elif not turn.work.answered:
            turn.work.feed(piece)
        else:
            turn.skipped += len(piece)
            if turn.skipped > SHORT_BYTES:
                self._linger()

    def end(self, turn: Turn) -> None:
        """Its body is there."""
        turn.whole = True
        if turn.begun and not turn.work.answered:
            turn.work.end()
        self.go_on()

    def take_all(self) -> list[Turn]:
        """Abandon them all: the client is gone, or was sent away."""
        taken = list(self.queue)
        self.queue.clear()
        for turn in taken:
            if turn.begun:
                turn.work.abandon()
        return taken

    def close_after(self) -> None:
        """Close the connection when those that are there were answered."""
        self._closing = True
        for turn in self.queue:
            turn.keep_alive = False
            if isinstance(turn.work, AsgiCall):
                turn.work.close_after()

    def go_on(self) -> None:
        """Begin with the first, and go on with the next where it is answered already."""
        if self._pumping:
            return
        self._pumping = True
        try:
            while self.queue and self._is_over(self.queue[0]):
                self._on_over(self.queue.popleft())
        finally:
            self._pumping = False

    def write(self, response: Response) -> None:
        """Write the first turn's answer."""
        turn, transport = self.queue[0], self._peers.transport
        if transport.is_closing():
            return
        record, body = turn.record, bytes(response.body)
        record.status, record.bytes_out = response.status_code, len(body)
        last = not turn.keep_alive or self._closing or not (turn.whole or is_short(record.headers))
        defaults = self._peers.state.default_headers
        if defaults is not self._defaults:  # a new list each second, for the date
            self._defaults, self._default_lines = defaults, _lines(defaults)
        transport.write(
            b"%bx-request-id: %b\r\n%b%b%b\r\n%b"
            % (
                STATUS_LINE[record.status],
                record.id,
                self._default_lines,
                _lines(response.raw_headers),
                b"connection: close\r\n" if last else b"",
                b"" if record.method == b"HEAD" else body,
            )
        )
        if last and turn.whole:
            transport.close()
        elif last:
            self._linger()
        self.go_on()

    def _is_over(self, turn: Turn) -> bool:
        """Whether the first turn is; it is begun where it was not."""
        work = turn.work
        if not turn.begun:
            if self._peers.flow.write_paused or self._peers.transport.is_closing():
                return False  # answers are not taken
            turn.begun = True
            if isinstance(work, AsgiCall):
                work.keep_alive = turn.keep_alive and not self._closing
            work.begin()
            if turn.expects and not work.answered and not isinstance(work, AsgiCall):
                self._peers.transport.write(_CONTINUE)
            chunks, turn.chunks = turn.chunks, []
            for chunk in chunks:
                work.feed(chunk)
            if turn.whole:
                work.end()
        return work.answered and (turn.whole or isinstance(work, AsgiCall))


def _lines(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"".join([b"%b: %b\r\n" % header for header in headers])
