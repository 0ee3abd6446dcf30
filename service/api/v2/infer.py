"""The V2 endpoint of a model: a request's body to scores and back."""

from collections.abc import Callable

from starlette.responses import Response

from service.api.v2.answer import format_answer
from service.api.v2.request import InferRequest, parse_request
from service.batching.policy import urgency_of
from service.errors import BadRequestError
from service.hosting.inference import Scored, Wanted
from service.hosting.pipeline import Pipeline
from service.http.body import Headers, content_coding
from service.http.compression import compress, wanted_coding
from service.telemetry.record import RequestRecord
from service.telemetry.statistics import Phases

_HEADER_LENGTH = b"inference-header-content-length"

# Parsing longer JSON takes longer than handing it to a thread.
_LONG_JSON = 2**16


def _json_length(headers: Headers) -> int | None:
    """The length of a request's JSON, None for the whole body; BadRequestError if it is invalid."""
    value = headers.get(_HEADER_LENGTH)
    if value is None:
        return None
    # More digits would be slow to convert, and no body is so long.
    if not value.isdigit() or len(value) > 18:
        raise BadRequestError("Inference-Header-Content-Length must be a whole number of bytes")
    return int(value)


class Infer:
    """Tensors in, scores out."""

    def __init__(self, pipeline: Pipeline, max_body_bytes: int) -> None:
        self.pipeline = pipeline
        self.max_body_bytes = max_body_bytes

    def check(self, record: RequestRecord) -> RequestRecord:
        """The record; ServiceError if its headers are invalid."""
        _json_length(record.headers)
        content_coding(record.headers)
        return record

    def reads_quickly(self, headers: Headers, length: int) -> bool:
        """Whether reading a body of `length` bytes is faster than handing it to a thread."""
        json_length = _json_length(headers)
        return (length if json_length is None else json_length) <= _LONG_JSON

    def read(self, record: RequestRecord, body: bytes) -> Wanted:
        """The tensors of the body."""
        pipeline = self.pipeline
        most, info = pipeline.admission.max_images_a_request, pipeline.info
        asked = parse_request(body, _json_length(record.headers), info, most)
        urgency = urgency_of(record.started, asked.timeout_s, asked.priority)
        accepted = record.headers.get(b"accept-encoding", b"").decode("latin-1")
        images = None if asked.images is None else list(asked.images)
        return Wanted(asked.files, images, urgency, (asked, accepted))

    def answer(
        self, form: tuple[InferRequest, str], scored: Scored, count: Callable[[], Phases]
    ) -> Response:
        """The scores in the form asked for, compressed if the client accepts that."""
        asked, accepted = form
        content, json_length = format_answer(asked, scored.results, self.pipeline.info)
        count()
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
