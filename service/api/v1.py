"""Convoy's own interface: images in, labels out."""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple
from urllib.parse import parse_qsl

from fastapi import Depends, FastAPI, Query
from pydantic import TypeAdapter
from starlette.responses import Response

from models import PRECISION
from service.api.deadline import Priority, Timeout, urgency_from, validated
from service.api.schemas import (
    ClassifyAnswer,
    ImageResult,
    Model,
    ModelsAnswer,
    Timing,
    errors,
)
from service.batching.policy import Urgency
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
from service.http.responses import json_response
from service.telemetry.record import RequestRecord
from service.telemetry.statistics import Phases

CLASSIFY_PATH = "/v1/classify"
DEFAULT_TOP_K = 5

# Parsing takes time in proportion to the length.
_MAX_QUERY_BYTES = 1024

# Parsing a longer form takes longer than handing it to a thread.
_LONG_FORM = 2**18

_IMAGE = {"type": "string", "format": "binary"}
_FORM = {
    "type": "object",
    "properties": {name: {"type": "array", "items": _IMAGE} for name in FILE_FIELDS},
}
_BODY = {
    "required": True,
    "content": {
        **{media_type: {"schema": _IMAGE} for media_type in IMAGE_TYPES},
        FORM_TYPE: {"schema": _FORM},
    },
}


def model_path(name: str) -> str:
    """The path that classifies with the model of that name."""
    return f"/v1/models/{name}/classify"


def add_routes(app: FastAPI, repository: Repository) -> dict[str, Endpoint]:
    """Add the routes; return the models' endpoints by path.

    Requests to the endpoints bypass the routes, which document them and refuse unknown models.
    """
    default = repository.default

    async def classify() -> ClassifyAnswer:
        """Classify one image, or several at once.

        Images are JPEG, PNG or WebP. The body is one image, or a form with one or more files.
        A server with several models and no default model answers at `/v1/models/{model}/classify`.
        """
        paths = ", ".join(map(model_path, repository.models))
        raise ModelNotFoundError(f"there is no default model; POST to one of {paths}")

    async def classify_by(model: str) -> ClassifyAnswer:
        """Classify images with the named model, otherwise as `/v1/classify`."""
        repository.find(model)
        raise LookupError(f"requests to {model!r} must reach its endpoint")

    async def list_models() -> Response:
        """List the models with their labels."""
        return json_response(
            ModelsAnswer(
                models=[
                    Model(
                        name=name,
                        default=pipeline is default,
                        state=pipeline.runner.state.value,
                        classes=pipeline.runner.classes,
                        labels=list(pipeline.info.labels),
                        image=list(pipeline.info.image_shape),
                        device=pipeline.runner.device,
                        precision=PRECISION,
                        max_batch=pipeline.runner.max_batch,
                    )
                    for name, pipeline in repository.models.items()
                ]
            )
        )

    app.add_api_route("/v1/models", list_models, response_model=ModelsAnswer, tags=["models"])
    for path, route, classes in (
        (CLASSIFY_PATH, classify, default.runner.classes if default else None),
        (model_path("{model}"), classify_by, None),
    ):
        app.add_api_route(
            path,
            route,
            methods=["POST"],
            dependencies=[Depends(_documented(classes))],
            responses=errors(400, 404, 408, 413, 415, 422, 429, 500, 503, 504),
            openapi_extra={"requestBody": _BODY},
            tags=["classify"],
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
    boundary: bytes  # of a form; empty: the body is one image


class Classify:
    """Images in, labels out."""

    def __init__(self, pipeline: Pipeline, max_body_bytes: int) -> None:
        self.pipeline = pipeline
        self.max_body_bytes = max_body_bytes
        classes = pipeline.runner.classes
        self._few = min(DEFAULT_TOP_K, classes)
        self._asked_classes = query_parser(classes)

    def check(self, record: RequestRecord) -> _Asked:
        """What the query and the headers ask for; ServiceError if they are invalid."""
        query, headers = record.query, record.headers
        return _Asked(
            self._asked_classes(query) if query else self._few,
            urgency_from(headers, record.started),
            form_boundary(headers),
        )

    def reads_quickly(self, headers: Headers, length: int) -> bool:
        """Whether reading a body of `length` bytes is faster than handing it to a thread."""
        return (
            length <= _LONG_FORM or b"multipart/" not in headers.get(b"content-type", b"").lower()
        )

    def read(self, asked: _Asked, body: bytes) -> Wanted:
        """The images of the body."""
        most = self.pipeline.admission.max_images_a_request
        return Wanted(images_of(body, asked.boundary, most), None, asked.urgency, asked.classes)

    def answer(self, classes: int, scored: Scored, count: Callable[[], Phases]) -> Response:
        """The likeliest classes of each image."""
        info = self.pipeline.info
        results = [
            ImageResult(predictions=top_k(row, classes, info.output, info.labels))
            for row in scored.results
        ]
        total, receive, decode, queue, compute, respond = count()
        timing = Timing(
            receive=receive / 1e3,
            decode=decode / 1e3,
            queue=queue / 1e3,
            compute=compute / 1e3,
            respond=respond / 1e3,
            total=total / 1e3,
        )
        return json_response(ClassifyAnswer(model=info.name, results=results, timing_ms=timing))


def query_parser(classes: int) -> Callable[[bytes], int]:
    """What reads ?top_k= of a model with so many classes; raises InvalidParameterError."""
    adapter = TypeAdapter[int](Annotated[int, _top_k(classes)])
    validate: Callable[[bytes | str], int] = adapter.validator.validate_python
    rule = f"top_k must be a whole number from 1 to {classes}"

    def parse(query: bytes) -> int:
        if len(query) > _MAX_QUERY_BYTES:
            raise InvalidParameterError(
                f"the query has {len(query)} bytes; at most {_MAX_QUERY_BYTES} are allowed"
            )
        parameters = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
        for name, _ in parameters:
            if name != "top_k":
                raise InvalidParameterError(f"unknown parameter {name[:20]!r}; there is only top_k")
        value = parameters[-1][1] if parameters else ""
        return validated(validate, value, rule)

    return parse


def _top_k(classes: int | None) -> Any:
    """How `?top_k=` is documented by FastAPI and validated by pydantic; None: any model's."""
    return Query(alias="top_k", ge=1, le=classes, description="number of classes, likeliest first")


def _documented(classes: int | None) -> Callable[..., Any]:
    async def parameters(
        _classes: Annotated[int, _top_k(classes)] = min(DEFAULT_TOP_K, classes or DEFAULT_TOP_K),
        _timeout: Timeout = None,  # type: ignore[assignment]  # absent: no deadline
        _priority: Priority = 0,
    ) -> None:
        """Document the parameters; `Classify.check` reads them."""

    return parameters
