"""The HTTP face of a pipeline: routes, limits, statuses, OpenAPI; nothing but HTTP.

The documentation page at /docs takes its scripts from a CDN, as FastAPI does by default; without
a way to the internet the same is to be read at /openapi.json.
"""

import logging
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from importlib.metadata import version
from time import perf_counter
from typing import Any
from urllib.parse import parse_qsl

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from service.admission import Visit
from service.body import FILE_FIELDS, FORM_TYPE, IMAGE_TYPES, Body
from service.connection import Departure, LastResponse
from service.errors import InvalidParameterError, ServiceError
from service.pipeline import Pipeline
from service.schemas import (
    ClassifyAnswer,
    ErrorAnswer,
    LiveAnswer,
    ReadyAnswer,
    Timing,
)

_log = logging.getLogger("convoy")

CLASSIFY_PATH = "/v1/classify"
DEFAULT_TOP_K = 5

# As nginx counts a request whose client did not wait for the answer.
_CLIENT_CLOSED_REQUEST = 499

_CRASHED = "the server made a mistake; its log says which"

_BINARY = {"type": "string", "format": "binary"}
_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"description": "Empty or broken body, or a picture that cannot be decoded"},
    408: {"description": "The body came too slowly"},
    413: {"description": "Too many bytes, pixels or images"},
    415: {"description": "A Content-Type or a picture format that is not taken"},
    422: {"description": "A wrong query parameter or form field"},
    429: {"description": "Too many images are waiting; see Retry-After"},
    500: {"description": "The engine failed"},
    503: {"description": "Warming up or shutting down; see Retry-After"},
}


Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]


class _DirectRoute(APIRoute):
    """A route that FastAPI documents, but whose endpoint is called with the request alone.

    The endpoints here read what they need themselves; there is nothing to resolve or validate.
    """

    def get_route_handler(self) -> Endpoint:
        """The endpoint itself."""
        endpoint: Endpoint = self.endpoint
        return endpoint


class _App(FastAPI):
    """FastAPI with one lane past its middleware, for POST on `lane_path`.

    Five layers of middleware and a search for the route took 13 µs a request when measured, beside
    50 µs of everything else here. The lane's endpoint is a route too, which documents it, answers
    405, and takes over where a proxy's path prefix comes before the path.
    """

    lane_path: str
    lane: Endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if (
            scope["type"] == "http"
            and scope["path"] == self.lane_path
            and scope["method"] == "POST"
        ):
            response = await self.lane(Request(scope, receive))
            await response(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def create_app(pipeline: Pipeline, *, model: str) -> FastAPI:
    """The routes over a pipeline that somebody else warms up, drains and closes.

    `model` is the name that answers carry.
    """
    app = _App(
        title="Convoy",
        version=version("convoy"),
        description='Send pictures, get labels. Every error is `{"error": "..."}`.',
        redoc_url=None,
    )
    app.router.route_class = _DirectRoute
    classify = _classify_endpoint(pipeline, model)
    app.lane_path, app.lane = CLASSIFY_PATH, classify

    async def live(_: Request) -> Response:
        """Say that the process answers."""
        return _json(LiveAnswer(live=True))

    async def ready(_: Request) -> Response:
        """Say whether pictures are taken: every batch size is warm and nothing is draining."""
        try:
            pipeline.check_ready()
        except ServiceError as error:
            return _error(error.status, str(error), error.headers())
        return _json(ReadyAnswer(ready=True))

    async def exposition(_: Request) -> Response:
        """Everything that is counted, in Prometheus' text format."""
        return Response(
            pipeline.metrics.exposition(), headers={"content-type": CONTENT_TYPE_LATEST}
        )

    async def home(_: Request) -> Response:
        return RedirectResponse("docs")

    errors = {status: {**about, "model": ErrorAnswer} for status, about in _ERRORS.items()}
    app.add_api_route(
        CLASSIFY_PATH,
        classify,
        methods=["POST"],
        response_model=ClassifyAnswer,
        responses=errors,
        openapi_extra=_classify_extra(pipeline.classes),
        tags=["classify"],
    )
    health: dict[str, Any] = {"methods": ["GET"], "tags": ["health"]}
    app.add_api_route("/v2/health/live", live, response_model=LiveAnswer, **health)
    app.add_api_route(
        "/v2/health/ready",
        ready,
        response_model=ReadyAnswer,
        responses={503: errors[503]},
        **health,
    )
    app.add_api_route("/metrics", exposition, response_class=Response, tags=["metrics"])
    app.add_api_route("/", home, include_in_schema=False)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_exception_handler(Exception, _on_crash)
    return app


def _classify_endpoint(pipeline: Pipeline, model: str) -> Endpoint:
    metrics = pipeline.metrics

    async def classify(request: Request) -> Response:
        """Classify one picture, or several at once.

        Pictures are JPEG, PNG or WebP. The body is one picture, or a form with one or more files.
        """
        started = perf_counter()
        body = Body(
            request.scope["headers"],
            request.receive,
            max_bytes=pipeline.max_body_bytes,
            max_images=pipeline.admission.max_images_a_request,
        )
        try:
            with Visit(pipeline.admission) as visit:
                pipeline.check_ready()
                visit.expect_room()
                k = _top_k(request.scope["query_string"], pipeline.classes)
                bodies = await body.images(visit.hold_bytes)
                received = perf_counter()
                with Departure(request.receive):
                    done = await pipeline.classify(visit, bodies, k)
        except ServiceError as error:
            metrics.refused(error.status)
            return _error(error.status, str(error), error.headers(), last=not body.skippable)
        except ClientDisconnect:
            metrics.refused(_CLIENT_CLOSED_REQUEST)
            return Response(status_code=_CLIENT_CLOSED_REQUEST)  # nobody is there to read it
        except Exception:  # noqa: BLE001  answered, counted and logged
            _log.exception("a request failed in a way that was not foreseen")
            metrics.refused(500)
            return _error(500, _CRASHED, last=not body.skippable)
        receive_s = received - started
        total_s = perf_counter() - started
        metrics.answered(
            len(done.results), (receive_s, done.decode_s, done.queue_s, done.compute_s), total_s
        )
        answer = ClassifyAnswer(
            model=model,
            results=done.results,
            timing_ms=Timing(
                receive=_ms(receive_s),
                decode=_ms(done.decode_s),
                queue=_ms(done.queue_s),
                compute=_ms(done.compute_s),
                total=_ms(total_s),
            ),
        )
        return _json(answer)

    return classify


def _top_k(query: bytes, classes: int) -> int:
    """The value of ?top_k=, within 1..classes; InvalidParameterError for anything else."""
    if not query:
        return min(DEFAULT_TOP_K, classes)
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


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


def _json(answer: ClassifyAnswer | LiveAnswer | ReadyAnswer) -> Response:
    return Response(to_json(answer), media_type="application/json")


def _error(
    status: int, message: str, headers: dict[str, str] | None = None, *, last: bool = False
) -> Response:
    """The one shape of an error; `last` where the rest of the body must not be waited for."""
    kind = LastResponse if last else Response
    content = to_json(ErrorAnswer(error=message))
    return kind(content, status, headers, media_type="application/json")


async def _on_http_error(request: Request, error: Exception) -> Response:
    """What the router refuses: no such path, or not with this method."""
    assert isinstance(error, HTTPException)  # noqa: S101  as registered; narrows the type
    message = error.detail
    if error.status_code == HTTPStatus.NOT_FOUND:
        message = f"there is nothing at {request.url.path}; POST pictures to {CLASSIFY_PATH}"
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allow = (error.headers or {}).get("Allow", "another method")
        message = f"{request.method} is not for {request.url.path}; use {allow}"
    return _error(error.status_code, message, dict(error.headers or {}))


async def _on_invalid_request(_: Request, error: Exception) -> Response:
    """What FastAPI finds wrong with the parameters of a route that leaves them to it."""
    assert isinstance(error, RequestValidationError)  # noqa: S101  as registered
    problems = (
        f"{'.'.join(str(part) for part in problem['loc'])}: {problem['msg']}"
        for problem in error.errors()
    )
    return _error(422, "; ".join(problems))


async def _on_crash(_: Request, __: Exception) -> Response:
    """A defect: the server logs its traceback, the client learns nothing of it."""
    return _error(500, _CRASHED)


def _classify_extra(classes: int) -> dict[str, Any]:
    """What FastAPI cannot see of classify, since it reads its request itself."""
    form = {
        "type": "object",
        "properties": {name: {"type": "array", "items": _BINARY} for name in FILE_FIELDS},
    }
    return {
        "parameters": [
            {
                "name": "top_k",
                "in": "query",
                "description": "how many classes to name, likeliest first",
                "schema": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": classes,
                    "default": min(DEFAULT_TOP_K, classes),
                },
            }
        ],
        "requestBody": {
            "required": True,
            "content": {
                **{media_type: {"schema": _BINARY} for media_type in IMAGE_TYPES},
                FORM_TYPE: {"schema": form},
            },
        },
    }
