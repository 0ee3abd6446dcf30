"""Parses HTTP requests with llhttp, checks them, and passes their headers and bodies to a
connection.

A head is a request line with its headers. llhttp accepts heads and trailers of any length. This
parser refuses a client that sends many bytes without completing a head, a chunk of a body, or a
request. llhttp also leaves some checks to servers: RFC 9112 sections 2.3 (versions), 3.2 (Host) and
6.1 (Transfer-Encoding), and RFC 9110 section 10.1.1 (Expect).
"""

from typing import Any, NamedTuple, Protocol

import httptools

from service.errors import BadRequestError, ServiceError
from service.http.http_errors import (
    ExpectationError,
    HeadTooLargeError,
    HttpVersionError,
    TargetTooLongError,
)

MAX_HEAD_BYTES = 64 * 1024
"""Limit on the bytes of a request line with its headers. Chunk extensions and trailers have the
same limit, which they may exceed by the bytes of one read."""

MAX_TARGET_BYTES = 8 * 1024
"""Limit on the bytes of a path with its query. nginx has the same limit. Decoding a `%41` takes 0.1
µs."""

MAX_HEADERS = 100
"""The most headers of a request. Browsers send 20 headers. Each header takes a microsecond, and 64
KiB could hold 16,000 headers."""

# The most bytes that are parsed at once if they may be something other than a body: 682 chunks.
_STEP = 2**12

# The most pieces of bodies that are passed on at once; a request counts as several pieces. One read
# can contain 40,000 chunks of a byte each, which take 50 ms.
_MOST_PIECES, _REQUEST = 500, 20

_OTHER_VERSION = ("Invalid HTTP version", "Pause on PRI/Upgrade")  # messages of llhttp
_TLS = b"\x16\x03"  # the first bytes from a client that uses TLS
_BLANK_LINE = b"\r\n\r\n"  # which ends a head


class Head(NamedTuple):
    """The request line and headers of a request that has passed all checks."""

    method: bytes
    target: bytes
    headers: list[tuple[bytes, bytes]]  # names in lower case
    named: dict[bytes, bytes]  # the last of each name
    version: str  # 1.0 or 1.1
    keep_alive: bool
    expects_continue: bool


class OnRequest(Protocol):
    """The interface of an object to which the parser passes the parts of each request. The parser
    calls the methods in this order."""

    def on_begin(self) -> None:
        """Begin a request. Called when the first byte of the request has arrived."""

    def on_head(self, head: Head) -> None:
        """Handle the request line and headers of a request."""

    def on_piece(self, piece: bytes) -> None:
        """Handle a part of a body."""

    def on_end(self) -> None:
        """End the request. Called when its body is complete."""


class Parser:
    """Parses the bytes of one connection."""

    def __init__(self, connection: OnRequest) -> None:
        self._connection = connection
        self._llhttp = self._new()
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._in_plain_body = False  # of a known length, not in chunks
        self._pending = 0  # bytes since a head, a piece of a body or a request was complete
        self._at_once = 0  # bytes that llhttp parses now
        self._pieces = 0  # of bodies since `parse` was called
        self._chunks: list[bytes] = []  # of a body, that are not passed on yet

    def parse(self, data: bytes | bytearray, size: int) -> bytes:
        """Parse the first `size` bytes of `data`. If they contain many requests or chunks of
        bodies, stop early, so that other clients are served first, and return the remaining bytes.
        Raises ServiceError; the parser must not be used after an error."""
        self._pieces = at = 0
        view = memoryview(data)
        # The end of a head ends the first step. Then a body in the same read is a single piece,
        # which need not be copied to be joined.
        blank = -1 if self._in_plain_body else data.find(_BLANK_LINE, 0, min(size, _STEP))
        step = _STEP if blank < 0 else blank + len(_BLANK_LINE)
        while at < size and self._pieces < _MOST_PIECES:
            # Extensions of chunks may be long, and arrive in one read with the bytes after them.
            piece = view[at : size if self._in_plain_body else min(at + step, size)]
            step = _STEP
            self._at_once = len(piece)
            self._pending += self._at_once
            try:
                self._llhttp.feed_data(piece)
                at += self._at_once
                if self._chunks:
                    self._pass_on()
            except httptools.HttpParserUpgrade as upgrade:
                view, at = memoryview(self._stay() + view[at + upgrade.args[0] : size]), 0
                size = len(view)
            except httptools.HttpParserCallbackError as error:
                raise error.__context__ or error from None
            except httptools.HttpParserError as error:
                raise _not_http(str(error), bytes(piece[: len(_TLS)])) from None
            if self._pending > MAX_HEAD_BYTES:
                raise _head_too_large()
        return bytes(view[at:size]) if at < size else b""

    def close(self) -> None:
        """Break the reference cycle with llhttp."""
        del self._llhttp

    # --- called by llhttp ------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Reset the parser's state for the next request."""
        self._target = b""
        self._headers = []
        self._in_plain_body = False
        self._connection.on_begin()

    def on_url(self, url: bytes) -> None:
        """Append a part of the request's target, the path and query."""
        self._target += url
        if len(self._target) > MAX_TARGET_BYTES:
            raise TargetTooLongError(
                f"the path and query have more than {MAX_TARGET_BYTES} bytes; shorten them"
            )

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header. After a chunked body, add a trailer."""
        headers = self._headers
        headers.append((name.lower(), value))
        if len(headers) > MAX_HEADERS:
            raise _head_too_large()

    def on_headers_complete(self) -> None:
        """Check the request line and headers, and pass them to the connection."""
        self._pieces += _REQUEST
        llhttp, headers = self._llhttp, self._headers
        method = llhttp.get_method()
        if llhttp.should_upgrade():
            if method == b"CONNECT":
                raise BadRequestError("CONNECT is for proxies, but this server is not a proxy")
            return  # it comes again, see `_stay`
        most, self._pending = self._pending + self._at_once, 0
        if most > MAX_HEAD_BYTES:  # otherwise the head cannot be too large
            size = len(self._target) + sum(len(name) + len(value) for name, value in headers)
            if size > MAX_HEAD_BYTES:
                raise _head_too_large()
        version, named = llhttp.get_http_version(), dict(headers)
        expects = _check(version, headers, named)
        self._headers = []  # for trailers, which are counted and dropped
        self._in_plain_body = b"transfer-encoding" not in named
        keep_alive = version != "1.0" and llhttp.should_keep_alive()
        self._connection.on_head(
            Head(method, self._target, headers, named, version, keep_alive, expects)
        )

    def on_body(self, body: bytes) -> None:
        """Pass a part of a body to the connection. Collect the data of chunks first."""
        self._pending = 0
        self._pieces += 1
        if self._in_plain_body:
            self._connection.on_piece(body)
        else:
            self._chunks.append(body)

    def on_message_complete(self) -> None:
        """Tell the connection that a request is complete."""
        if self._chunks:
            self._pass_on()
        self._in_plain_body = False  # what follows may be a head, and chunks
        if not self._llhttp.should_upgrade():
            self._pending = 0
            self._connection.on_end()

    # --- internals -------------------------------------------------------------------------------

    def _pass_on(self) -> None:
        """Pass the data of several chunks to the connection as one piece, because passing a piece
        on takes ten times as long as parsing a chunk of one byte."""
        piece = b"".join(self._chunks)
        self._chunks.clear()
        self._connection.on_piece(piece)

    def _new(self) -> Any:
        llhttp = httptools.HttpRequestParser(self)
        # Data may follow a request with `Connection: close`; it is dropped.
        llhttp.set_dangerous_leniencies(lenient_data_after_close=True)
        return llhttp

    def _stay(self) -> bytes:
        """Replace the llhttp parser after an Upgrade header, because llhttp would not read the
        body. Return the request line and the other headers, for the new parser to read again."""
        was, self._llhttp = self._llhttp, self._new()
        self._pending = 0  # the same bytes are counted again
        version = was.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (was.get_method(), self._target, version)]
        lines += [b"%b: %b" % header for header in self._headers if header[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])


def _check(version: str, headers: list[tuple[bytes, bytes]], named: dict[bytes, bytes]) -> bool:
    """Check the headers of a request, and return whether its client waits for 100 Continue."""
    if version not in ("1.1", "1.0"):
        raise _not_http(_OTHER_VERSION[0])
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
            "Transfer-Encoding must be `chunked` and needs HTTP/1.1; "
            "name the compression of a body in Content-Encoding"
        )
    expected = named.get(b"expect", b"").strip().lower()
    if not expected or version == "1.0":  # clients of HTTP/1.0 do not know Expect
        return False
    if expected != b"100-continue":
        raise ExpectationError("Expect must be `100-continue`; no other value is supported")
    return True


def _head_too_large() -> HeadTooLargeError:
    return HeadTooLargeError(
        f"the request line and headers exceed {MAX_HEAD_BYTES} bytes or {MAX_HEADERS} headers;"
        " send fewer or shorter headers"
    )


def _not_http(reason: str, piece: bytes = b"") -> ServiceError:
    """Return the error for bytes that llhttp rejected. `reason` is llhttp's message."""
    if piece.startswith(_TLS):
        return BadRequestError(
            "the client sent TLS, but the server speaks HTTP without TLS; use http://, or a TLS"
            " proxy (docs/tls.md)"
        )
    if reason in _OTHER_VERSION:
        return HttpVersionError("this server speaks HTTP/1.1; send the request in that version")
    return BadRequestError(f"malformed HTTP/1.1 request: {reason}")
