"""Convoy's own interface: pictures in, labels out."""

from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from fastapi import FastAPI, Request
from starlette.responses import Response

from service.api.schemas import ClassifyAnswer, ErrorAnswer, ImageResult, Timing
from service.api.urgency import PRIORITY_HEADER, TIMEOUT_HEADER, urgency_from
from service.api.v2.routes import no_model
from service.batching.policy import DEFAULT_PRIORITY, LOWEST_PRIORITY, Urgency
from service.engine.ranking import top_k
from service.errors import InvalidParameterError, ModelNotFoundError
from service.hosting.inference import Scored, Wanted
from service.hosting.pipeline import Pipeline
from service.hosting.repository import Repository
from service.http.body import (
    FILE_FIELDS,
    FORM_TYPE,
    IMAGE_TYPES,
    Headers,
    form_boundary,
    images_of,
)
from service.http.exchange import Endpoint
from service.http.responses import json_response, refusal
from service.telemetry.record import RequestRecord
from service.telemetry.statistics import Phases

CLASSIFY_PATH = "/v1/classify"
DEFAULT_TOP_K = 5

# Long ones take long to take apart.
_MAX_QUERY_BYTES = 1024

# Bytes of a form that take longer to search than to hand to a thread.
_LONG_FORM = 2**18

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": text, "model": ErrorAnswer}
    for status, text in {
        400: "Empty or broken body, or a picture that cannot be decoded",
        404: "No such model",
        408: "The body came too slowly",
        413: "Too many bytes, pixels or images",
        415: "A Content-Type or a picture format that is not taken",
        422: "A wrong query parameter, header or form field",
        429: "Too many images are waiting; see Retry-After",
        500: "The engine failed",
        503: "Warming up or shutting down; see Retry-After",
        504: f"It could not be done within {TIMEOUT_HEADER}, so it was not tried",
    }.items()
}


def model_path(name: str) -> str:
    """Where pictures for one of several models are posted."""
    return f"/v1/models/{name}/classify"


def add_routes(app: FastAPI, repository: Repository) -> dict[str, Endpoint]:
    """The models' endpoints by path, and their routes.

    Requests for the endpoints never reach the routes, which document them and answer for the
    models that there are not.
    """
    default = repository.default

    async def classify(_: Request) -> Response:
        """Classify one image, or several at once.

        Images are JPEG, PNG or WebP. The body is one image, or a form with one or more files.
        Where several models are served and none of them is the default, they are asked by name.
        """
        paths = ", ".join(model_path(name) for name in repository.models)
        return refusal(ModelNotFoundError(f"there are several models; POST to one of {paths}"))

    async def classify_by(request: Request) -> Response:
        """Classify images with the model of that name, otherwise as `/v1/classify`."""
        return no_model(repository, request.path_params["model"])

    routes: dict[str, Any] = {
        "methods": ["POST"],
        "response_model": ClassifyAnswer,
        "responses": ERRORS,
        "tags": ["classify"],
    }
    classes = default.runner.classes if default else None
    app.add_api_route(CLASSIFY_PATH, classify, openapi_extra=_extra(classes), **routes)
    app.add_api_route(
        model_path("{model}"), classify_by, openapi_extra=_extra(None, by_name=True), **routes
    )
    endpoints: dict[str, Endpoint] = {
        model_path(name): Classify(pipeline, repository.max_body_bytes)
        for name, pipeline in repository.models.items()
    }
    if default:
        endpoints[CLASSIFY_PATH] = endpoints[model_path(default.info.name)]
    return endpoints


class _Asked(NamedTuple):
    """What a request's head asks for."""

    classes: int
    urgency: Urgency
    boundary: bytes  # of the form that the body is; empty: it is an image


class Classify:
    """Images in, labels out."""

    def __init__(self, pipeline: Pipeline, max_body_bytes: int) -> None:
        self.pipeline = pipeline
        self.max_body_bytes = max_body_bytes
        self._few = min(DEFAULT_TOP_K, pipeline.runner.classes)

    def check(self, record: RequestRecord) -> _Asked:
        """What the query and the headers ask for."""
        query, headers = record.query, record.headers
        return _Asked(
            _top_k(query, self.pipeline.runner.classes) if query else self._few,
            urgency_from(headers, record.started),
            form_boundary(headers),
        )

    def reads_quickly(self, headers: Headers, length: int) -> bool:
        """Whether to read a body so long takes no longer than to hand it to a thread."""
        return (
            length <= _LONG_FORM or b"multipart/" not in headers.get(b"content-type", b"").lower()
        )

    def read(self, asked: _Asked, body: bytes) -> Wanted:
        """The images of the body."""
        most = self.pipeline.admission.max_images_a_request
        return Wanted(images_of(body, asked.boundary, most), None, asked.urgency, asked.classes)

    def answer(self, classes: int, scored: Scored, count: Callable[[], Phases]) -> Response:
        """So many of the likeliest classes of each image."""
        info = self.pipeline.info
        results = [
            ImageResult(predictions=top_k(row, classes, info.output, info.labels))
            for row in scored.results
        ]
        return json_response(
            ClassifyAnswer(model=info.name, results=results, timing_ms=_timing(count()))
        )


def _timing(phases: Phases) -> Timing:
    """The phases in milliseconds."""
    total, receive, decode, queue, compute, respond = phases
    return {
        "receive": receive / 1e3,
        "decode": decode / 1e3,
        "queue": queue / 1e3,
        "compute": compute / 1e3,
        "respond": respond / 1e3,
        "total": total / 1e3,
    }


def _top_k(query: bytes, classes: int) -> int:
    """The value of ?top_k=, within 1..classes; InvalidParameterError for anything else."""
    if len(query) > _MAX_QUERY_BYTES:
        raise InvalidParameterError(f"the query has {len(query)} bytes; there is only top_k")
    parameters = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    for name, _ in parameters:
        if name != "top_k":
            raise InvalidParameterError(f"the parameter {name[:20]!r} is not known; there is top_k")
    text = parameters[-1][1] if parameters else ""
    # The length comes first: neither int() nor the answer should see a megabyte of digits.
    if len(text) > 9 or not (text.isascii() and text.isdigit() and 1 <= int(text) <= classes):
        raise InvalidParameterError(
            f"top_k is {text[:20]!r}; it must be a whole number from 1 to {classes}"
        )
    return int(text)


def _extra(classes: int | None, *, by_name: bool = False) -> dict[str, Any]:
    """What FastAPI cannot see of these routes, since they read their request themselves."""
    binary = {"type": "string", "format": "binary"}
    form = {
        "type": "object",
        "properties": {name: {"type": "array", "items": binary} for name in FILE_FIELDS},
    }
    number: dict[str, Any] = {"type": "integer", "minimum": 1, "default": DEFAULT_TOP_K}
    if classes is not None:
        number |= {"maximum": classes, "default": min(DEFAULT_TOP_K, classes)}
    top = {
        "name": "top_k",
        "in": "query",
        "description": "how many classes to name, likeliest first",
        "schema": number,
    }
    timeout = {
        "name": TIMEOUT_HEADER,
        "in": "header",
        "description": "after how many milliseconds the answer is worth nothing",
        "schema": {"type": "number", "exclusiveMinimum": 0},
    }
    priority = {
        "name": PRIORITY_HEADER,
        "in": "header",
        "description": f"1: the highest; 0: the default, {DEFAULT_PRIORITY}",
        "schema": {"type": "integer", "minimum": 0, "maximum": LOWEST_PRIORITY},
    }
    common = [top, timeout, priority]
    model = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
    return {
        "parameters": [model, *common] if by_name else common,
        "requestBody": {
            "required": True,
            "content": {
                **{media_type: {"schema": binary} for media_type in IMAGE_TYPES},
                FORM_TYPE: {"schema": form},
            },
        },
    }
