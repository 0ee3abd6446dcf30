"""Answers a connection's requests in the order of their arrival. Handles one request at a time,
while later requests wait."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response

from service.errors import ServiceError
from service.http.body import is_short
from service.http.exchange import Exchange, add_chunk
from service.http.responses import refusal
from service.http.uvicorn_adapter import STATUS_LINE, AsgiCall, Peers
from service.telemetry.record import RequestRecord

# Longer bodies are written by themselves: to copy megabytes takes milliseconds.
_COPIED = 2**16

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class ErrorReply:
    """Answers a request with an error and ignores its body."""

    def __init__(self, error: ServiceError, respond: Callable[[Response], None]) -> None:
        self._error = error
        self._respond = respond

    def begin(self) -> None:
        """Send the error."""
        self._respond(refusal(self._error))

    def add_piece(self, _: bytes = b"") -> None:
        """Ignore a part of the request's body."""

    end = abandon = add_piece


Work = Exchange[Any, Any] | AsgiCall | ErrorReply


@dataclass(slots=True, eq=False)
class QueuedRequest:
    """A request in its connection's queue."""

    record: RequestRecord
    keep_alive: bool  # the client may send another request
    expects: bool = False  # 100 Continue before it sends the body
    version: str = "1.1"
    work: Work = field(init=False)
    begun: bool = False
    whole: bool = False  # no more of it will be read
    answered: bool = False  # its answer is written
    last: bool = False  # the connection ends with its answer
    # Parts of the body that were received before the request began.
    chunks: list[bytes | bytearray] = field(default_factory=list)


class AnswerQueue:
    """Queues the requests of a connection and writes their answers in order."""

    def __init__(
        self, peers: Peers, on_over: Callable[[QueuedRequest], None], linger: Callable[[], None]
    ) -> None:
        """`on_over` is called with each request after its answer was written. `linger` closes the
        connection after the client has had time to read the answers."""
        self._peers = peers
        self._on_over = on_over
        self._linger = linger
        self._edge = peers.config.edge
        self.queue: deque[QueuedRequest] = deque()  # not answered yet
        self.held = False  # the next request waits for its client's turn
        self._pumping = False
        self._defaults: object = None  # uvicorn's default headers, and the lines made of them
        self._default_lines = b""

    def add(self, queued: QueuedRequest) -> None:
        """Append a request, and begin it if the queue was empty."""
        self.queue.append(queued)
        if len(self.queue) > 1:
            self._peers.flow.pause_reading()
        else:
            self.go_on()

    def pass_on(self, queued: QueuedRequest, piece: bytes) -> None:
        """Pass a part of a request's body to the object that handles the request. If the request
        has not begun, store the part until then."""
        if queued.begun:
            queued.work.add_piece(piece)
        else:
            add_chunk(queued.chunks, piece)

    def end(self, queued: QueuedRequest) -> None:
        """Mark a request's body as complete."""
        queued.whole = True
        if queued.answered:
            self.go_on()
        elif queued.begun:
            queued.work.end()

    def go_on(self) -> None:
        """Remove answered requests from the queue, and begin the next request unless it is held."""
        if self._pumping:
            return
        self._pumping = True
        try:
            while self.queue and not self.held and self._is_over(self.queue[0]):
                self._on_over(self.queue.popleft())
        finally:
            self._pumping = False

    def write(self, response: Response) -> None:
        """Write an answer to the first request in the queue."""
        queued, transport = self.queue[0], self._peers.transport
        if transport.is_closing():
            return
        record, body = queued.record, bytes(response.body)
        record.status, record.bytes_out = response.status_code, len(body)
        defaults = self._peers.state.default_headers
        if defaults is not self._defaults:  # a new list each second, for the date
            self._defaults, self._default_lines = defaults, _lines(defaults)
        is_head = record.method == b"HEAD"
        transport.write(
            b"%bx-request-id: %b\r\n%b%b%b\r\n%b"
            % (
                STATUS_LINE[record.status],
                record.id,
                self._default_lines,
                _lines(response.raw_headers),
                b"connection: close\r\n" if self.decide_last() else b"",
                body if len(body) <= _COPIED and not is_head else b"",
            )
        )
        if len(body) > _COPIED and not is_head:
            transport.write(memoryview(body))  # which asyncio slices without a copy
        self.answered()

    def decide_last(self) -> bool:
        """Return whether to close the connection after the answer to the first request. This is
        called just before the answer is written."""
        queued = self.queue[0]
        stays = queued.keep_alive and (queued.whole or is_short(queued.record.headers))
        leaving = self._edge.leaving and len(self.queue) == 1
        queued.last = queued.last or leaving or not stays
        return queued.last

    def make_last(self) -> None:
        """Close the connection after the answer to the first request."""
        self.queue[0].last = True

    def answered(self) -> None:
        """Mark the first request as answered. Begin the next request, or close the connection."""
        queued = self.queue[0]
        queued.answered = True
        if queued.last and queued.whole and not queued.keep_alive:
            self._peers.transport.close()
        elif queued.last:  # the client may be sending more
            queued.whole = True
            self._linger()
        self.go_on()

    def _is_over(self, queued: QueuedRequest) -> bool:
        """Begin the first request in the queue if it has not begun. Return whether it can be
        removed from the queue."""
        work = queued.work
        if not queued.begun:
            if self._peers.flow.write_paused or self._peers.transport.is_closing():
                return False  # the client does not read answers
            queued.begun = True
            work.begin()
            if queued.expects and not queued.answered and not isinstance(work, AsgiCall):
                self._peers.transport.write(CONTINUE)
            chunks, queued.chunks = queued.chunks, []
            for chunk in chunks:
                work.add_piece(bytes(chunk))
            if queued.whole:
                work.end()
        return queued.whole and queued.answered


def _lines(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"".join([b"%b: %b\r\n" % header for header in headers])
