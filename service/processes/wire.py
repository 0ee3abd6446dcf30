"""What a worker and the main process say to each other: lines of JSON, over a socket.

    worker   ["listening"]
             ["submit", request, model, slots, deadline, priority]   one "done" or "failed" follows
             ["withdraw", request]                                   unless this comes first
    main     ["done", request, batch size, queue_s, compute_s]
             ["failed", request, error, text, attributes]
             ["drain"]                                               said again: do not wait

What crosses its withdrawal on the way is of a request that the worker no longer knows.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

from service.errors import ServiceError

# A slot has at most seven characters, and a request may have 100,000 images.
_LONGEST_LINE = 2**20


class Wire:
    """One end of the socket; used from one event loop."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._writer: asyncio.StreamWriter | None = None

    async def messages(self, *first: Any) -> AsyncIterator[list[Any]]:
        """All that the other end says, until it is gone; `first` is said to it first."""
        reader, self._writer = await asyncio.open_unix_connection(
            sock=self._end, limit=_LONGEST_LINE
        )
        try:
            if first:
                self.say(*first)
            with suppress(ConnectionError):
                async for line in reader:
                    if line.endswith(b"\n"):  # the last one may have been cut
                        yield json.loads(line)
        finally:
            self._writer.close()

    def say(self, *message: Any) -> None:
        """Say it, if the other end is there."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(json.dumps(message).encode() + b"\n")


def error_of(kind: str, text: str, attributes: dict[str, Any]) -> ServiceError:
    """The error that was told as (its class's name, its text, its attributes)."""
    found = _KINDS[kind]
    error = found.__new__(found, text)  # not called: classes take other arguments than the text
    vars(error).update(attributes)
    return error


def _tree(kind: type[ServiceError]) -> Iterator[type[ServiceError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _tree(each)


_KINDS = {kind.__name__: kind for kind in _tree(ServiceError)}
