"""Contains the functions that send an attacker's requests. Only some of them wait for answers.

Each function sends the same body again and again, on its own connections, until it is cancelled. It
counts requests by outcome. An outcome is the HTTP status under which the server counts the request,
or one of the names below.
"""

import asyncio
import os
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from benchmarks.serving.attacks.http2 import Connection, message_of
from service.api.v1 import CLASSIFY_PATH
from service.grpc.messages import INFERENCE

ADDRESS = "127.0.0.2"
"""The address of an attacker. On Linux all addresses of 127.0.0.0/8 are this machine."""

NO_ANSWER = "no answer"
UNANSWERED = "in progress at the end"
"""The attacker did not wait for the answer or did not read it. The server may have counted the
request."""
DONE = "done"
"""The answer is not from a model, so the server does not count it."""

_TIMEOUT_S = 120.0
_REFUSED_PAUSE_S = 0.1
_AGAIN_S = 5.0  # until connections that are held open are replaced
_STREAM_PAUSE_S = 0.05  # between a stream's messages
_SLOW_BYTES, _SLOW_S = 1024, 0.05
_PIPELINED = 100  # the most that may wait
_HALVES = 20  # each on a separate connection
_CALLS = 50  # at the same time on a connection
_CANCEL_PAUSE_S = 0.01
_SEGMENT_S, _RESET_S = 0.0005, 0.002
_RESET = struct.pack("ii", 1, 0)  # close at once, and discard unsent data

# The HTTP status under which a server counts each status of gRPC.
_STATUSES = {"0": "200", "3": "400", "4": "504", "8": "429", "13": "500", "14": "503"}


@dataclass(frozen=True)
class Place:
    """The server under attack: its HTTP and gRPC addresses, and an open HTTP session."""

    session: aiohttp.ClientSession  # with the attacker's address
    url: str
    grpc: str  # host and port


@asynccontextmanager
async def at(url: str, grpc: str) -> AsyncIterator[Place]:
    """Open an HTTP session with a server, and yield it with the server's addresses."""
    connector = aiohttp.TCPConnector(limit=0, local_addr=(ADDRESS, 0))
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        yield Place(session, url, grpc)


# --- by HTTP -------------------------------------------------------------------------------------


async def post(
    place: Place,
    body: bytes,
    seen: Counter[str],
    *,
    path: str,
    headers: Mapping[str, str] = {},
    scores: bool = True,
    pause_s: float = _REFUSED_PAUSE_S,
) -> None:
    """Post the body in a loop: again as soon as the answer has arrived, or `pause_s` after a
    refusal. `scores` says whether good answers are scores from a model."""
    while True:
        status = await _answered(place, "POST", path, body, seen, headers)
        if status == "200" and not scores:
            status = DONE
        seen[status] += 1
        if status != "200":
            await asyncio.sleep(pause_s)  # otherwise this program would keep the machine busy


async def poll(place: Place, body: bytes, seen: Counter[str]) -> None:
    """Request the list of models and the metrics in a loop."""
    while True:
        for method, path in (("POST", "/v2/repository/index"), ("GET", "/metrics")):
            status = await _answered(place, method, path, body, seen)
            seen[DONE if status == "200" else status] += 1


async def register(place: Place, _: bytes, seen: Counter[str]) -> None:
    """Register and unregister a region of shared memory in a loop."""
    name = f"convoy-attack-{os.getpid()}-{id(asyncio.current_task())}"
    file = Path("/dev/shm", name)
    file.write_bytes(bytes(4096))
    body = f'{{"key":"/{name}","byte_size":4096}}'.encode()
    try:
        while True:
            for verb in ("register", "unregister"):
                path = f"/v2/systemsharedmemory/region/{name}/{verb}"
                status = await _answered(place, "POST", path, body, seen)
                seen[DONE if status == "200" else status] += 1
    finally:
        file.unlink()


async def _answered(
    place: Place,
    method: str,
    path: str,
    body: bytes,
    seen: Counter[str],
    headers: Mapping[str, str] = {},
) -> str:
    """Send a request and return the status of the answer. If this coroutine is cancelled, count the
    request as unanswered."""
    try:
        async with place.session.request(
            method, place.url + path, data=body, headers=headers
        ) as response:
            await response.read()
            return str(response.status)
    except asyncio.CancelledError:
        seen[UNANSWERED] += 1
        raise
    except (aiohttp.ClientError, OSError):
        return NO_ANSWER


async def pipeline(place: Place, body: bytes, seen: Counter[str]) -> None:
    """Send as many pipelined requests as the server lets wait on a connection, and read no
    answer."""
    request = _head(place, len(body)) + body
    while True:
        seen[UNANSWERED] += _PIPELINED
        await _left(place, request * _PIPELINED)


async def half(place: Place, body: bytes, seen: Counter[str]) -> None:
    """Open several connections. On each, send half of a body and keep the connection open."""
    request = _head(place, len(body)) + body[: len(body) // 2]
    while True:
        seen[UNANSWERED] += _HALVES
        await asyncio.gather(*(_left(place, request) for _ in range(_HALVES)))


async def in_chunks(place: Place, body: bytes, seen: Counter[str]) -> None:
    """Send a body that is already encoded in chunks, and read the answer."""
    await _each_anew(place, _head(place, None) + body, seen)


async def anew(place: Place, body: bytes, seen: Counter[str], *, path: str) -> None:
    """Send each request on a new connection, and read the answer."""
    await _each_anew(place, _head(place, len(body), path) + body, seen)


async def reset(place: Place, body: bytes, seen: Counter[str]) -> None:
    """Send each request on a new connection, and reset the connection at once."""
    request = _head(place, len(body)) + body
    while True:
        seen[UNANSWERED] += 1
        try:
            async with _opened(place) as (_, writer):
                connection = writer.get_extra_info("socket")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                writer.write(request)
                await asyncio.sleep(_RESET_S)
        except OSError:
            await asyncio.sleep(_REFUSED_PAUSE_S)


async def leave(place: Place, body: bytes, seen: Counter[str]) -> None:
    """Send each request on a new connection, and close the connection at once with a FIN."""
    request = _head(place, len(body)) + body
    while True:
        seen[UNANSWERED] += 1
        try:
            async with _opened(place) as (_, writer):
                writer.write(request)
                writer.close()
                await writer.wait_closed()
        except OSError:
            await asyncio.sleep(_REFUSED_PAUSE_S)


async def in_segments(place: Place, piece: bytes, seen: Counter[str]) -> None:
    """Send a body that does not end. Each TCP segment has only a few bytes."""
    while True:
        seen[UNANSWERED] += 1
        try:
            async with _opened(place) as (_, writer):
                writer.write(_head(place, None))
                while not writer.is_closing():
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(_SEGMENT_S)
        except OSError:
            await asyncio.sleep(_REFUSED_PAUSE_S)


async def _each_anew(place: Place, request: bytes, seen: Counter[str]) -> None:
    while True:
        try:
            async with asyncio.timeout(_TIMEOUT_S), _opened(place) as (reader, writer):
                writer.write(request)
                line = await reader.readline()
            seen[line.split()[1].decode()] += 1
        except asyncio.CancelledError:
            seen[UNANSWERED] += 1
            raise
        except (OSError, IndexError):  # OSError includes TimeoutError
            seen[NO_ANSWER] += 1
            await asyncio.sleep(_REFUSED_PAUSE_S)


def _head(place: Place, length: int | None, path: str = CLASSIFY_PATH) -> bytes:
    """Return the request line and the headers of a request. If `length` is None, the body is sent
    in chunks."""
    address = urlsplit(place.url).netloc
    first = f"POST {path} HTTP/1.1\r\nHost: {address}"
    of_body = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return f"{first}\r\n{of_body}\r\n\r\n".encode()


@asynccontextmanager
async def _opened(place: Place) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    parts = urlsplit(place.url)
    reader, writer = await asyncio.open_connection(
        parts.hostname, parts.port, local_addr=(ADDRESS, 0), limit=1024
    )
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def _left(place: Place, data: bytes) -> None:
    """Send `data` on a new connection, keep the connection open for a while without reading, and
    close it."""
    try:
        async with _opened(place) as (_, writer):
            writer.write(data)
            await asyncio.sleep(_AGAIN_S)
    except OSError:
        await asyncio.sleep(_REFUSED_PAUSE_S)


# --- by gRPC -------------------------------------------------------------------------------------

_INFER = f"/{INFERENCE}/ModelInfer"
_LIVE = f"/{INFERENCE}/ServerLive"

_Talk = Callable[[Connection, bytes, Counter[str]], Awaitable[None]]
_Attack = Callable[[Place, bytes, Counter[str]], Awaitable[None]]


def _again(*, reads: bool = True, counts: bool = False) -> Callable[[_Talk], _Attack]:
    """Decorate a function that sends requests on one connection. The decorated function calls it in
    a loop, each time with a new connection. If `reads` is False, the server can send at most one
    flow-control window of each answer. If `counts` is True, a lost connection counts as a request
    without an answer."""

    def attack_by(talk: _Talk) -> _Attack:
        @wraps(talk)
        async def attack(place: Place, body: bytes, seen: Counter[str]) -> None:
            message = message_of(body)
            while True:
                try:
                    async with Connection(place.grpc, ADDRESS, reads=reads) as open_:
                        await talk(open_, message, seen)
                except OSError:  # this includes TimeoutError
                    if counts:
                        seen[NO_ANSWER] += 1
                await asyncio.sleep(_REFUSED_PAUSE_S)

        return attack

    return attack_by


async def _status(open_: Connection, method: str, message: bytes, seen: Counter[str]) -> str:
    """Call a gRPC method and return the status. If this coroutine is cancelled, count the call as
    unanswered."""
    stream = open_.begin(method)
    try:
        await open_.send(stream, message, ends=True)
        return await open_.status(stream)
    except asyncio.CancelledError:
        seen[UNANSWERED] += 1
        raise


@_again(counts=True)
async def ask(open_: Connection, message: bytes, seen: Counter[str]) -> None:
    """Call ServerLive in a loop."""
    while True:
        status = await _status(open_, _LIVE, message, seen)
        seen[DONE if status == "0" else f"gRPC {status}"] += 1


@_again(counts=True)
async def call(open_: Connection, message: bytes, seen: Counter[str]) -> None:
    """Call ModelInfer in a loop. Read each answer before the next call."""
    while True:
        status = await _status(open_, _INFER, message, seen)
        seen[_STATUSES.get(status, f"gRPC {status}")] += 1
        if status != "0":
            await asyncio.sleep(_REFUSED_PAUSE_S)


@_again(reads=False)
async def leave_unread(open_: Connection, message: bytes, seen: Counter[str]) -> None:
    """Send ModelInfer messages on a stream, and read no answers."""
    stream = open_.begin(f"/{INFERENCE}/ModelStreamInfer")
    async with asyncio.timeout(_AGAIN_S):
        while True:
            seen[UNANSWERED] += 1
            await open_.send(stream, message)
            await asyncio.sleep(_STREAM_PAUSE_S)


@_again(reads=False)
async def read_slowly(open_: Connection, message: bytes, seen: Counter[str]) -> None:
    """Request a long answer, and read it a few bytes at a time, with pauses."""
    stream = open_.begin(_INFER)
    seen[UNANSWERED] += 1
    await open_.send(stream, message, ends=True)
    while not open_.is_lost:
        open_.read(stream, _SLOW_BYTES)
        await asyncio.sleep(_SLOW_S)


@_again()
async def cancel(open_: Connection, message: bytes, seen: Counter[str]) -> None:
    """Cancel each call as soon as its message is sent."""
    while True:
        seen[UNANSWERED] += 1
        stream = open_.begin(_INFER)
        await open_.send(stream, message, ends=True)
        open_.cancel(stream)
        await asyncio.sleep(_CANCEL_PAUSE_S)


@_again()
async def say_nothing(open_: Connection, _: bytes, seen: Counter[str]) -> None:
    """Begin many calls without sending their messages."""
    for _number in range(_CALLS):
        open_.begin(_INFER)
        seen[UNANSWERED] += 1
    await asyncio.sleep(_AGAIN_S)
