"""Contains two fast HTTP/1.1 clients that send the same request repeatedly. They understand only
answers with a Content-Length on a connection that stays open."""

import asyncio
import socket
from collections.abc import Callable
from time import perf_counter, perf_counter_ns
from typing import cast
from urllib.parse import urlsplit

import uvloop

Address = tuple[str, int]


class BadAnswerError(Exception):
    """Raised when an answer is missing or its status is not 200."""


class ClosedError(BadAnswerError):
    """Raised when the server closes the connection instead of answering."""

    def __init__(self) -> None:
        super().__init__("the server closed the connection")


def post_request(path: str, body: bytes, content_type: str, *headers: str) -> bytes:
    """Return the bytes of a POST request that keeps its connection open. `headers` are further
    header lines."""
    lines = (
        f"POST {path} HTTP/1.1",
        "Host: 127.0.0.1",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
        *headers,
    )
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode() + body


def get_request(path: str) -> bytes:
    """Return the bytes of a GET request that keeps its connection open."""
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()


def answer_size(received: bytes | bytearray) -> int | None:
    """Return the size in bytes of the first answer in `data`, with its body. Return None while its
    headers are incomplete."""
    header, blank_line, _ = received.partition(b"\r\n\r\n")
    if not blank_line:
        return None
    if not header.startswith(b"HTTP/1.1 200 "):
        raise BadAnswerError(bytes(received).decode("latin-1"))
    for line in header.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return len(header) + len(blank_line) + int(line.partition(b":")[2])
    raise BadAnswerError(f"the answer must have a Content-Length, got {bytes(header)!r}")


class Connection:
    """A blocking connection that is kept alive."""

    def __init__(self, address: Address, timeout_s: float = 10.0) -> None:
        self._socket = socket.create_connection(address, timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def exchange(self, request: bytes) -> bytes:
        """Send one request and return its whole answer. Raises BadAnswerError unless the status is
        200."""
        self._socket.sendall(request)
        received = b""
        size: int | None = None
        while size is None or len(received) < size:
            chunk = self._socket.recv(65536)
            if not chunk:
                raise ClosedError
            received += chunk
            size = answer_size(received) if size is None else size
        return received

    def exchange_ns(self, request: bytes) -> int:
        """Send one request. Return the nanoseconds until the last byte of the answer has
        arrived."""
        begin = perf_counter_ns()
        self.exchange(request)
        return perf_counter_ns() - begin

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def address_of(url: str) -> Address:
    """Return the host and port of a URL."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 80


def free_port() -> int:
    """Return a TCP port on which no program listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def answers(address: Address, request: bytes) -> bool:
    """Return whether a server answers a request with status 200."""
    try:
        connection = Connection(address)
    except OSError:
        return False
    try:
        connection.exchange(request)
    except (OSError, BadAnswerError):
        return False
    else:
        return True
    finally:
        connection.close()


class _ClosedLoop(asyncio.Protocol):
    """Sends the next request as soon as the previous request is answered, until `deadline`."""

    def __init__(self, request: bytes, deadline: float, answered: Callable[[float], None]) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._deadline = deadline
        self._answered = answered
        self._received = bytearray()
        self._sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._send()

    def data_received(self, data: bytes) -> None:
        self._received += data
        try:
            size = answer_size(self._received)
        except BadAnswerError as error:
            self.ended.set_exception(error)
            self._transport.abort()
            return
        if size is None or len(self._received) < size:
            return
        self._received.clear()
        moment = perf_counter()
        self._answered(moment - self._sent)
        if moment < self._deadline:
            self._send()
        else:
            self.ended.set_result(None)
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_exception(exc or ClosedError())

    def _send(self) -> None:
        self._sent = perf_counter()
        self._transport.write(self._request)


def closed_loop(address: Address, request: bytes, connections: int, seconds: float) -> list[float]:
    """Send requests on `connections` connections for about `seconds`. Return the latency of each
    request, in seconds."""
    took: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        deadline = perf_counter() + seconds
        ends = []
        for _ in range(connections):
            _, client = await loop.create_connection(
                lambda: _ClosedLoop(request, deadline, took.append), *address
            )
            ends.append(client.ended)
        await asyncio.wait_for(asyncio.gather(*ends), seconds + 10)

    uvloop.run(main())
    return took
