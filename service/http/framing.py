"""How requests are framed: what of a head is refused, whatever it asks for.

The parser, llhttp, is stricter than this in much; here is what it leaves to servers, by RFC 9112
sections 2.3 (versions), 3.2 (Host) and 6.1 (Transfer-Encoding).
"""

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus

from service.errors import (
    BadRequestError,
    HeadTooLargeError,
    HttpVersionError,
    ServiceError,
    TargetTooLongError,
)

MAX_HEAD_BYTES = 64 * 1024
"""Of a request line with its headers, of a chunk's extensions, of trailers."""

MAX_TARGET_BYTES = 8 * 1024
"""Of a path with its query, as nginx has it. Each `%41` in it takes a tenth of a microsecond."""

MAX_HEADERS = 100
"""Of one request; browsers send 20. Each takes a microsecond, and 64 KiB have room for 16,000."""

_VERSIONS = ("1.1", "1.0")
_OTHER_VERSION = ("Invalid HTTP version", "Pause on PRI/Upgrade")  # as llhttp says it


def check_framing(
    version: str, headers: Sequence[tuple[bytes, bytes]], named: Mapping[bytes, bytes]
) -> ServiceError | None:
    """What is wrong with a head; `named` are its headers by name, the last of each."""
    if version not in _VERSIONS:
        return _other_version()
    if b"host" not in named and version == "1.1":
        return BadRequestError("the request has no Host header; send one")
    coding = named.get(b"transfer-encoding")
    if len(named) < len(headers):
        names = [name for name, _ in headers]
        if names.count(b"host") > 1:
            return BadRequestError("the request has several Host headers; send one")
        if names.count(b"transfer-encoding") > 1:
            coding = b"several"
    if coding is not None and (version == "1.0" or coding.strip().lower() != b"chunked"):
        return BadRequestError(
            "Transfer-Encoding may be `chunked` and nothing else, and in HTTP/1.1 alone; "
            "how a body is compressed is said by Content-Encoding"
        )
    return None


def head_too_large() -> HeadTooLargeError:
    """For a head without end, or one of very many headers."""
    return HeadTooLargeError(
        f"the request line and headers exceed {MAX_HEAD_BYTES} bytes or {MAX_HEADERS} headers"
    )


def target_too_long() -> TargetTooLongError:
    """For a path with its query that is longer than any should be."""
    return TargetTooLongError(f"the path and query have more than {MAX_TARGET_BYTES} bytes")


def not_http(reason: str) -> ServiceError:
    """For what the parser does not take, by its reason."""
    if reason in _OTHER_VERSION:
        return _other_version()
    return BadRequestError(f"this is no HTTP/1.1 request as it should be: {reason}")


def last_answer(
    status: HTTPStatus, message: str, request_id: bytes, headers: Mapping[str, str]
) -> tuple[bytes, bytes]:
    """Head and body of an error that is the last answer of its connection."""
    body = json.dumps({"error": message}).encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        "content-type: application/json\r\n"
        f"content-length: {len(body)}\r\n"
        f"x-request-id: {request_id.decode()}\r\n"
        + "".join(f"{name.lower()}: {value}\r\n" for name, value in headers.items())
        + "connection: close\r\n\r\n"
    )
    return head.encode(), body


def without_upgrade(
    method: bytes, target: bytes, version: str, headers: Sequence[tuple[bytes, bytes]]
) -> bytes:
    """A head that asks for another protocol, as if it did not; a server need not change to one."""
    lines = [b"%b %b HTTP/%b" % (method, target, version.encode())]
    lines += [b"%b: %b" % header for header in headers if header[0] != b"upgrade"]
    return b"\r\n".join([*lines, b"", b""])


def _other_version() -> HttpVersionError:
    return HttpVersionError("this server speaks HTTP/1.1; send the request in that version")
