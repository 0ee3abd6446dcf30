"""Inference: a request's body to scores and back."""

from collections.abc import Mapping
from functools import partial

from starlette.responses import Response

from service.compression import compress, inflate, wanted_coding
from service.errors import BadRequestError
from service.exchange import Arrival, Exchange
from service.pipeline import Pipeline
from service.policy import urgency_of
from service.v2.answer import format_answer
from service.v2.request import parse_request

_HEADER_LENGTH = b"inference-header-content-length"

# Bytes of JSON that take longer to read than to hand to a thread.
_LONG_JSON = 2**16


def _json_length(headers: Mapping[bytes, bytes]) -> int | None:
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
    most_images = pipeline.admission.max_images_a_request

    async def answer(arrival: Arrival) -> Response:
        visit, body = arrival.visit, arrival.body
        length = _json_length(arrival.headers)
        data = await body.whole(visit.hold_bytes)
        received = arrival.received()
        with arrival.departure:
            if body.coding:
                inflating = partial(inflate, coding=body.coding, most=max_body_bytes)
                data = await pipeline.aside(inflating, data)
                visit.hold_bytes(len(data))
            parse = partial(
                parse_request, header_length=length, info=pipeline.info, max_images=most_images
            )
            if (len(data) if length is None else length) > _LONG_JSON:
                asked = await pipeline.aside(parse, data)
            else:
                asked = parse(data)
            del data
            urgency = urgency_of(arrival.started, asked.timeout_s, asked.priority)
            if asked.pixels is None:
                done = await pipeline.score_files(
                    visit, asked.files, since=received, urgency=urgency
                )
            else:
                done = await pipeline.score_pixels(
                    visit, asked.pixels, since=received, urgency=urgency
                )
        content, json_length = format_answer(asked, done.rows, pipeline.info)
        arrival.answered(done)
        accept = arrival.headers.get(b"accept-encoding", b"").decode("latin-1")
        return _response(content, json_length, accept)

    return Exchange(pipeline, max_body_bytes, answer)


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
