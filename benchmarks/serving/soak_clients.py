"""Simulates clients that disconnect early, send invalid bytes or send large images."""

import asyncio
import io
from collections.abc import Awaitable, Mapping, Sequence
from enum import Enum, unique
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

from loadtest.client import TIMED_OUT, reason
from loadtest.images import ImageFile
from loadtest.journal import Journal, Outcome
from service.api.v1 import CLASSIFY_PATH

LEFT = "left"
NOISE_REFUSED = "noise refused"

_TIMEOUT_S = 10.0

# The mean time after which a waiting client leaves. An answer takes about as long.
_PATIENCE_S = 0.003

_NOISE = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),  # a TLS hello
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/classify HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
)


# The side, the format and the options of saving: a photograph from a phone, and two images that
# take long to decode.
_LARGE: Sequence[tuple[int, str, Mapping[str, object]]] = (
    (3500, "JPEG", {}),
    (3000, "JPEG", {"progressive": True}),
    (3000, "WebP", {"method": 0}),
)


@unique
class Moment(Enum):
    """The moment at which a client closes its connection."""

    HEAD = "in the middle of the head"
    BODY = "in the middle of the body"
    WAITING = "while it waits"
    ANSWER = "in the middle of the answer"


class Rude:
    """Sends incomplete or invalid requests, each on a new connection."""

    def __init__(self, url: str, images: Sequence[ImageFile], seed: int) -> None:
        parts = urlsplit(url)
        self._address = parts.hostname, parts.port
        self._random = np.random.default_rng(seed)
        self._requests = [_request(image.data, image.media_type) for image in images]

    async def leave(self, number: int) -> Outcome:
        """Send an image, and close the connection at a random moment."""
        head, body = self._requests[number % len(self._requests)]
        moment = list(Moment)[int(self._random.integers(len(Moment)))]
        reader, writer = await asyncio.open_connection(*self._address)
        try:
            if moment is Moment.HEAD:
                writer.write(head[: self._some(head)])
            elif moment is Moment.BODY:
                writer.write(head + body[: self._some(body)])
            else:
                writer.write(head + body)
            await writer.drain()
            if moment is Moment.ANSWER:
                await reader.read(int(self._random.integers(1, 200)))
            else:
                await asyncio.sleep(self._random.exponential(_PATIENCE_S))
        finally:
            writer.transport.abort()
        return Outcome(LEFT)

    async def disturb(self, _: int) -> Outcome:
        """Send a damaged or truncated image, or bytes that are not HTTP."""
        random = self._random
        if random.random() < 0.5:
            noise = _NOISE[int(random.integers(len(_NOISE)))]
        else:
            body = self._requests[int(random.integers(len(self._requests)))][1]
            length = int(random.integers(1, 60))  # too short for any image
            noise = b"".join(_request(body[:length] + random.bytes(100), "image/jpeg"))
        reader, writer = await asyncio.open_connection(*self._address)
        try:
            writer.write(noise)
            async with asyncio.timeout(_TIMEOUT_S):
                answer = await reader.read()
        finally:
            writer.transport.abort()
        line = answer.partition(b"\r\n")[0]
        refused = line.startswith((b"HTTP/1.1 4", b"HTTP/1.1 505"))
        if refused and answer.lower().count(b"\r\ncontent-length:") == 1:
            return Outcome(NOISE_REFUSED)
        return Outcome(f"noise answered {line.decode('latin-1')!r}")

    def _some(self, data: bytes) -> int:
        return int(self._random.integers(1, len(data)))


def enlarged(images: Sequence[ImageFile]) -> list[ImageFile]:
    """Return the first images, enlarged so much that the server decodes them in its process for
    large images."""
    large = []
    for image, (side, kind, options) in zip(images, _LARGE, strict=False):
        with Image.open(io.BytesIO(image.data)) as opened:
            pixels = opened.convert("RGB").resize((side, side))
        file = io.BytesIO()
        pixels.save(file, kind, **options)
        name, media_type = f"{side} {kind} of {image.name}", f"image/{kind.lower()}"
        large.append(ImageFile(name, file.getvalue(), media_type))
    return large


async def told(request: Awaitable[Outcome]) -> Outcome:
    """Wait for a request, and return its outcome. A timeout or a broken connection is an outcome
    too."""
    try:
        return await request
    except TimeoutError:
        return Outcome(TIMED_OUT)
    except OSError as error:
        return Outcome(reason(error))


def p50_ms(journal: Journal) -> float:
    """Return the median latency of the answered requests, in ms. The latency begins at the intended
    send time."""
    columns = journal.columns()
    answered = columns.kind == 0
    if not answered.any():
        return float("inf")
    return float(np.median((columns.done - columns.intended)[answered]) * 1e3)


def _request(body: bytes, media_type: str) -> tuple[bytes, bytes]:
    head = (
        f"POST {CLASSIFY_PATH} HTTP/1.1\r\nHost: convoy\r\nConnection: close\r\n"
        f"Content-Type: {media_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode(), body
