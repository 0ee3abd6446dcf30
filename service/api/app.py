"""The application: the interfaces `v1` and `v2` over a repository's models; pages, metrics."""

from collections.abc import Mapping
from http import HTTPStatus
from importlib.metadata import version

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.api import v1, v2
from service.api.page import add_pages
from service.api.page.headers import with_headers
from service.hosting.repository import Repository
from service.http.asgi import serve
from service.http.exchange import Endpoint
from service.http.responses import CRASHED, Route, error_response


class _DirectRoute(APIRoute):
    """A route that FastAPI documents, but whose function is called with the request alone.

    The functions here read what they need themselves; there is nothing to resolve or validate.
    """

    def get_route_handler(self) -> Route:
        """The function itself."""
        route: Route = self.endpoint
        return route


class App(FastAPI):
    """FastAPI, past which requests for the models' endpoints go."""

    endpoints: Mapping[str, Endpoint]  # by path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; HEAD as GET, of whose answer the server writes the head alone.

        What a browser may show, which is no answer to POST, has headers for it.
        """
        if scope["type"] == "http" and scope["method"] == "POST":
            endpoint = self.endpoints.get(scope["path"])
            if endpoint is not None:
                await serve(endpoint, scope, receive, send)
                return
        elif scope["type"] == "http":
            send = with_headers(send)
            if scope["method"] == "HEAD":
                scope = {**scope, "method": "GET"}
        await super().__call__(scope, receive, send)


def create_app(repository: Repository, *, metrics: bool = True) -> App:
    """The routes over models that somebody else warms up, drains and closes.

    Without `metrics` they are on a port of their own.
    """
    app = App(
        title="Convoy",
        version=version("convoy"),
        description='Send pictures, get labels. Every error is `{"error": "..."}`.',
        docs_url=None,
        redoc_url=None,
    )
    app.router.route_class = _DirectRoute

    async def exposition(_: Request) -> Response:
        """Everything that is counted, in Prometheus' text format."""
        return Response(
            await repository.exposition(), headers={"content-type": CONTENT_TYPE_LATEST}
        )

    app.endpoints = v1.add_routes(app, repository) | v2.add_routes(app, repository)
    if metrics:
        app.add_api_route("/metrics", exposition, response_class=Response, tags=["metrics"])
    else:
        app.add_api_route("/metrics", _metrics_are_elsewhere, include_in_schema=False)
    add_pages(app)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_exception_handler(Exception, _on_crash)
    return app


async def _metrics_are_elsewhere(_: Request) -> Response:
    """For those who ask for metrics here."""
    return error_response(404, "metrics are on a port of their own (--metrics-port)")


async def _on_http_error(request: Request, error: Exception) -> Response:
    """What the router refuses: no such path, or not with this method."""
    assert isinstance(error, HTTPException)  # noqa: S101  as registered; narrows the type
    message = error.detail
    if error.status_code == HTTPStatus.NOT_FOUND:
        message = f"there is nothing at {request.url.path}; POST pictures to {v1.CLASSIFY_PATH}"
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allow = (error.headers or {}).get("Allow", "another method")
        message = f"{request.method} is not for {request.url.path}; use {allow}"
    return error_response(error.status_code, message, dict(error.headers or {}))


async def _on_invalid_request(_: Request, error: Exception) -> Response:
    """What FastAPI finds wrong with the parameters of a route that leaves them to it."""
    assert isinstance(error, RequestValidationError)  # noqa: S101  as registered
    problems = (
        f"{'.'.join(str(part) for part in problem['loc'])}: {problem['msg']}"
        for problem in error.errors()
    )
    return error_response(422, "; ".join(problems))


async def _on_crash(_: Request, __: Exception) -> Response:
    """A defect: the server logs its traceback, the client learns nothing of it."""
    return error_response(500, CRASHED)
