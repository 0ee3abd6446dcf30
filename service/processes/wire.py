"""Carries messages between a worker and the main process as lines of JSON over a socket.

main     ["status", a row per model]                             first, and ten times per second
         ["reload"]                                              read files again
         ["leave"]                                               fail readiness, end connections
         ["drain"]                                               said again: do not wait
worker   ["known"]                                               answers each status
         ["listening"]
         ["left"]                                                last: all inside was answered
         ["submit", request, model, slots, kinds, urgency, client, inner]
main     ["done", request, batch size, queue_s, compute_s]       answers that
         ["failed", request, error, text, attributes]            or this does
worker   ["withdraw", request]                                   no answer is needed any more
main     ["withdrawn", request]                                  unless a batch has images of it
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

# Bytes of a line: a slot has at most seven digits, and a request 100,000 images. And how many the
# other end may leave unread: it is stuck.
_LONGEST, _MOST_UNREAD = 2**20, 2**23


class Wire:
    """Sends and receives messages at one end of the socket; used from one event loop."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._writer: asyncio.StreamWriter | None = None
        self._unsaid: list[str] = []

    async def messages(self, *first: Any) -> AsyncIterator[list[Any]]:
        """Send `first`, if not empty, and yield the other end's messages until it is gone."""
        connecting = asyncio.open_unix_connection(sock=self._end, limit=_LONGEST)
        reader, self._writer = await connecting
        try:
            if first:
                self._unsaid.insert(0, _line(first))
            self._flush()
            with suppress(ConnectionError):
                async for line in reader:
                    if line.endswith(b"\n"):  # the last one may have been cut
                        yield json.loads(line)
        finally:
            self._writer.close()

    def say(self, *message: Any) -> None:
        """Send a message together with all others of this iteration of the event loop.

        Before `messages` has connected, it is kept until then; after the other end is gone,
        dropped.
        """
        if not self._unsaid and self._writer is not None:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsaid.append(_line(message))

    async def end(self, *message: Any) -> None:
        """Send a last message, and close this end once everything is sent."""
        self.say(*message)
        self._flush()
        if self._writer is not None:
            self._writer.close()
            with suppress(ConnectionError):
                await self._writer.wait_closed()

    def _flush(self) -> None:
        data, self._unsaid = "".join(self._unsaid).encode(), []
        if self._writer is None or self._writer.is_closing():
            return
        self._writer.write(data)
        if self._writer.transport.get_write_buffer_size() > _MOST_UNREAD:
            self._writer.transport.abort()


def _line(message: Sequence[Any]) -> str:
    return json.dumps(message) + "\n"
