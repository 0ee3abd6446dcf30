"""Inference: a request's body to scores and back."""

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

# Bytes of JSON that take longer to read than to hand to a thread.
_LONG_JSON = 2**16


def _json_length(headers: Headers) -> int | None:
    """How long the JSON of a request is, None if all of it is; BadRequestError if that is none."""
    value = headers.get(_HEADER_LENGTH)
    if value is None:
        return None
    # Not too many digits for int(); bodies are shorter than that.
    if not value.isdigit() or len(value) > 18:
        raise BadRequestError("Inference-Header-Content-Length must be a whole number of bytes")
    return int(value)


class Infer:
    """A model's inferences."""

    def __init__(self, pipeline: Pipeline, max_body_bytes: int) -> None:
        self.pipeline = pipeline
        self.max_body_bytes = max_body_bytes

    def check(self, record: RequestRecord) -> RequestRecord:
        """What the headers promise of the body."""
        _json_length(record.headers)
        content_coding(record.headers)
        return record

    def reads_quickly(self, headers: Headers, length: int) -> bool:
        """Whether to read a body so long takes no longer than to hand it to a thread."""
        told = _json_length(headers)
        return (length if told is None else told) <= _LONG_JSON

    def read(self, record: RequestRecord, body: bytes) -> Wanted:
        """The tensors of the body."""
        pipeline = self.pipeline
        most, info = pipeline.admission.max_images_a_request, pipeline.info
        asked = parse_request(body, _json_length(record.headers), info, most)
        urgency = urgency_of(record.started, asked.timeout_s, asked.priority)
        accepted = record.headers.get(b"accept-encoding", b"").decode("latin-1")
        pixels = None if asked.pixels is None else list(asked.pixels)
        return Wanted(asked.files, pixels, urgency, (asked, accepted))

    def answer(
        self, form: tuple[InferRequest, str], scored: Scored, count: Callable[[], Phases]
    ) -> Response:
        """The scores, as they are asked for."""
        asked, accepted = form
        content, json_length = format_answer(asked, scored.results, self.pipeline.info)
        count()
        return _response(content, json_length, accepted)


def _response(content: bytes, json_length: int | None, accept_encoding: str) -> Response:
    """The answer, compressed if that was asked for; lengths are of what is not compressed."""
    headers = {}
    media_type = "application/json"
    if json_length is not None:
        headers["inference-header-content-length"] = str(json_length)
        media_type = "application/octet-stream"
    if accept_encoding:
        headers["vary"] = "accept-encoding"
        coding = wanted_coding(accept_encoding, len(content))
        if coding is not None:
            headers["content-encoding"] = coding
            content = compress(content, coding)
    return Response(content, headers=headers, media_type=media_type)
