"""Framing of requests: checks on a head that do not depend on what it asks for.

The parser, llhttp, is mostly stricter; these are the checks it leaves to servers, by RFC 9112
sections 2.3 (versions), 3.2 (Host) and 6.1 (Transfer-Encoding).
"""

from collections.abc import Mapping, Sequence

from service.errors import (
    BadRequestError,
    HeadTooLargeError,
    HttpVersionError,
    ServiceError,
)

MAX_HEAD_BYTES = 64 * 1024
"""Limit on a request line with its headers, on the extensions of a chunk, and on trailers."""

MAX_TARGET_BYTES = 8 * 1024
"""Limit on a path with its query, as in nginx; decoding a `%41` takes a tenth of a microsecond."""

MAX_HEADERS = 100
"""Browsers send 20. Each takes a microsecond, and 64 KiB have room for 16,000."""

_OTHER_VERSION = ("Invalid HTTP version", "Pause on PRI/Upgrade")  # messages of llhttp


def check_framing(
    version: str, headers: Sequence[tuple[bytes, bytes]], named: Mapping[bytes, bytes]
) -> None:
    """Raise BadRequestError or HttpVersionError; `named` has the last header of each name."""
    if version not in ("1.1", "1.0"):
        raise not_http(_OTHER_VERSION[0])
    if b"host" not in named and version == "1.1":
        raise BadRequestError("the request has no Host header; send one")
    coding = named.get(b"transfer-encoding")
    if len(named) < len(headers):
        names = [name for name, _ in headers]
        if names.count(b"host") > 1:
            raise BadRequestError("the request has several Host headers; send one")
        if names.count(b"transfer-encoding") > 1:
            coding = b"several"
    if coding is not None and (version == "1.0" or coding.strip().lower() != b"chunked"):
        raise BadRequestError(
            "Transfer-Encoding must be `chunked`, in HTTP/1.1 alone; "
            "name the compression of a body in Content-Encoding"
        )


def head_too_large() -> HeadTooLargeError:
    """The error of a head with too many bytes or headers."""
    return HeadTooLargeError(
        f"the request line and headers exceed {MAX_HEAD_BYTES} bytes or {MAX_HEADERS} headers"
    )


def not_http(reason: str) -> ServiceError:
    """The error of bytes that llhttp rejects, by its message."""
    if reason in _OTHER_VERSION:
        return HttpVersionError("this server speaks HTTP/1.1; send the request in that version")
    return BadRequestError(f"malformed HTTP/1.1 request: {reason}")
