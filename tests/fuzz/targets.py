"""The fuzz targets: each takes bytes, and raises an error for behaviour that no client may
cause."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from models import PRESETS, OutputKind
from service.api.v1 import urgency_from
from service.api.v2.parse import parse_request
from service.edge.edge import Edge
from service.errors import ServiceError
from service.grpc.infer_request import infer_request, read_message
from service.hosting.model_info import ModelInfo
from service.http.body import form_boundary, images_of
from service.http.compression import inflate
from service.http.connection import Connection
from service.http.uvicorn_adapter import ConvoyConfig
from service.images.clip import prepare_clip
from service.images.prepare import ImageLimits, parse_image_file
from tests.fuzz import lock
from tests.support.models.slowness import slowness
from tests.support.service.deaf_transport import DeafTransport, ServerState, receive

CORPUS = Path(__file__).parent / "corpus"

# A parser may take 50 ms for each megabyte; below 20 ms what is measured is the machine.
_S_A_BYTE = 50e-9
_FREE_S = 0.02

LOCK = "lock"

INFO = ModelInfo(
    *("m", "1", (2, 3, 1), "scores", OutputKind.LOGITS, ()), tensor="x", tensor_shape=(1, 2, 3)
)

CLIPS = replace(PRESETS["digits"].at(8, 8), frames=4)

_TRIES = 3  # garbage of other inputs may be collected in one

_MOST_MESSAGE = 500  # characters; some of what was sent may be repeated in it
_MOST_IMAGES = 8
_MOST_INFLATED = 1_000_000


class TooSlowError(AssertionError):
    """Reports that an input took more time than its length allows."""


def _json(data: bytes) -> None:
    """Parse JSON with data; the first byte states whether a header gives the length of the JSON."""
    length = None if not data or data[0] < 128 else data[0] - 128
    parse_request(data[1:], length, INFO, _MOST_IMAGES)


def _form(data: bytes) -> None:
    """Parse a form; the Content-Type comes before the first line end, and then the body."""
    content_type, _, body = data.partition(b"\n")
    boundary = form_boundary({b"content-type": content_type})
    files = images_of(body, boundary, _MOST_IMAGES)
    assert 1 <= len(files) <= _MOST_IMAGES
    assert all(files)
    assert sum(map(len, files)) <= len(body)


def _header(data: bytes) -> None:
    file = parse_image_file(data)
    assert file.width > 0 < file.height
    assert 1 <= file.orientation <= 8
    # A TIFF gets a directory of at most 18 tags, of 12 bytes.
    assert sum(len(part) for part in file.parts) <= len(data) + 256


def _headers(data: bytes) -> None:
    """Read header lines, in the form in which the parser passes them on."""
    lines = (line.partition(b":") for line in data.split(b"\n"))
    headers = {name.lower(): value for name, _, value in lines}
    urgency_from(headers, 0.0)
    inflate(data, "gzip", _MOST_INFLATED)


def _protocol(data: bytes) -> None:
    """Let a connection read the bytes, in pieces of the length in the first byte."""
    asyncio.run(_connection(data))


async def _connection(data: bytes) -> None:
    config = ConvoyConfig(_echo, Edge(), log_config=None, lifespan="off", ws="none")
    config.load()
    state = ServerState()
    transport = DeafTransport()
    connection = Connection(config, cast(Any, state), {})
    connection.connection_made(transport)
    step = 1 + 8 * data[0] if data else 1
    for place in range(1, len(data), step):
        if transport.is_closing():
            break
        receive(connection, data[place : place + step])
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    # Whatever came, what is answered is HTTP, and each answer is whole.
    assert transport.written == b"" or transport.written.startswith(b"HTTP/1.1 ")
    connection.connection_lost(None)
    while state.tasks:
        await asyncio.sleep(0)
    assert not connection._answers.queue


async def _echo(_: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def _protobuf(data: bytes) -> None:
    message = read_message(data)
    asked = infer_request(message, INFO, _MOST_IMAGES)
    assert sum(map(len, asked.files)) <= len(data)


def _clip(data: bytes) -> None:
    clip = prepare_clip(data, CLIPS, ImageLimits(max_bytes=2**20, max_pixels=10_000))
    assert clip.cost.bytes > 0


TARGETS: Mapping[str, Callable[[bytes], None]] = {
    "json": _json,
    "form": _form,
    "header": _header,
    "clip": _clip,
    "headers": _headers,
    "protocol": _protocol,
    "protobuf": _protobuf,
    LOCK: lock.check,
}


def try_input(target: str, data: bytes) -> None:
    """Raise unless the input is accepted or refused in time."""
    if target == LOCK:  # where the time that counts is another
        TARGETS[target](data)
        return
    allowed = _FREE_S + len(data) * _S_A_BYTE
    taken = 0.0
    for _ in range(_TRIES):
        started = time.thread_time()
        try:
            TARGETS[target](data)
        except ServiceError as error:
            assert 400 <= error.code < 600  # noqa: PT017  refused
            assert len(str(error)) < _MOST_MESSAGE  # noqa: PT017
        taken = (time.thread_time() - started) / slowness()
        if taken <= allowed:
            return
    raise TooSlowError(f"{len(data)} bytes took {taken * 1e3:.0f} ms")
