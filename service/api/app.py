"""Creates the FastAPI application: the APIs `v1` and `v2` for a repository's models, the web pages,
and the metrics."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from functools import lru_cache
from heapq import nlargest
from http import HTTPStatus
from itertools import islice
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from models import __version__
from service.api import embeddings, v1
from service.api.endpoints import endpoints_of
from service.api.page import add_pages, with_headers
from service.api.query import check_length
from service.api.schemas import (
    ClassifyAnswer,
    ErrorAnswer,
    ModelsAnswer,
    Traffic,
    answer_of,
    definitions,
    errors,
    traffic_of,
)
from service.api.v2.parse import REQUEST_SCHEMAS
from service.api.v2.routes import add_routes as add_v2_routes
from service.errors import CRASHED, InvalidParameterError, ServiceError
from service.hosting.repository import Repository, nearest
from service.http.exchange import AnyEndpoint
from service.http.responses import error_response, json_response, refusal

# The answer to a CORS preflight. It allows no origin by itself: if an origin may call, every answer
# names it.
_PREFLIGHT = Response(
    status_code=204,
    headers={
        "access-control-allow-methods": "GET, POST",
        "access-control-allow-headers": "authorization, content-type, "
        "inference-header-content-length, x-api-key, x-priority, x-request-id, x-timeout-ms",
        "access-control-max-age": "600",
    },
)


# The schemas to which operations refer.
_ANSWERS = (ClassifyAnswer, ModelsAnswer, Traffic, embeddings.EmbeddingsAnswer, ErrorAnswer)

METRICS_PORT_HEADER = "Metrics-Port"
"""The header of a 404 at /metrics if metrics have a separate port."""

# The headers that are hidden from FastAPI. It reads every cookie, which takes up to 14 ms, but
# Convoy has none. Starlette refuses a wrong range without an error in JSON. A server may ignore
# ranges, and Convoy's files are short.
_UNREAD = (b"cookie", b"range")

# The order of the groups at /docs.
_TAGS = ("classify", "models", "KServe V2", "health", "metrics")


# For an unknown path: the most characters that are shown, the most known paths that are looked at,
# the most of them that are compared, and the least similarity of a suggestion.
_SHOWN, _MOST_PATHS, _MOST_COMPARED, _NEAR = 200, 1000, 32, 0.8


class App(FastAPI):
    """Extends FastAPI with HEAD requests and with headers that protect browsers."""

    endpoints: Mapping[str, AnyEndpoint]
    """The models' endpoints by path. A server may call them without FastAPI's router. The mapping
    changes with the models."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. HEAD is answered like GET, and the server omits the body.

        All answers except answers to POST have the headers that protect a browser.
        """
        if scope["type"] == "http":
            method = scope["method"]
            if method != "POST":
                send = with_headers(send)
            if method == "OPTIONS" and b"access-control-request-method" in dict(scope["headers"]):
                await _PREFLIGHT(scope, receive, send)
                return
            try:
                check_length(scope["query_string"])
            except InvalidParameterError as error:
                await refusal(error)(scope, receive, send)
                return
            headers = [header for header in scope["headers"] if header[0] not in _UNREAD]
            scope = {**scope, "headers": headers, "method": "GET" if method == "HEAD" else method}
        await super().__call__(scope, receive, send)

    @override
    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document, including the schemas that operations refer to by name."""
        document = super().openapi()
        document["components"]["schemas"] |= definitions(*_ANSWERS) | REQUEST_SCHEMAS
        return document


def create_app(
    repository: Repository,
    endpoints: Mapping[str, AnyEndpoint] | None = None,
    *,
    metrics: bool = True,
    metrics_port: int | None = None,
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]] | None = None,
) -> App:
    """Return the application for the repository's models. The caller warms up, drains and closes
    the models.

    If `metrics` is False or `metrics_port` is given, /metrics answers 404. If `metrics_port` is
    given, the 404 answer and the traffic of a model name this port. `lifespan` is the application's
    startup and shutdown code on ASGI servers other than Convoy's.
    """
    app = App(
        title="Convoy",
        version=__version__,
        description='Send images, get labels. Every error is `{"error": "..."}`.',
        lifespan=lifespan,
        openapi_tags=[{"name": name} for name in _TAGS],
        openapi_url=None,  # see `openapi` below
        docs_url=None,
        redoc_url=None,
        exception_handlers={
            ServiceError: _on_service_error,
            HTTPException: _on_http_error,
            RequestValidationError: _on_invalid_request,
            Exception: _on_crash,
        },
    )
    app.state.repository = repository
    here = metrics and metrics_port is None
    headers = {} if metrics_port is None else {METRICS_PORT_HEADER: str(metrics_port)}

    @app.get(
        "/metrics",
        response_class=PlainTextResponse,
        include_in_schema=here,
        summary="Metrics for Prometheus",
        tags=["metrics"],
    )
    async def exposition() -> Response:
        """Return all metrics in Prometheus' text format."""
        if not here:
            raise HTTPException(404, "the metrics are on another port (--metrics-port)", headers)
        return Response(
            await repository.exposition(), headers={"content-type": CONTENT_TYPE_LATEST}
        )

    @app.get(
        "/v1/models/{model}/traffic",
        responses=answer_of(Traffic) | errors(404, 503),
        summary="Current traffic of a model",
        tags=["models"],
    )
    async def traffic(model: str) -> Response:
        """Return a ready model's traffic counts, which the page at / shows."""
        pipeline = repository.find(model)
        pipeline.runner.check_ready()
        said = Traffic() if metrics_port is None else Traffic(metrics_port=metrics_port)
        if here:
            counted = pipeline.metrics
            totals = counted.counts.sum(counted.earlier)
            gpus = await repository.busy_gpus()
            said["counts"] = traffic_of(totals, counted.pending(), gpus)
        return json_response(said)

    @lru_cache(maxsize=1)
    def document(root_path: str) -> bytes:
        found = app.openapi()
        return msgspec.json.encode(
            {**found, "servers": [{"url": root_path}]} if root_path else found
        )

    async def openapi(request: Request) -> Response:
        """Return the OpenAPI document. The first call creates it in a thread, because that takes
        long."""
        root_path = request.scope.get("root_path", "").rstrip("/")
        found = await asyncio.to_thread(document, root_path)
        return Response(found, media_type="application/json")

    app.add_route("/openapi.json", openapi, include_in_schema=False)
    app.endpoints = endpoints_of(repository) if endpoints is None else endpoints
    v1.add_routes(app, repository, app.endpoints)
    embeddings.add_routes(app, repository, app.endpoints)
    add_v2_routes(app)
    add_pages(app, repository.max_pixels)
    return app


async def _on_service_error(_: Request, error: ServiceError) -> Response:
    return refusal(error)


async def _on_http_error(request: Request, error: HTTPException) -> Response:
    message = error.detail
    headers = dict(error.headers or {})
    if message == HTTPStatus.NOT_FOUND.phrase:
        path = request.url.path[:_SHOWN]
        beginning = f"{path.rstrip('/')}/classify"  # so a model's path is suggested
        if beginning in request.app.endpoints:
            near: str | None = beginning if request.method == "POST" else v1.MODELS_PATH
        else:
            parts = {*path.split("/")}

            def shared(other: str) -> int:
                return len(parts & {*other.split("/")})

            paths = islice(_paths(request.app), _MOST_PATHS)
            near = nearest(path, nlargest(_MOST_COMPARED, paths, shared), _NEAR)
        other = f"POST images to {v1.CLASSIFY_PATH}; /docs lists all paths"
        right = f"did you mean {near}?" if near else other
        message = f"there is nothing at {path}; {right}"
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allow = headers.get("Allow", "another method")
        message = f"{request.url.path} does not support {request.method}; use {allow}"
        if request.method == "POST":
            message += f", or POST images to {v1.CLASSIFY_PATH}"
    return error_response(error.status_code, message, headers)


def _paths(app: App) -> Iterator[str]:
    """Yield the paths that may be suggested instead of an unknown path: the routes without
    parameters, and the endpoints of all models."""
    yield from (
        path for route in app.routes if "{" not in (path := str(getattr(route, "path", "")))
    )
    yield from app.endpoints


async def _on_invalid_request(_: Request, error: RequestValidationError) -> Response:
    problems = [
        f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors()
    ]
    return error_response(422, "; ".join(problems))


async def _on_crash(_: Request, __: Exception) -> Response:
    """Answer 500 after an unexpected error. The server's log has the traceback; the answer does
    not."""
    return error_response(500, CRASHED)
