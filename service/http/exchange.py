"""One request to a model's endpoint and its one answer.

    begin ── body ── end ── wanted ── pipeline ── scores ── answer
      └────────┴──────┴────────────────────┴── failed ──────┘

A connection of ours drives it (`connection`), or ASGI (`asgi`): the same calls, the same answers.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any, Protocol, TypeVar

from starlette.responses import Response

from service.errors import Code, PayloadTooLargeError, ServiceError
from service.hosting.admission import Reservation
from service.hosting.inference import Inference, Outcome, Wanted
from service.hosting.pipeline import Pipeline
from service.http.body import Headers, content_coding, content_length
from service.http.compression import inflate
from service.http.responses import CRASHED, error_response, refusal
from service.telemetry.counts import Phases
from service.telemetry.record import RequestRecord

T = TypeVar("T")

_log = logging.getLogger("convoy")

_SMALL_CHUNK, _MERGED_CHUNKS = 1024, 1 << 16


class Endpoint(Protocol):
    """Reads the requests to one model at a path, and formats their answers."""

    pipeline: Pipeline

    def check(self, record: RequestRecord) -> Any:
        """Read the head, for `read`; ServiceError if it is wrong."""

    def reads_quickly(self, headers: Headers, length: int) -> bool:
        """Whether reading a body of this length takes no longer than handing it to a thread."""

    def read(self, asked: Any, body: bytes) -> Wanted:
        """Read the body; ServiceError if it is wrong."""

    def answer(self, form: Any, scored: Any, count: Callable[[], Phases]) -> Response:
        """Format the scores; `count` counts the answer as made and returns its phases."""


@dataclass(eq=False, slots=True)
class Exchange:
    """A request from its head to its answer, which `respond` gets unless it is abandoned."""

    endpoint: Endpoint
    record: RequestRecord
    _respond: Callable[[Response], None]
    answered: bool = False  # or abandoned
    _reservation: Reservation = field(init=False)  # since `begin`
    _inference: Inference | None = None
    _chunks: list[bytes | bytearray] = field(default_factory=list)
    _length: int = 0  # bytes of the body so far
    _held: int = 0  # bytes reserved for it
    _asked: Any = None
    _form: Any = None
    _received: float = 0.0  # perf_counter seconds at the end of the body

    def begin(self) -> None:
        """Start, and refuse what is wrong or too much by the head alone."""
        pipeline = self.endpoint.pipeline
        caller = self.record.caller
        self._reservation = reservation = Reservation(pipeline.admission, caller, self._give_way)
        try:
            pipeline.runner.state.check_ready()
            reservation.expect_room()
            self._asked = self.endpoint.check(self.record)
            length = content_length(self.record.headers)
            if length is not None:
                self._hold(length, f"this one has {length}")
        except Exception as error:  # noqa: BLE001  answered, counted and logged
            self._fail(error)

    def feed(self, chunk: bytes) -> None:
        """Take a piece of the body."""
        if self.answered:
            return
        add_chunk(self._chunks, chunk)
        self._length += len(chunk)
        if self._length > self._held:
            try:  # a body of unknown length
                self._hold(self._length, "this one has more")
            except ServiceError as error:
                self._fail(error)

    def _hold(self, length: int, what: str) -> None:
        """Reserve bytes for a body of this length; PayloadTooLargeError says `what` is wrong."""
        most = self.endpoint.pipeline.admission.max_body_bytes
        if length > most:
            raise PayloadTooLargeError(
                f"at most {most} bytes are allowed in a body, and {what}; "
                "send a smaller image, or fewer at once"
            )
        self._reservation.hold_bytes(length - self._held)
        self._held = length

    def end(self) -> None:
        """Take the end of the body, and read it."""
        if self.answered:
            return
        chunks, self._chunks = self._chunks, []
        body = b"".join(chunks)  # a single chunk of bytes is not copied
        self._received = perf_counter()
        try:
            headers = self.record.headers
            coding = content_coding(headers) if b"content-encoding" in headers else ""
            if coding:
                most = self.endpoint.pipeline.admission.max_body_bytes
                self._aside(partial(inflate, coding=coding, most=most), body, self._inflated)
            else:
                self._read(body)
        except Exception as error:  # noqa: BLE001  answered, counted and logged
            self._fail(error)

    def abandon(self) -> None:
        """Stop: the answer is no longer wanted."""
        if self.answered:
            return
        self._let_go()
        code = self.record.refused or Code.CLIENT_LEFT
        self.endpoint.pipeline.metrics.counts.refused(code, perf_counter() - self.record.started)

    def _inflated(self, body: bytes) -> None:
        self._reservation.hold_bytes(len(body))
        self._read(body)

    def _read(self, body: bytes) -> None:
        """Read the body at once, or in a thread if that takes a while."""
        endpoint = self.endpoint
        if endpoint.reads_quickly(self.record.headers, len(body)):
            self._start(endpoint.read(self._asked, body))
        else:
            self._aside(partial(endpoint.read, self._asked), body, self._start)

    def _aside(self, work: Callable[[bytes], T], body: bytes, then: Callable[[T], None]) -> None:
        """Call `work` with the body in a thread, then `then` with its result."""

        def done(result: T, error: Exception | None) -> None:
            if self.answered:
                return
            try:
                if error is not None:
                    raise error
                then(result)
            except Exception as failure:  # noqa: BLE001  answered, counted and logged
                self._fail(failure)

        self.endpoint.pipeline.reader.post(work, body, done)

    def _start(self, wanted: Wanted) -> None:
        if self.record.charge is not None:
            self.record.charge(self.record, wanted.size)
        self._form = wanted.form
        self._inference = Inference(self.endpoint.pipeline, self._reservation, self._scored)
        self._inference.start(wanted)

    def _scored(self, outcome: Outcome) -> None:
        if isinstance(outcome, Exception):
            self._fail(outcome)
            return
        try:
            response = self.endpoint.answer(self._form, outcome, partial(self._count, outcome))
        except Exception as error:  # noqa: BLE001  answered, counted and logged
            self._fail(error)
            return
        self._inference = None  # it has ended: there is nothing to withdraw
        self._let_go()
        self._respond(response)

    def _count(self, scored: Any) -> Phases:
        """Count the request as answered; return its phases."""
        rows, batch, queue_s, compute_s = scored
        record, pipeline = self.record, self.endpoint.pipeline
        total_s, receive_s = perf_counter() - record.started, self._received - record.started
        decode_s = self._inference.decoded_at - self._received if self._inference else 0.0
        phases = Phases.of(total_s, receive_s, decode_s, queue_s, compute_s)
        pipeline.metrics.counts.answered(len(rows), phases)
        record.model = pipeline.info.name
        record.images, record.batch, record.phases = len(rows), batch, phases
        return phases

    def _fail(self, error: Exception) -> None:
        """Answer with an error, and count it."""
        if self.answered:  # already failed, or abandoned
            return
        record = self.record
        if isinstance(error, ServiceError):
            code, response = error.code, refusal(error)
        else:
            about = {"request_id": record.id.decode()}
            _log.error(
                "request %(request_id)s failed unexpectedly", about, exc_info=error, extra=about
            )
            code, response = Code.FAILED, error_response(Code.FAILED, CRASHED)
        seconds = perf_counter() - record.started
        self.endpoint.pipeline.metrics.counts.refused(code, seconds)
        self._let_go()
        self._respond(response)

    def _give_way(self, error: ServiceError) -> None:
        """Stop for another client, and answer soon: that may begin another request of this one."""
        if self._inference is not None:
            self._inference.withdraw()
            self._inference = None
        asyncio.get_running_loop().call_soon(self._fail, error)

    def _let_go(self) -> None:
        """Release everything, and withdraw what is in progress."""
        self.answered = True
        self._chunks = []
        if self._inference is not None:
            self._inference.withdraw()
            self._inference = None
        self._reservation.release()


def add_chunk(chunks: list[bytes | bytearray], chunk: bytes) -> None:
    """Append a piece of a body, a small one to the last: objects take many times their bytes."""
    last = chunks[-1] if chunks else None
    if last is None or len(chunk) >= _SMALL_CHUNK or len(last) >= _MERGED_CHUNKS:
        chunks.append(chunk)
        return
    if not isinstance(last, bytearray):
        last = chunks[-1] = bytearray(last)
    last += chunk
