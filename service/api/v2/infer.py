"""Inference: a request's body to scores and back."""

from starlette.responses import Response

from service.api.v2.answer import format_answer
from service.api.v2.request import parse_request
from service.batching.policy import urgency_of
from service.errors import BadRequestError
from service.hosting.pipeline import Pipeline, Scored
from service.http.body import Headers, content_coding
from service.http.compression import compress, wanted_coding
from service.http.exchange import Arrival, Exchange

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


def inference(pipeline: Pipeline, max_body_bytes: int) -> Exchange:
    """The exchange of a model's inferences."""
    info, max_images = pipeline.info, pipeline.admission.max_images_a_request

    def check(arrival: Arrival) -> None:
        _json_length(arrival.headers)
        content_coding(arrival.headers)

    def read(arrival: Arrival, body: bytes) -> None:
        wanted = parse_request(body, _json_length(arrival.headers), info, max_images)
        arrival.urgency = urgency_of(arrival.started, wanted.timeout_s, wanted.priority)
        arrival.files, arrival.pixels, arrival.wanted = wanted.files, wanted.pixels, wanted

    def answer(arrival: Arrival, scored: Scored) -> Response:
        content, json_length = format_answer(arrival.wanted, scored.results, info)
        arrival.answered(scored)
        accept = arrival.headers.get(b"accept-encoding", b"").decode("latin-1")
        return _response(content, json_length, accept)

    return Exchange(pipeline, max_body_bytes, check, read, _reads_at_once, answer)


def _reads_at_once(headers: Headers, length: int) -> bool:
    """Whether a body so long takes no longer to read than to hand to a thread."""
    try:
        told = _json_length(headers)
    except BadRequestError:
        return True  # refused at once
    return (length if told is None else told) <= _LONG_JSON


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
