"""Creates the JSON answers, and the answers to failed requests."""

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from math import ceil
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from service.errors import Code, RetryableError, ServiceError
from service.http.http_errors import HttpError

# The handler of a request that is not for a model's endpoint.
Route = Callable[[Request], Coroutine[Any, Any, Response]]

# The most characters of an error message, which may repeat text that the client sent.
_MOST_CHARACTERS = 500

JSON_NUMBER_BYTES = 24
"""The most bytes of a number in JSON: 17 digits, an exponent and a comma."""

# The most elements of a list that are encoded at once: 16,000 strings take a millisecond.
_PIECE = 2**14

# The mark contains a zero byte, which JSON never contains.
_PLACE = b"[\0]"

PLACE = msgspec.Raw(_PLACE)
"""A placeholder for a list in an answer."""

_JSON = (b"content-type", b"application/json")

# A Content-Security-Policy by which a browser loads and runs nothing. The last three directives do
# not fall back to default-src.
LOAD_NOTHING = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

BROWSER_HEADERS = (
    (b"content-security-policy", LOAD_NOTHING.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)


class _Json(Response):
    """A JSON response. Starlette's own response takes longer to create: 5 µs."""

    def __init__(self, body: bytes, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self.status_code = status
        self.body = body
        self.background = None
        self.raw_headers = [_JSON, (b"content-length", str(len(body)).encode()), *headers]


def json_response(answer: Any) -> Response:
    """Return a successful answer; `answer` has a type defined in `service/api/schemas.py`."""
    return _Json(msgspec.json.encode(answer), 200, ())


def json_around(answer: Mapping[str, Any], name: str, pieces: Sequence[bytes]) -> Response:
    """Return a successful answer with a list as its field `name`. `pieces` contains the elements of
    the list, encoded as JSON."""
    return _Json(around(answer, name, pieces), 200, ())


def around(answer: Mapping[str, Any], name: str, pieces: Sequence[bytes]) -> bytes:
    """Return a JSON object with a list as its field `name`. `pieces` contains the elements of the
    list, encoded as JSON."""
    return b"".join(parts_around({**answer, name: PLACE}, [pieces]))


def parts_around(answer: Mapping[str, Any], lists: Sequence[Sequence[bytes]]) -> list[bytes]:
    """Return the JSON of an answer as parts to join. Each `PLACE` in the answer is replaced by the
    next list of `lists`, whose elements are already encoded as JSON.

    The caller joins all parts at once, because each copy of a large answer takes milliseconds.
    """
    first, *others = msgspec.json.encode(answer).split(_PLACE)
    parts = [first]
    for pieces, text in zip(lists, others, strict=True):
        parts.append(b"[")
        for number, piece in enumerate(pieces):
            parts += (b",", piece) if number else (piece,)
        parts += (b"]", text)
    return parts


def json_pieces(
    elements: Sequence[Any] | NDArray[Any],
    encode: Callable[[Any], bytes] = msgspec.json.encode,
    at_once: int = _PIECE,
) -> list[bytes]:
    """Encode the elements as JSON, many elements at a time, and return the encoded parts. Between
    two parts, other threads can get the interpreter's lock."""
    pieces = []
    for at in range(0, len(elements), at_once):
        some = elements[at : at + at_once]
        listed = some.tolist() if isinstance(some, np.ndarray) else some
        pieces.append(encode(listed)[1:-1])
    return pieces


def error_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return an answer with an error message."""
    if len(message) > _MOST_CHARACTERS:
        message = f"{message[:_MOST_CHARACTERS]} ..."
    named = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
    return _Json(msgspec.json.encode({"error": message}), status, [*named, *BROWSER_HEADERS])


def refusal(error: ServiceError) -> Response:
    """Return the answer for an error, with the headers that this kind of error requires."""
    headers = {}
    if error.code is Code.UNAUTHENTICATED:
        headers["WWW-Authenticate"] = "Bearer"  # the expected scheme (RFC 6750)
    if isinstance(error, RetryableError):  # whole seconds, at least one (RFC 9110 section 10.2.3)
        headers["Retry-After"] = str(max(1, ceil(error.retry_after_s)))
    return error_response(status_of(error), str(error), headers)


def status_of(error: ServiceError) -> int:
    """Return the HTTP status for an error."""
    return error.status if isinstance(error, HttpError) else error.code
