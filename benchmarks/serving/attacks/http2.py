"""Implements the part of HTTP/2 that is needed to send hostile gRPC calls.

    HEADERS ── DATA with the message ── ... ── RST_STREAM, or nothing more
                                         └─ HEADERS with the status, if the client waits for it

grpcio's client cannot send these calls, because it cannot choose its source address, and because it
receives answers before the application reads them. It would also compress each message again, which
takes more processor time than the server needs for the message. Sources: RFC 9113 and RFC 7541, and
gRPC's protocol over HTTP/2.
"""

import asyncio
import struct
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import Self

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_CANCEL = 8
_WINDOW_SIZE = 65_535  # of a stream and of a connection, unless the peer sets another
_INITIAL_WINDOW_SETTING = 4
_FRAME = 16_384

# The server's header table has size 0. So each status is written as a literal and can be found.
_NO_TABLE = struct.pack("!HI", 1, 0)
_STATUS = b"grpc-status"

_LOST = "the connection was lost"


def message_of(data: bytes, *, compressed: bool = True) -> bytes:
    """Return `data` with gRPC's message header. If the message is compressed, `data` is already
    gzip."""
    return struct.pack("!?I", compressed, len(data)) + data


def _headers(path: str, authority: str, more: Sequence[tuple[str, str]]) -> bytes:
    fields = [
        *((":method", "POST"), (":scheme", "http"), (":path", path), (":authority", authority)),
        *(("content-type", "application/grpc"), ("te", "trailers"), ("grpc-encoding", "gzip")),
        *more,
    ]
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in fields)


def _text(value: str) -> bytes:
    """Encode text as an HPACK string without Huffman coding."""
    data, most = value.encode(), 127
    if len(data) < most:
        return bytes([len(data)]) + data
    return bytes([most]) + _rest(len(data) - most) + data


def _rest(number: int) -> bytes:
    parts = bytearray()
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack("!I", len(payload))[1:] + struct.pack("!BBI", kind, flags, stream) + payload


class Connection:
    """A connection to a gRPC server, as a context manager."""

    def __init__(
        self, address: str, source: str, *, reads: bool = True, window: int = _WINDOW_SIZE
    ) -> None:
        """Prepare a connection to `address` from the local address `source`. If `reads` is False,
        the server may send at most `window` bytes on each stream."""
        host, _, port = address.rpartition(":")
        self._address, self._authority, self._source = (host, int(port)), address, source
        self._reads, self._own_window = reads, window
        self._next = 1
        self._initial = _WINDOW_SIZE
        self._window = _WINDOW_SIZE
        self._windows: dict[int, int] = {}
        self._more = asyncio.Event()
        self._ended: defaultdict[int, asyncio.Future[str]]
        self.received: defaultdict[int, int] = defaultdict(int)
        self.is_lost = False

    async def __aenter__(self) -> Self:
        self._ended = defaultdict(asyncio.get_running_loop().create_future)
        self._reader, self._writer = await asyncio.open_connection(
            *self._address, local_addr=(self._source, 0)
        )
        window = struct.pack("!HI", _INITIAL_WINDOW_SETTING, self._own_window)
        self._write(_PREFACE + _frame(_SETTINGS, 0, 0, _NO_TABLE + window))
        self._task = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        self._writer.transport.abort()
        await asyncio.wait([self._task])

    def begin(self, path: str, more: Sequence[tuple[str, str]] = ()) -> int:
        """Begin a gRPC call by sending its headers. Return the ID of its stream."""
        stream, self._next = self._next, self._next + 2
        self._windows[stream] = self._initial
        headers = _headers(path, self._authority, more)
        self._write(_frame(_HEADERS, _END_HEADERS, stream, headers))
        return stream

    async def send(self, stream: int, message: bytes, *, ends: bool = False) -> None:
        """Send a message once it fits into the server's flow-control window. Raises OSError if the
        connection is lost."""
        for at in range(0, max(1, len(message)), _FRAME):
            piece = message[at : at + _FRAME]
            while min(self._window, self._windows[stream]) < len(piece):
                self._check()
                if self._ended[stream].done():
                    return
                self._more.clear()
                await self._more.wait()
            self._window -= len(piece)
            self._windows[stream] -= len(piece)
            last = ends and at + _FRAME >= len(message)
            self._write(_frame(_DATA, _END_STREAM if last else 0, stream, piece))
        self._check()
        await self._writer.drain()

    def cancel(self, stream: int) -> None:
        """Reset a stream."""
        self._windows.pop(stream, None)
        self._write(_frame(_RESET, 0, stream, struct.pack("!I", _CANCEL)))

    def read(self, stream: int, count: int) -> None:
        """Allow the server to send `count` more bytes on a stream."""
        size = struct.pack("!I", count)
        self._write(_frame(_WINDOW, 0, 0, size) + _frame(_WINDOW, 0, stream, size))

    async def status(self, stream: int) -> str:
        """Wait until a call has ended, and return its gRPC status. Raises OSError if the connection
        is lost."""
        self._check()
        status = await self._ended[stream]
        del self._ended[stream]
        self._windows.pop(stream, None)
        self.received.pop(stream, None)
        return status

    def _write(self, data: bytes) -> None:
        self._writer.write(data)

    def _check(self) -> None:
        if self.is_lost:
            raise ConnectionResetError(_LOST)

    async def _read(self) -> None:
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                while True:
                    head = await self._reader.readexactly(9)
                    length = int.from_bytes(head[:3])
                    kind, flags, stream = struct.unpack("!BBI", head[3:])
                    self._take(kind, flags, stream, await self._reader.readexactly(length))
        finally:
            self.is_lost = True
            self._more.set()
            for ended in self._ended.values():
                if not ended.done():
                    ended.set_exception(ConnectionResetError(_LOST))
                    ended.exception()  # there may be no caller that waits for it

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _DATA:
            self.received[stream] += len(payload)
            if self._reads and payload:
                self.read(stream, len(payload))
        elif kind == _WINDOW:
            (size,) = struct.unpack("!I", payload)
            if stream:
                if stream in self._windows:
                    self._windows[stream] += size
            else:
                self._window += size
            self._more.set()
        elif kind == _SETTINGS and not flags & _ACK:
            self._set(payload)
            self._write(_frame(_SETTINGS, _ACK, 0))
        elif kind == _PING and not flags & _ACK:
            self._write(_frame(_PING, _ACK, 0, payload))
        elif kind in (_HEADERS, _RESET) and (kind == _RESET or flags & _END_STREAM):
            self._end(stream, _status_in(payload) if kind == _HEADERS else "reset")

    def _set(self, payload: bytes) -> None:
        for name, value in struct.iter_unpack("!HI", payload):
            if name == _INITIAL_WINDOW_SETTING:
                for stream in self._windows:
                    self._windows[stream] += value - self._initial
                self._initial = value
        self._more.set()

    def _end(self, stream: int, status: str) -> None:
        if not self._ended[stream].done():
            self._ended[stream].set_result(status)
        self._more.set()


def _status_in(trailers: bytes) -> str:
    """Return the gRPC status in a block of trailers. The block must use neither HPACK's tables nor
    Huffman coding."""
    _, found, rest = trailers.partition(_STATUS)
    if not found:
        raise ValueError(f"the trailers {trailers!r} must contain the plain text grpc-status")
    return rest[1 : 1 + rest[0]].decode("ascii")
