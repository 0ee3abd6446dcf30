"""A connection without a client: what is written goes nowhere."""

import asyncio
from typing import Any


class ServerState:
    """What the connections of a uvicorn server share."""

    def __init__(self) -> None:
        self.connections: set[Any] = set()
        self.tasks: set[Any] = set()
        self.default_headers: list[tuple[bytes, bytes]] = []
        self.total_requests = 0


class DeafTransport(asyncio.Transport):
    """Takes everything, and remembers it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self._closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Remember it."""
        self.written += data

    def write_eof(self) -> None:
        """Discarded."""

    def close(self) -> None:
        """From now on it is closing."""
        self._closing = True

    abort = close

    def is_closing(self) -> bool:
        """Whether it was closed."""
        return self._closing

    def get_write_buffer_size(self) -> int:
        """Nothing waits."""
        return 0

    def pause_reading(self) -> None:
        """Nothing is read."""

    def resume_reading(self) -> None:
        """Nothing is read."""
