"""Receives gRPC messages. Long messages delay neither the event loop nor other clients.

grpcio collects the pieces of a message as they arrive. When the reading coroutine resumes, grpcio
copies the pieces one by one while it holds the interpreter's lock, and then joins them:

    read ── wait until complete ─┬─ few bytes ── copied here
                                 └─ many ── the client's turn ── memory ── copied in a thread

A copy of 20 MB needs 5,000 new memory pages from the system. So these are requested first, without
the lock. The client's frames determine the length of the pieces, and many short pieces take longer
to copy. So after a slow copy, the client's next long message waits for a multiple of the copying
time.
"""

import asyncio
import ctypes
import socket
import struct
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import grpc

from service.errors import PayloadTooLargeError

T = TypeVar("T")

# A message is copied at once if its connection received at most this many bytes.
_FEW = 2**17

# A copy that takes longer than _LONG_S is followed by a pause of _PAUSES times its duration.
_LONG_S, _PAUSES = 0.005, 4

# The bytes that a message is assumed to have if their number is unknown.
_MAYBE = 2**24

# Seconds between two checks of how many bytes of a message have arrived, if it must be short.
_LOOK_S = 0.05

# The socket option for facts about a TCP connection, and the offset of the received bytes in them.
_TCP_INFO, _RECEIVED = 11, 128

_libc: Any = ctypes.CDLL(None)  # calls through it release the interpreter's lock
_libc.malloc.argtypes, _libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
_libc.free.argtypes = [ctypes.c_void_p]
_libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]


def bytes_received(connection: socket.socket) -> int | None:
    """Return how many bytes a TCP connection has received, or None if that is unknown."""
    if sys.platform != "linux":
        return None
    size = _RECEIVED + 8
    told = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, size)
    return int(struct.unpack_from("Q", told, _RECEIVED)[0]) if len(told) >= size else None


@dataclass(slots=True)
class _Turn:
    """Makes the long messages of one client wait for each other, so that only one of them is copied
    at a time."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0
    free_at: float = 0.0  # loop time


class Receiver:
    """Receives the messages of one port. Not thread-safe."""

    def __init__(self, received: Callable[[Any], int | None], max_bytes: int) -> None:
        """`received` returns how many bytes the connection of a request has received, or None if
        that is unknown. `max_bytes` is the maximum length of a message."""
        self._received, self._max_bytes = received, max_bytes
        self._turns: dict[str, _Turn] = {}
        self._thread = ThreadPoolExecutor(1, "receive")
        self._thread.submit(int)  # starts the thread, while the system allows one more
        self._taken = 0  # bytes of long messages since `taken`

    def taken(self) -> int:
        """Estimate the total bytes of the long messages received since the last call of this
        method."""
        taken, self._taken = self._taken, 0
        return taken

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False)

    async def read(self, context: Any, client: str, most: int | None = None) -> Any:
        """Return the next message of a request, or grpcio's EOF.

        Raises PayloadTooLargeError if more than `most` bytes have arrived and the message is not
        complete.
        """
        before = self._received(context)
        reading = context.read()
        try:
            whole = reading.send(None)
        except StopIteration as read:
            return read.value
        whole._asyncio_future_blocking = False  # as a task does that waits for it
        await self._arrived(reading, whole, partial(self._count, context, before), most)
        count = self._count(context, before)
        if count is not None and count <= _FEW:
            return _copied(reading)
        # The connection may also have received other messages, and frames that HTTP/2 ignores.
        count = None if count is None else min(count, self._max_bytes)
        self._taken += _MAYBE if count is None else count
        return await _finished(self._copy(reading, client, count or 0))

    def _count(self, context: Any, before: int | None) -> int | None:
        """Return how many bytes have arrived in addition to the `before` bytes that had arrived
        earlier. If `before` is None, return all bytes."""
        now = self._received(context)
        return None if now is None else now - (before or 0)

    async def _arrived(
        self,
        reading: Coroutine[Any, Any, Any],
        whole: "asyncio.Future[None]",
        count: Callable[[], int | None],
        most: int | None,
    ) -> None:
        """Wait until a message is complete or its request has ended."""
        try:
            if most is None:
                with suppress(grpc.aio.InternalError):  # of which `reading` knows
                    await whole
                return
            while not whole.done():
                await asyncio.wait([whole], timeout=_LOOK_S)
                if not whole.done() and (count() or 0) > most + _FEW:
                    raise PayloadTooLargeError(
                        f"the message has more than the {most} bytes that this method allows"
                    )
        except BaseException:
            self._taken += _MAYBE
            whole.cancel()
            reading.close()
            raise

    async def _copy(self, reading: Coroutine[Any, Any, Any], client: str, count: int) -> Any:
        loop = asyncio.get_running_loop()
        async with self._turn(client) as turn:
            await asyncio.sleep(max(0.0, turn.free_at - loop.time()))
            message, took_s = await loop.run_in_executor(self._thread, _timed, reading, count)
            if took_s > _LONG_S:
                turn.free_at = loop.time() + _PAUSES * took_s
            return message

    @asynccontextmanager
    async def _turn(self, client: str) -> AsyncIterator[_Turn]:
        now = asyncio.get_running_loop().time()
        for name, turn in tuple(self._turns.items()):
            if not turn.waiting and turn.free_at <= now:
                del self._turns[name]
        mine = self._turns.setdefault(client, _Turn())
        mine.waiting += 1
        try:
            async with mine.lock:
                yield mine
        finally:
            mine.waiting -= 1


async def _finished(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, and return its result. If the caller is cancelled, CancelledError
    is raised only after the end, because grpcio would keep the message of an unfinished coroutine
    in memory."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
    return task.result()


def _copied(reading: Coroutine[Any, Any, T]) -> T:
    """Let a coroutine copy its message, which has arrived completely, and return the message. The
    coroutine need not wait again."""
    try:
        reading.send(None)
    except StopIteration as read:
        result: T = read.value
        return result
    raise RuntimeError("grpcio awaits something other than the message")


def _timed(reading: Coroutine[Any, Any, T], count: int) -> tuple[T, float]:
    """Return the message, and how long this thread took to copy it."""
    _touch(count)
    started = time.thread_time()
    message = _copied(reading)
    return message, time.thread_time() - started


def _touch(count: int) -> None:
    """Get `count` bytes of memory from the system, without the interpreter's lock. The process's
    next allocation of this size then does not wait for the system.

    The function allocates and frees two blocks. When the first block is freed, glibc returns its
    memory to the system, but keeps blocks of this size from then on. So the memory of the second
    block stays in the process.
    """
    _libc.free(_libc.malloc(count))
    block = _libc.malloc(count)
    if block:
        _libc.memset(block, 0, count)
        _libc.free(block)
