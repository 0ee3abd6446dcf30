"""HTTP/1.1 as uvicorn reads it, with a bound on heads, and its own refusals in the one error shape.

uvicorn's parser takes heads and trailers of any length, and answers what is no HTTP in plain text.
"""

import json
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024
"""Of a request line with its headers, of a chunk's extensions, of trailers; some reads more."""


class BoundedHttp(HttpToolsProtocol):
    """A connection that is closed when it sends much without a head or a body coming of it."""

    _pending = 0  # bytes since the parser last had something to show for them

    def data_received(self, data: bytes) -> None:
        """Parse what arrived; 431 where no head comes of it, closed where no body does."""
        self._pending += len(data)
        super().data_received(data)
        if self._pending <= MAX_HEAD_BYTES or self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.close()  # trailers: the request's own answer may be on its way
        else:
            self._refuse(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"the request line and headers exceed {MAX_HEAD_BYTES} bytes",
            )

    def on_headers_complete(self) -> None:
        """A head is there."""
        self._pending = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Some of a body is there."""
        self._pending = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request is there."""
        self._pending = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """What uvicorn calls for what it cannot parse."""
        self._refuse(HTTPStatus.BAD_REQUEST, f"{msg} Send HTTP/1.1")

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        body = json.dumps({"error": message}).encode()
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\n"
            "content-type: application/json\r\n"
            f"content-length: {len(body)}\r\n"
            "connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
