"""The paths of the V2 protocol."""

from collections.abc import Callable
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from service.api.schemas import ErrorAnswer, LiveAnswer, ReadyAnswer
from service.api.v2.description import (
    index_entry,
    model_config,
    model_metadata,
    model_statistics,
    server_metadata,
)
from service.api.v2.infer import Infer
from service.api.v2.refusals import add_refusals
from service.api.v2.request import InferenceJson
from service.api.v2.schemas import (
    IndexEntry,
    IndexRequest,
    InferAnswer,
    ModelMetadata,
    ModelReady,
    ServerMetadata,
    StatisticsAnswer,
    request_schema,
)
from service.errors import BadRequestError, PayloadTooLargeError, ServiceError
from service.hosting.pipeline import Pipeline
from service.hosting.repository import Repository
from service.http.body import content_coding
from service.http.compression import inflate
from service.http.exchange import Endpoint
from service.http.responses import Route, json_response, refusal

_MAX_INDEX_BYTES = 4096

_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": text, "model": ErrorAnswer}
    for status, text in {
        400: "A request that makes no sense, or a picture that cannot be decoded",
        404: "No such model, or not in that version",
        408: "The body came too slowly",
        413: "Too many bytes, pixels or images",
        415: "A Content-Encoding or a picture format that is not taken",
        429: "Too many images are waiting; see Retry-After",
        500: "The engine failed",
        503: "Warming up or shutting down; see Retry-After",
        504: "It cannot be done within its timeout",
    }.items()
}
_PATHS = ("/v2/models/{model}", "/v2/models/{model}/versions/{version}")


def add_routes(app: FastAPI, repository: Repository) -> dict[str, Endpoint]:
    """The routes, and the models' endpoints by path."""
    _add_health(app, repository)
    _add_server(app, repository)
    _add_models(app, repository)
    add_refusals(app, repository)
    return _add_infer(app, repository)


def _add_health(app: FastAPI, repository: Repository) -> None:
    async def live(_: Request) -> Response:
        """Say that the process answers."""
        return json_response(LiveAnswer(live=True))

    async def ready(_: Request) -> Response:
        """Say whether pictures are taken: every batch size is warm and nothing is draining."""
        try:
            repository.check_ready()
        except ServiceError as error:
            return refusal(error)
        return json_response(ReadyAnswer(ready=True))

    health: dict[str, Any] = {"methods": ["GET"], "tags": ["health"]}
    app.add_api_route("/v2/health/live", live, response_model=LiveAnswer, **health)
    app.add_api_route(
        "/v2/health/ready", ready, response_model=ReadyAnswer, responses=_some(503), **health
    )


def _add_server(app: FastAPI, repository: Repository) -> None:
    async def server(_: Request) -> Response:
        """Say what serves, and which extensions of the protocol it speaks."""
        return json_response(server_metadata())

    async def index(request: Request) -> Response:
        """List the models; only those that are ready, if the body is `{"ready": true}`."""
        try:
            only_ready = await _only_ready(request)
        except ServiceError as error:
            return refusal(error)
        except ClientDisconnect:
            return Response(status_code=499)
        entries = [index_entry(pipeline) for pipeline in repository.models.values()]
        if only_ready:
            entries = [entry for entry in entries if entry["state"] == "READY"]
        return json_response(entries)

    async def statistics(_: Request) -> Response:
        """Tell what every model has done."""
        every = [model_statistics(pipeline) for pipeline in repository.models.values()]
        return json_response(StatisticsAnswer(model_stats=every))

    get: dict[str, Any] = {"methods": ["GET"], "tags": ["models"]}
    app.add_api_route("/v2", server, response_model=ServerMetadata, **get)
    # Before the models: none of them can be called stats.
    app.add_api_route("/v2/models/stats", statistics, response_model=StatisticsAnswer, **get)
    app.add_api_route(
        "/v2/repository/index",
        index,
        methods=["POST"],
        response_model=list[IndexEntry],
        responses=_some(400, 408, 413, 415),
        openapi_extra={"requestBody": {"content": _json(request_schema(IndexRequest))}},
        tags=["models"],
    )


async def _only_ready(request: Request) -> bool:
    """Whether the body, if there is one, wants the models that are ready and no others."""
    coding = content_coding(dict(request.headers.raw))
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > _MAX_INDEX_BYTES:
            raise PayloadTooLargeError(f"at most {_MAX_INDEX_BYTES} bytes are allowed in a body")
    if coding:
        data = inflate(data, coding, _MAX_INDEX_BYTES)
    try:
        return msgspec.json.decode(data, type=IndexRequest).ready if data else False
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequestError(
            f'the body, if there is one, must be `{{"ready": true}}` or false: {error}'
        ) from error


def _add_models(app: FastAPI, repository: Repository) -> None:
    def about(tell: Callable[[Pipeline], Any], doc: str) -> Route:
        async def endpoint(request: Request) -> Response:
            try:
                return json_response(tell(_asked(repository, request)))
            except ServiceError as error:
                return refusal(error)

        endpoint.__doc__ = doc
        return endpoint

    def ready(pipeline: Pipeline) -> ModelReady:
        pipeline.runner.check_ready()
        return ModelReady(name=pipeline.info.name, ready=True)

    def statistics(pipeline: Pipeline) -> StatisticsAnswer:
        return StatisticsAnswer(model_stats=[model_statistics(pipeline)])

    kinds: tuple[tuple[str, Callable[[Pipeline], Any], Any, str], ...] = (
        ("", model_metadata, ModelMetadata, "Tell what a model takes and gives."),
        ("/ready", ready, ModelReady, "Say whether a model takes requests."),
        ("/config", model_config, dict[str, Any], "Tell a model's Triton configuration."),
        ("/stats", statistics, StatisticsAnswer, "Tell what a model has done."),
    )
    for end, tell, shape, doc in kinds:
        for path in _PATHS:
            app.add_api_route(
                path + end,
                about(tell, doc),
                methods=["GET"],
                response_model=shape,
                responses=_some(404, 503) if end == "/ready" else _some(404),
                openapi_extra={"parameters": _path_parameters(path)},
                tags=["models"],
                operation_id=f"model{end or '/metadata'}{path}",
            )


def _add_infer(app: FastAPI, repository: Repository) -> dict[str, Endpoint]:
    """The models' endpoints by path, and their routes, as in v1."""

    async def infer(request: Request) -> Response:
        """Score n images.

        The input `image` is UINT8 pixels, or BYTES: JPEG, PNG or WebP files. Triton's binary tensor
        data, classification and schedule policy extensions are understood.
        """
        parameters = request.path_params
        return no_model(repository, parameters["model"], parameters.get("version"))

    binary = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    for path in _PATHS:
        app.add_api_route(
            f"{path}/infer",
            infer,
            methods=["POST"],
            response_model=InferAnswer,
            responses={200: {"content": binary}, **_ERRORS},
            openapi_extra={
                "parameters": _path_parameters(path),
                "requestBody": {
                    "required": True,
                    "content": {**_json(request_schema(InferenceJson)), **binary},
                },
            },
            tags=["models"],
            operation_id=f"infer{path}",
        )
    endpoints: dict[str, Endpoint] = {}
    for name, pipeline in repository.models.items():
        infers = Infer(pipeline, repository.max_body_bytes)
        for path in _PATHS:
            asked = path.format(model=name, version=pipeline.info.version)
            endpoints[f"{asked}/infer"] = infers
    return endpoints


def _asked(repository: Repository, request: Request) -> Pipeline:
    """The model that the path names; ModelNotFoundError."""
    return repository.find(request.path_params["model"], request.path_params.get("version"))


def no_model(repository: Repository, name: str, version: str | None = None) -> Response:
    """The answer to a request for a model, or a version of one, that there is not."""
    try:
        repository.find(name, version)
    except ServiceError as error:
        return refusal(error)
    raise LookupError(f"{name!r} has an endpoint of its own")


def _some(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: _ERRORS[status] for status in statuses}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _path_parameters(path: str) -> list[dict[str, Any]]:
    """What FastAPI cannot see of an endpoint that reads its path itself."""
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in ("model", "version")
        if f"{{{name}}}" in path
    ]
