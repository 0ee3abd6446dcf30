"""Implements the endpoint for V2 inference with one model."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from starlette.responses import Response
from typing_extensions import TypedDict  # pydantic requires this one before Python 3.12

from service.api.v2.answer import Output, bytes_of, outputs_of
from service.api.v2.interpretation import InferRequest
from service.api.v2.parse import parse_request
from service.batching.policy import urgency_of
from service.edge.rights import permit
from service.engine.ranking import ScoreRow
from service.errors import BadRequestError
from service.fair_queue import Right
from service.hosting.model_info import ModelInfo
from service.hosting.pipeline import Pipeline
from service.hosting.request import ImageRequest, Scored
from service.http.body import LONG_BODY, Headers, Pieces, content_coding
from service.http.compression import compress, wanted_coding
from service.http.exchange import AnyEndpoint
from service.http.responses import PLACE, json_pieces, parts_around
from service.telemetry.counts import Phases
from service.telemetry.record import RequestRecord

PATHS = ("/v2/models/{model}", "/v2/models/{model}/versions/{version}")
"""The paths of a model, without and with its version."""

_HEADER_LENGTH = b"inference-header-content-length"

# Parsing longer JSON takes longer than handing it to a thread.
_LONG_JSON = 2**16

# The most numbers that the standard library writes at once, which takes a millisecond.
_SLOW_PIECE = 2**12


def infer_paths(pipeline: Pipeline) -> list[str]:
    """Return the paths for V2 inference with a model."""
    info = pipeline.info
    return [f"{path.format(model=info.name, version=info.version)}/infer" for path in PATHS]


def endpoints_of(pipeline: Pipeline) -> dict[str, AnyEndpoint]:
    """Return a mapping from each V2 inference path of a model to its endpoint."""
    return dict.fromkeys(infer_paths(pipeline), Infer(pipeline))


def _json_length(headers: Headers) -> int | None:
    """Return the length of a request's JSON in bytes, or None if the whole body is JSON. Raises
    BadRequestError."""
    value = headers.get(_HEADER_LENGTH)
    if value is None:
        return None
    # More digits would be slow to convert, and no body is so long.
    if not value.isdigit() or len(value) > 18:
        raise BadRequestError(
            "Inference-Header-Content-Length must be a whole number of bytes; got"
            f" {value[:20].decode('latin-1')!r}"
        )
    return int(value)


class Infer:
    """Reads a request's tensors and answers with scores."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    def check(self, record: RequestRecord) -> RequestRecord:
        """Check a request's headers. Return its record, which `read` needs. Raises ServiceError if
        the headers are invalid."""
        _json_length(record.headers)
        content_coding(record.headers)
        return record

    def reads_quickly(self, headers: Headers, _: Pieces, length: int) -> bool:
        """Return whether parsing a body takes less time than passing it to a thread."""
        regions = self.pipeline.regions
        if regions is not None and regions.longest > LONG_BODY:  # which it may have copied
            return False
        json_length = _json_length(headers)
        return (length if json_length is None else json_length) <= _LONG_JSON

    def read(
        self, head: RequestRecord, body: bytes
    ) -> tuple[ImageRequest, tuple[InferRequest, str]]:
        """Return the images or tensors in the body. For the answer, also return the parsed request
        and its Accept-Encoding header."""
        pipeline = self.pipeline
        max_images, info = pipeline.admission.max_images_a_request, pipeline.info
        asked = parse_request(body, _json_length(head.headers), info, max_images, pipeline.regions)
        if asked.shares_memory:
            permit(head, Right.SHARED_MEMORY)
        urgency = urgency_of(head.started, asked.timeout_s, asked.priority)
        accepted = head.headers.get(b"accept-encoding", b"").decode("latin-1")
        images = None if asked.images is None else list(asked.images)
        wanted = ImageRequest(
            *(asked.files, images, urgency),
            copied=asked.copied,
            inner=asked.inner(info),
            averaged=True,
        )
        return wanted, (asked, accepted)

    def answer_bytes(self, form: tuple[InferRequest, str], scored: Scored) -> int:
        """Return an upper limit on the size of the answer's outputs in bytes."""
        return bytes_of(form[0], scored.results, self.pipeline)

    def answer(
        self,
        form: tuple[InferRequest, str],
        scored: Scored,
        phases: Callable[[], Phases],  # noqa: ARG002
    ) -> Response:
        """Return the HTTP answer with the requested outputs, compressed if the client accepts
        compression."""
        asked, accepted = form
        content, json_length = format_answer(asked, scored.results, self.pipeline.info)
        headers = {}
        media_type = "application/json"
        if json_length is not None:
            headers[_HEADER_LENGTH.decode()] = str(json_length)
            media_type = "application/octet-stream"
        if accepted:
            headers["vary"] = "accept-encoding"
            coding = wanted_coding(accepted, len(content))
            if coding is not None:
                headers["content-encoding"] = coding
                content = compress(content, coding)
        return Response(content, headers=headers, media_type=media_type)


class InferTensor(TypedDict, total=False):
    """A tensor with JSON `data`, or with `binary_data_size` bytes after the JSON."""

    name: str
    datatype: str
    shape: list[int]
    data: list[Any]
    parameters: dict[str, Any]


class InferAnswer(TypedDict, total=False):
    """The requested outputs for n images: scores or labels, [n, classes], or embeddings, [n,
    size]."""

    id: str
    model_name: str
    model_version: str
    outputs: list[InferTensor]


def format_answer(
    asked: InferRequest, rows: Sequence[ScoreRow], info: ModelInfo
) -> tuple[bytes, int | None]:
    """Return the answer's body, and the length of its JSON if binary tensors follow the JSON.

    Raises the errors of `outputs_of`.
    """
    binary: list[bytes] = []
    lists: list[list[bytes]] = []
    outputs = [_tensor(output, binary, lists) for output in outputs_of(asked, rows, info)]
    answer = InferAnswer(model_name=info.name, model_version=info.version, outputs=outputs)
    if asked.id:
        answer["id"] = asked.id
    head = parts_around(answer, lists)
    return b"".join([*head, *binary]), sum(map(len, head)) if binary else None


def _tensor(output: Output, binary: list[bytes], lists: list[list[bytes]]) -> InferTensor:
    """Return the JSON of an output without its elements. Add the elements to `binary` if they
    follow the JSON as bytes. Otherwise, add them to `lists`."""
    tensor = InferTensor(name=output.name, datatype=output.datatype, shape=output.shape)
    if output.written:
        tensor["parameters"] = dict(output.written)
    elif output.as_bytes:
        raw = output.binary()
        tensor["parameters"] = {"binary_data_size": sum(map(len, raw))}
        binary += raw
    else:
        elements = output.elements
        place: Any = PLACE
        tensor["data"] = place
        if isinstance(elements, np.ndarray) and not np.isfinite(elements).all():
            # NaN and infinity, which JSON lacks, are written as Triton does, to a client that sent
            # NaN.
            lists.append(json_pieces(elements, lambda some: json.dumps(some).encode(), _SLOW_PIECE))
        else:
            lists.append(json_pieces(elements))
    return tensor
