"""Creates a connection that has no client. Everything that is written to it is discarded."""

import asyncio
from typing import Any

from service.http.connection import Connection


class ServerState:
    """Holds the state that all connections of a uvicorn server share."""

    def __init__(self) -> None:
        self.connections: set[Any] = set()
        self.tasks: set[Any] = set()
        self.default_headers: list[tuple[bytes, bytes]] = []
        self.total_requests = 0


class DeafTransport(asyncio.Transport):
    """Accepts and records everything that is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self._closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Record the data."""
        self.written += data

    def write_eof(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Mark the transport as closing."""
        self._closing = True

    abort = close

    def is_closing(self) -> bool:
        """Return whether the transport was closed."""
        return self._closing

    def get_write_buffer_size(self) -> int:
        """Return 0, because nothing waits."""
        return 0

    def pause_reading(self) -> None:
        """Do nothing, because nothing is read."""

    def resume_reading(self) -> None:
        """Do nothing, because nothing is read."""


def receive(connection: Connection, data: bytes) -> None:
    """Let a connection receive these bytes, in as few reads as its buffer allows."""
    buffer = connection.get_buffer(-1)
    for at in range(0, len(data), len(buffer)):
        read = data[at : at + len(buffer)]
        buffer[: len(read)] = read
        connection.buffer_updated(len(read))
