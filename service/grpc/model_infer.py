"""Answers inference requests over gRPC, with the class `Request` that HTTP uses too."""

import asyncio
from time import perf_counter
from typing import Any

import numpy as np

from service.api.v2.answer import Output, bytes_of, outputs_of
from service.api.v2.interpretation import InferRequest
from service.batching.policy import urgency_of
from service.edge.rights import permit
from service.errors import CRASHED, Code, PayloadTooLargeError, ServiceError
from service.fair_queue import Right
from service.grpc.infer_request import Message, encoded_varint, infer_request, read_message
from service.grpc.messages import message_class
from service.hosting.pipeline import Pipeline
from service.hosting.repository import Repository
from service.hosting.request import ImageRequest, Outcome, Request, Scored
from service.http.body import LONG_BODY
from service.http.exchange import LONG_ANSWER
from service.telemetry.record import RequestRecord

_Answer = message_class("inference.ModelInferResponse")
_Tensor = message_class("inference.ModelInferResponse.InferOutputTensor")
_Contents = message_class("inference.InferTensorContents")

# The numbers of the fields that are written piece by piece, and their wire type.
_OUTPUTS, _RAW, _CONTENTS, _INFER_RESPONSE = 5, 6, 5, 2
_LENGTH = 2

# The most elements that are encoded at once: this many strings take a millisecond.
_PIECE = 2**14

MOST_ANSWER = 2**24
"""The most bytes of an answer. grpcio copies the whole answer at once, while it holds the
interpreter's lock."""


async def infer(
    repository: Repository,
    record: RequestRecord,
    received: list[bytes],
    remaining_s: float | None,
    *,
    in_stream: bool = False,
) -> bytes:
    """Run an inference request, and return the answer as bytes: a ModelStreamInferResponse if
    `in_stream`, otherwise a ModelInferResponse. `remaining_s` is the time until the client's
    deadline, if there is one.

    `received` is a list with the message as its only element. The function removes the message from
    the list, so that its memory can be freed as soon as its files are decoded.

    If the caller is cancelled, the request is abandoned. Raises ServiceError.
    """
    deadline = None if remaining_s is None else perf_counter() + remaining_s
    length, messages = len(received[0]), [read_message(received.pop())]
    head = messages[0].head
    pipeline = repository.find(head.model_name, head.model_version or None)
    exchange = _Exchange(pipeline, record, deadline, in_stream=in_stream)
    return await exchange.answer(messages.pop(), length)


class _Exchange:
    """Handles one inference request over gRPC, from its message to its answer."""

    def __init__(
        self,
        pipeline: Pipeline,
        record: RequestRecord,
        deadline: float | None,
        *,
        in_stream: bool,
    ) -> None:
        self._pipeline, self._record, self._deadline = pipeline, record, deadline
        self._in_stream = in_stream
        self._outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._request = Request(pipeline, record, self._take)

    async def answer(self, message: Message, length: int) -> bytes:
        """Run the request, and return the answer as bytes."""
        request = self._request
        outcome: Outcome | None = None
        try:
            self._begin(message, length)
            del message
            outcome = await self._outcome
            if isinstance(outcome, Exception):
                raise outcome
            most = bytes_of(self._asked, outcome.results, self._pipeline)
            request.hold_answer(most)
            answer = await self._made(outcome) if most > LONG_ANSWER else self._format(outcome)
            if len(answer) > MOST_ANSWER:
                raise PayloadTooLargeError(
                    f"the answer has {len(answer)} bytes, but answers by gRPC may have at most"
                    f" {MOST_ANSWER}; send fewer images at once, request fewer classes, or use HTTP"
                )
            request.finish(outcome)
            return answer
        except Exception as error:
            request.fail(error)  # counts and logs the error, unless that was done
            if isinstance(error, ServiceError):
                raise
            raise ServiceError(CRASHED) from error
        finally:
            late = self._deadline is not None and perf_counter() >= self._deadline
            request.abandon(Code.TOO_LATE if late else Code.CLIENT_LEFT)
            # An error in these objects refers to this frame, and so to the message: a reference
            # cycle.
            del self._outcome, outcome

    async def _made(self, scored: Scored) -> bytes:
        """Create a long answer in a thread."""
        made: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._outcome = made  # so that it also gets errors, as if the call gives way
        self._request.aside(self._format, scored, made.set_result)
        answer: bytes | Exception = await made
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _begin(self, message: Message, length: int) -> None:
        request, pipeline = self._request, self._pipeline
        request.open()
        request.hold(length, f"this body has {length}")
        self._record.received = perf_counter()
        max_images = pipeline.admission.max_images_a_request

        def read(message: Message) -> InferRequest:
            return infer_request(message, pipeline.info, max_images, pipeline.regions)

        regions = pipeline.regions
        if message.is_long or (regions is not None and regions.longest > LONG_BODY):
            request.aside(read, message, self._infer)
        else:
            self._infer(read(message))

    def _infer(self, asked: InferRequest) -> None:
        record = self._record
        self._asked = asked
        if asked.shares_memory:
            permit(record, Right.SHARED_MEMORY)
        urgency = urgency_of(record.started, asked.timeout_s, asked.priority)
        if self._deadline is not None:
            urgency = urgency._replace(deadline=min(urgency.deadline, self._deadline))
        images = None if asked.images is None else list(asked.images)
        inner = asked.inner(self._pipeline.info)
        files, copied = asked.files, asked.copied
        self._request.infer(
            ImageRequest(files, images, urgency, copied=copied, inner=inner, averaged=True)
        )

    def _take(self, outcome: Outcome) -> None:
        if not self._outcome.done():
            self._outcome.set_result(outcome)

    def _format(self, scored: Scored) -> bytes:
        """Return the answer as bytes. Any thread may call this method."""
        asked, info = self._asked, self._pipeline.info
        outputs = outputs_of(asked, scored.results, info)
        head = _Answer(model_name=info.name, model_version=info.version, id=asked.id)
        parts = [head.SerializeToString()]
        # A message has raw contents for all outputs or for none; clients find them by their index.
        raw = any(output.as_bytes for output in outputs if not output.written)
        for output in outputs:
            parts += _field(_OUTPUTS, _tensor(output, raw=raw))
        if raw:
            for output in outputs:
                pieces = [] if output.written else output.binary()
                parts += (_key(_RAW, sum(map(len, pieces))), *pieces)
        if self._in_stream:  # the answer is a field of its message
            parts.insert(0, _key(_INFER_RESPONSE, sum(map(len, parts))))
        return b"".join(parts)


def _tensor(output: Output, *, raw: bool) -> bytes:
    """Return the bytes of one output in a ModelInferResponse. If `raw`, leave out the elements,
    because they follow in another field."""
    tensor = _Tensor(name=output.name, datatype=output.datatype, shape=output.shape)
    for name, value in output.written.items():
        kind = "string_param" if isinstance(value, str) else "int64_param"
        setattr(tensor.parameters[name], kind, value)
    parts = [tensor.SerializeToString()]
    elements = output.elements
    # In pieces, so that other threads run between them: protobuf merges repeated fields.
    for at in range(0, 0 if raw or output.written else len(elements), _PIECE):
        contents, piece = _Contents(), elements[at : at + _PIECE]
        if isinstance(piece, np.ndarray):
            contents.fp32_contents.extend(piece.tolist())
        else:
            contents.bytes_contents.extend(map(str.encode, piece))
        parts += _field(_CONTENTS, contents.SerializeToString())
    return b"".join(parts)


def _field(number: int, value: bytes) -> tuple[bytes, bytes]:
    """Return the key and the value of a protobuf field. The value is bytes or a serialized
    message."""
    return _key(number, len(value)), value


def _key(number: int, length: int) -> bytes:
    """Return the key of a protobuf field, followed by the length of its value."""
    return bytes([number << 3 | _LENGTH]) + encoded_varint(length)
