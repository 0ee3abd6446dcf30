"""Handles one HTTP request to a model's endpoint, from its headers to its answer.

    begin ── body ── end ── wanted ── Request ── scores ─┬─ answer
      │        │      │                  │               └─ in a thread, if it is long ── answer
      └────────┴──────┴──────────────────┴─── error ──────────────────────────────────────┘

On Convoy's own server, `connection.py` calls the methods of an `Exchange`; on other ASGI servers,
`asgi.py` does. The answers are the same.
"""

from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any, Generic, Protocol, TypeVar

from starlette.responses import Response

from service.errors import CRASHED, Code, ServiceError
from service.hosting.pipeline import Pipeline
from service.hosting.request import ImageRequest, Outcome, Request, Scored
from service.http.body import LONG_BODY, Headers, Pieces, content_coding, content_length
from service.http.compression import inflate
from service.http.responses import error_response, refusal
from service.telemetry.counts import Phases
from service.telemetry.record import RequestRecord

_SMALL_CHUNK, _MERGED_CHUNKS = 1024, 1 << 16

Head = TypeVar("Head")
Form = TypeVar("Form")

LONG_ANSWER = 2**16
"""Answers with more bytes are created in a thread, because they would block the event loop for a
millisecond."""


class Endpoint(Protocol[Head, Form]):
    """The interface of a model's endpoint, which reads requests and formats answers.

    `Head` is the type of the options in a request's query and headers. `Form` is the type of the
    options for its answer.
    """

    pipeline: Pipeline

    def check(self, record: RequestRecord) -> Head:
        """Return the options in the query and headers. Raises ServiceError if one is invalid."""

    def reads_quickly(self, headers: Headers, pieces: Pieces, length: int) -> bool:
        """Return whether reading a body of `length` bytes takes less time than passing it to a
        thread. `pieces` are the parts in which the body arrived."""

    def read(self, head: Head, body: bytes) -> tuple[ImageRequest, Form]:
        """Return the images in the body, and the options for the answer. Raises ServiceError if the
        body is invalid."""

    def answer_bytes(self, form: Form, scored: Scored) -> int:
        """Return an upper limit on the bytes of the answer's body, plus the bytes of tensors inside
        the network from which the answer is computed."""

    def answer(self, form: Form, scored: Scored, phases: Callable[[], Phases]) -> Response:
        """Return the answer with the scores. Must not hold the interpreter's lock for long at a
        time. `phases` returns how long each phase of the request has taken so far."""


AnyEndpoint = Endpoint[Any, Any]
"""An endpoint with any types of `Head` and `Form`."""


class Exchange(Generic[Head, Form]):
    """Handles an HTTP request to a model's endpoint, from its headers to its answer.

    `respond` is called with the answer, unless the request is abandoned.
    """

    __slots__ = (
        "_chunks",
        "_expected",
        "_form",
        "_head",
        "_length",
        "_now",
        "_request",
        "_respond",
        "endpoint",
        "record",
    )

    def __init__(
        self,
        endpoint: Endpoint[Head, Form],
        record: RequestRecord,
        respond: Callable[[Response], None],
        now: Callable[[], Endpoint[Head, Form] | None] = lambda: None,
    ) -> None:
        """`now` is called when the request begins, and returns the endpoint of the model's current
        version. If it returns None, `endpoint` is used."""
        self.endpoint, self.record = endpoint, record
        self._now = now
        self._respond = respond
        self._request = Request(endpoint.pipeline, record, self._answer)
        self._chunks: list[bytes | bytearray] = []
        self._length = 0  # bytes of the body so far
        self._expected = 0  # that its head states
        self._head: Head  # since `begin`
        self._form: Form  # since the body is read

    def begin(self) -> None:
        """Begin the request. Refuse it if its headers already show that it is invalid or too
        large."""
        now = self._now()
        if now is not None and now is not self.endpoint:  # another request was before it
            self.endpoint = now
            self._request = Request(now.pipeline, self.record, self._answer)
        try:
            self._request.open()
            self._head = self.endpoint.check(self.record)
            length = content_length(self.record.headers)
            if length is not None:
                self._request.hold(length, f"this body has {length}")
                self._expected = length
        except Exception as error:  # noqa: BLE001  answered, counted and logged
            self._request.fail(error)

    def add_piece(self, chunk: bytes) -> None:
        """Add a part of the body."""
        if self._request.ended:
            return
        add_chunk(self._chunks, chunk)
        self._length += len(chunk)
        if self._length <= self._expected:
            return
        try:  # a body of unknown length
            self._request.hold(self._length, "this body has more")
        except ServiceError as error:
            self._request.fail(error)

    def end(self) -> None:
        """Read the body, which is now complete."""
        if self._request.ended:
            return
        chunks, self._chunks = self._chunks, []
        self.record.received = perf_counter()
        try:
            headers = self.record.headers
            coding = content_coding(headers) if b"content-encoding" in headers else ""
            if coding:
                max_bytes = self.endpoint.pipeline.admission.max_body_bytes
                inflated = partial(_inflate, coding=coding, max_bytes=max_bytes)
                self._request.aside(inflated, chunks, self._inflated)
            else:
                self._read(chunks, self._length)
        except Exception as error:  # noqa: BLE001  answered, counted and logged
            self._request.fail(error)

    def abandon(self) -> None:
        """Stop handling the request, because no client waits for the answer."""
        self._chunks = []
        self._request.abandon(self.record.refused or Code.CLIENT_LEFT)

    def _inflated(self, body: bytes) -> None:
        self._request.hold_more(len(body))
        self._read([body], len(body))

    def _read(self, chunks: list[bytes | bytearray], length: int) -> None:
        """Read the body now, or in a thread if that takes long."""
        endpoint = self.endpoint
        headers = self.record.headers
        if length <= LONG_BODY and endpoint.reads_quickly(headers, chunks, length):
            self._infer(endpoint.read(self._head, _joined(chunks)))
        else:
            self._request.aside(partial(_read_joined, endpoint, self._head), chunks, self._infer)

    def _infer(self, read: tuple[ImageRequest, Form]) -> None:
        wanted, self._form = read
        self._request.infer(wanted)

    def _answer(self, outcome: Outcome) -> None:
        """Send an answer with the scores or the error."""
        if isinstance(outcome, Exception):
            self._chunks = []
            if isinstance(outcome, ServiceError):
                self._respond(refusal(outcome))
            else:
                self._respond(error_response(Code.FAILED, CRASHED))
            return
        request = self._request
        try:
            most = self.endpoint.answer_bytes(self._form, outcome)
            request.hold_answer(most)
            make, phases = self.endpoint.answer, partial(request.phases, outcome)
            if most > LONG_ANSWER:
                make_aside = partial(make, self._form, phases=phases)
                request.aside(make_aside, outcome, partial(self._finish, outcome))
            else:
                self._finish(outcome, make(self._form, outcome, phases))
        except Exception as error:  # noqa: BLE001  answered, counted and logged
            request.fail(error)

    def _finish(self, scored: Scored, response: Response) -> None:
        self._request.finish(scored)
        self._respond(response)


def _joined(chunks: list[bytes | bytearray]) -> bytes:
    """Join the parts of a body. Empty the list of parts, so that memory holds the body only
    once."""
    if len(chunks) == 1 and isinstance(only := chunks[0], bytes):
        chunks.clear()
        return only
    # Other threads run while bytes are joined, but not if a piece is a bytearray.
    body = b"".join([bytes(chunk) for chunk in chunks])
    chunks.clear()
    return body


def _inflate(chunks: list[bytes | bytearray], coding: str, max_bytes: int) -> bytes:
    return inflate(_joined(chunks), coding, max_bytes)


def _read_joined(
    endpoint: Endpoint[Head, Form], head: Head, chunks: list[bytes | bytearray]
) -> tuple[ImageRequest, Form]:
    return endpoint.read(head, _joined(chunks))


def add_chunk(chunks: list[bytes | bytearray], chunk: bytes) -> None:
    """Append a part of a body to the list of parts. Small parts are merged, because each Python
    object takes extra memory."""
    last = chunks[-1] if chunks else None
    if last is None or len(chunk) >= _SMALL_CHUNK or len(last) >= _MERGED_CHUNKS:
        chunks.append(chunk)
        return
    if not isinstance(last, bytearray):
        last = chunks[-1] = bytearray(last)
    last += chunk
