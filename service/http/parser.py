"""llhttp with bounds: heads come whole and checked, bodies in pieces; what is no HTTP is an error.

llhttp takes heads and trailers of any length. Here it is an error to send much without a head, a
piece of a body or an end coming of it.
"""

from typing import Any, NamedTuple, NoReturn, Protocol

import httptools

from service.errors import BadRequestError, ServiceError
from service.http import framing

Headers = list[tuple[bytes, bytes]]  # names in lower case


class Head(NamedTuple):
    """A request's head, checked."""

    method: bytes
    target: bytes
    headers: Headers
    named: dict[bytes, bytes]  # of several of one name the last
    version: str  # 1.0 or 1.1
    keep_alive: bool
    expects_continue: bool


class Listener(Protocol):
    """What is told of requests, in order. What `on_head` raises ends the parser."""

    def on_begin(self) -> None:
        """A head begins."""

    def on_head(self, head: Head) -> None:
        """A head is there."""

    def on_piece(self, piece: bytes) -> None:
        """Some of a body is there."""

    def on_end(self) -> None:
        """A request is there."""


class Parser:
    """Parses what one connection reads."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._llhttp = self._new()
        self._target = b""
        self._headers: Headers = []
        self._expects = False
        self._size = 0  # bytes of what is being read
        self._read = 0  # bytes of the reads that the head comes in
        self._pending = 0  # bytes since there was last something to show for them
        self._error: ServiceError | None = None  # that ended it

    def feed(self, data: bytes) -> None:
        """Parse what arrived; ServiceError, after which nothing may be fed."""
        self._size = size = len(data)
        self._pending += size
        self._read += size
        while data:
            try:
                self._llhttp.feed_data(data)
                break
            except httptools.HttpParserUpgrade as upgrade:
                data = self._stay() + data[upgrade.args[0] :]
            except httptools.HttpParserError as error:
                raise self._error or framing.not_http(str(error)) from None
        if self._pending > framing.MAX_HEAD_BYTES:
            raise framing.head_too_large()

    def close(self) -> None:
        """Let go of everything: llhttp holds this."""
        del self._llhttp

    # --- what llhttp calls -----------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A head begins."""
        self._target = b""
        self._headers = []
        self._expects = False
        self._read = self._size
        self._listener.on_begin()

    def on_url(self, url: bytes) -> None:
        """Some of a target is there."""
        self._target += url
        if len(self._target) > framing.MAX_TARGET_BYTES:
            self._stop(framing.target_too_long())

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header is there, of the head or behind a body in chunks."""
        name = name.lower()
        headers = self._headers
        headers.append((name, value))
        if len(headers) > framing.MAX_HEADERS:
            self._stop(framing.head_too_large())
        if name == b"expect" and value.lower() == b"100-continue":
            self._expects = True

    def on_headers_complete(self) -> None:
        """A head is there."""
        self._pending = 0
        llhttp, headers = self._llhttp, self._headers
        if llhttp.should_upgrade():
            if llhttp.get_method() == b"CONNECT":
                self._stop(BadRequestError("CONNECT is for proxies, and this is none"))
            return  # it comes again, by `_stay`
        if self._read > framing.MAX_HEAD_BYTES and self._is_too_large():
            self._stop(framing.head_too_large())
        version, named = llhttp.get_http_version(), dict(headers)
        wrong = framing.check_framing(version, headers, named)
        if wrong is not None:
            self._stop(wrong)
        self._headers = []  # for what follows a body in chunks, which is read and dropped
        keep_alive = version != "1.0" and llhttp.should_keep_alive()
        method = llhttp.get_method()
        head = Head(method, self._target, headers, named, version, keep_alive, self._expects)
        try:
            self._listener.on_head(head)
        except ServiceError as error:
            self._stop(error)

    def on_body(self, body: bytes) -> None:
        """Some of a body is there."""
        self._pending = 0
        self._listener.on_piece(body)

    def on_message_complete(self) -> None:
        """A request is there."""
        if self._llhttp.should_upgrade():
            return
        self._pending = 0
        self._listener.on_end()

    # --- within ----------------------------------------------------------------------------------

    def _stop(self, error: ServiceError) -> NoReturn:
        """End the parser, which raises an error of its own where one is raised in it."""
        self._error = error
        raise error

    def _is_too_large(self) -> bool:
        """Whether the head is; asked only where what was read with it is."""
        size = len(self._target) + sum(len(name) + len(value) for name, value in self._headers)
        return size > framing.MAX_HEAD_BYTES

    def _new(self) -> Any:
        llhttp = httptools.HttpRequestParser(self)
        # A request may follow one that says `Connection: close`; it is not answered.
        llhttp.set_dangerous_leniencies(lenient_data_after_close=True)
        return llhttp

    def _stay(self) -> bytes:
        """The head that asks for another protocol, for a new parser, and without that.

        A server need not change to another. The old parser takes no body after such a head.
        """
        was, self._llhttp = self._llhttp, self._new()
        return framing.without_upgrade(
            was.get_method(), self._target, was.get_http_version(), self._headers
        )
