"""The two kinds of answer that are JSON: something, and the one shape of an error."""

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from service.errors import ServiceError

# What answers a request that is not for a model's endpoint.
Route = Callable[[Request], Coroutine[Any, Any, Response]]

CRASHED = "internal server error; see the server log"

# Of an error, which may repeat what the client sent.
_MOST_CHARACTERS = 500


class _Json(Response):
    """A response that is JSON and nothing else; Starlette's own takes 5 µs to be made."""

    def __init__(self, body: bytes, status: int) -> None:
        self.status_code = status
        self.body = body
        self.background = None
        self.raw_headers = [_JSON, (b"content-length", str(len(body)).encode())]


_JSON = (b"content-type", b"application/json")


def json_response(answer: Any, status: int = 200) -> Response:
    """An answer whose shape `service/api/schemas.py` has."""
    return _Json(msgspec.json.encode(answer), status)


def error_response(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    """An error."""
    if len(message) > _MOST_CHARACTERS:
        message = f"{message[:_MOST_CHARACTERS]} ..."
    content = msgspec.json.encode({"error": message})
    return Response(content, status, headers, media_type="application/json")


def refusal(error: ServiceError) -> Response:
    """What the service refuses or fails at, as an answer."""
    return error_response(error.status, str(error), error.headers())
