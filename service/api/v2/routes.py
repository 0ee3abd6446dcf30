"""Defines the paths of the V2 protocol."""

import re

import msgspec
from fastapi import APIRouter, FastAPI, Request
from starlette.responses import Response

from service.api.schemas import errors
from service.api.v2 import description
from service.api.v2.description import Asked, IndexEntry, Models, StatisticsAnswer, index_of
from service.api.v2.infer_endpoint import PATHS, InferAnswer, infer_paths
from service.api.v2.interpretation import InferenceJson
from service.api.v2.parse import IndexRequest, content_of, read_json, short_body
from service.api.v2.refusals import router as refusals
from service.api.v2.repository_calls import router as repository
from service.api.v2.shared_memory import router as memory
from service.http.asgi import answer_to
from service.http.responses import json_response

_BINARY = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}

_decode_index = msgspec.json.Decoder(IndexRequest).decode

router = APIRouter()
router.add_api_route(
    "/v2/health/live", description.live, summary="Is the server alive?", tags=["health"]
)
router.add_api_route(
    "/v2/health/ready",
    description.ready,
    summary="Is the server ready?",
    tags=["health"],
    responses=errors(503),
)
router.add_api_route(
    "/healthz",
    description.ready,
    summary="Is the server ready? (the usual path)",
    tags=["health"],
    responses=errors(503),
)
router.add_api_route(
    "/v2", description.server_metadata, summary="Describe the server", tags=["KServe V2"]
)


# Before the models' own paths: no model can be named stats.
@router.get(
    "/v2/models/stats",
    summary="Statistics of every model",
    tags=["KServe V2"],
    response_model=StatisticsAnswer,
)
async def every_statistics(models: Models) -> Response:
    """Return the statistics of every model."""
    return json_response(await description.every_statistics(models))


@router.post(
    "/v2/repository/index",
    summary="List the models",
    tags=["KServe V2"],
    responses=errors(400, 408, 413, 415),
    openapi_extra={"requestBody": {"content": content_of(IndexRequest)}},
)
async def index(request: Request, models: Models) -> list[IndexEntry]:
    """List the models. If the body is `{"ready": true}`, list only models that are ready."""
    data = await short_body(request)
    only_ready = bool(data) and read_json(_decode_index, data).ready
    return index_of(models, only_ready=only_ready)


async def infer(request: Request, pipeline: Asked) -> Response:
    """Score n images.

    The input `image` is either image files as BYTES or UINT8 pixels, in RGB or grey. Clients send
    RGB even if the model expects BGR. The model's own input, under its name in the model's file, is
    normalised FP32. It may also be FP16, or UINT8 pixels, if the file has that type. Triton's
    extensions for binary tensor data, classification and schedule policy are supported.
    """
    path = infer_paths(pipeline)[0]
    return await answer_to(request, request.app.endpoints[path])


for _path in PATHS:
    _parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", _path)
    ]
    for _end, _route, _summary, _statuses in (
        ("", description.model_metadata, "Describe a model", [404, 422, 503]),
        ("/ready", description.model_ready, "Is a model ready?", [404, 503]),
        ("/config", description.model_config, "Configuration of a model", [404, 422, 503]),
        ("/stats", description.statistics, "Statistics of a model", [404, 503]),
    ):
        router.add_api_route(
            _path + _end,
            _route,
            summary=_summary,
            responses=errors(*_statuses),
            openapi_extra={"parameters": _parameters},
            tags=["KServe V2"],
        )
    router.add_api_route(
        f"{_path}/infer",
        infer,
        methods=["POST"],
        summary="Score images or tensors",
        response_model=InferAnswer,
        responses={
            200: {"content": _BINARY},
            **errors(400, 403, 404, 408, 413, 415, 422, 429, 500, 503, 504),
        },
        openapi_extra={
            "parameters": _parameters,
            "requestBody": {"required": True, "content": content_of(InferenceJson) | _BINARY},
        },
        tags=["KServe V2"],
    )


def add_routes(app: FastAPI) -> None:
    """Add the routes of the V2 protocol to the application. The models' endpoints answer the
    inference requests."""
    for routes in (router, memory, repository, refusals):
        app.include_router(routes)
