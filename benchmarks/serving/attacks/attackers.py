"""Sends requests that cost a server the most for each of their bytes, or did before it was bounded.

An attacker has an address of its own, as another machine would, so that a server can tell it from
honest clients. It sends the same request again as soon as it is answered.
"""

import asyncio
import gzip
import io
import json
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import aiohttp
from PIL import Image

from service.api.embeddings import PATH as EMBEDDINGS_PATH
from service.api.v1 import CLASSIFY_PATH

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ADDRESS = "127.0.0.2"
"""The address of an attacker; all of 127.0.0.0/8 are this machine on Linux."""

_SIDE = 5000
_TIMEOUT_S = 120.0
_REFUSED_PAUSE_S = 0.1

NO_ANSWER = "no answer"
UNANSWERED = "in progress at the end"


@dataclass(frozen=True)
class Attack:
    """Describes one request of an attacker."""

    name: str
    path: str
    body: bytes
    headers: Mapping[str, str]


@dataclass
class Attackers:
    """Counts the outcomes of the attackers' requests."""

    connections: int
    statuses: Counter[str] = field(default_factory=Counter)


def attacks_on(url: str) -> Sequence[Attack]:
    """Return the requests, for the first model of a server."""
    with urlopen(f"{url}/v1/models", timeout=10) as response:
        model = json.load(response)["models"][0]
    name, shape = model["name"], model["image"]
    with urlopen(f"{url}/v2/models/{name}", timeout=10) as response:
        tensors_of = json.load(response)
    inputs, scores = tensors_of["inputs"], tensors_of["outputs"][0]["name"]
    infer = f"/v2/models/{name}/infer"
    # A model whose own input has the name `image` too lists it once.
    height, width, channels = shape
    planes: Mapping[str, Any] = {"name": "image", "shape": [-1, channels, height, width]}
    own = next((tensor for tensor in inputs if tensor["datatype"] == "FP32"), planes)
    tensors = _zeros(own["name"], "FP32", [8, *own["shape"][1:]])
    many = [128, *shape]
    return [
        _compressed("4 WebPs of 25 megapixels", infer, _files([webp(_SIDE)] * 4)),
        _compressed("64 WebPs of 1 megapixel", infer, _files([webp(1000)] * 64)),
        _compressed("8 FP32 tensors in JSON", infer, tensors),
        _compressed("128 UINT8 images", infer, _zeros("image", "UINT8", many)),
        _compressed("every class of 128 images", infer, _with_classes(many, scores)),
        Attack(
            "8 MB of base64 in JSON",
            EMBEDDINGS_PATH,
            gzip.compress(b'{"input":"' + b"QUJD" * 2_000_000 + b'"}', 9),
            {"Content-Encoding": "gzip", "Content-Type": "application/json"},
        ),
        Attack("20 frames that repeat one", CLASSIFY_PATH, frames(_SIDE), {}),
        Attack("a 1-bit PNG of 25 megapixels", CLASSIFY_PATH, png(_SIDE), {}),
        Attack("100 refinement scans", CLASSIFY_PATH, scans(), {}),
    ]


def _compressed(name: str, path: str, body: bytes) -> Attack:
    return Attack(name, path, gzip.compress(body, 9), {"Content-Encoding": "gzip"})


def _files(files: Sequence[bytes]) -> bytes:
    data = [b64encode(file).decode() for file in files]
    tensor = {"name": "image", "datatype": "BYTES", "shape": [len(files)], "data": data}
    return json.dumps({"inputs": [tensor]}).encode()


def _zeros(name: str, datatype: str, shape: Sequence[int]) -> bytes:
    """Return a request with as many images as fit into JSON, all of whose numbers are 0."""
    numbers = 1
    for side in shape[1:]:
        numbers *= side
    n = max(1, min(shape[0], 4_000_000 // numbers))
    head = json.dumps({"name": name, "datatype": datatype, "shape": [n, *shape[1:]]})
    data = ",".join(["0"] * (n * numbers))
    return f'{{"inputs":[{head[:-1]},"data":[{data}]}}]}}'.encode()


def _with_classes(shape: Sequence[int], scores: str) -> bytes:
    """Return a request with as many images as fit into JSON, for the names of all their classes."""
    asked = json.loads(_zeros("image", "UINT8", shape))
    asked["outputs"] = [{"name": scores, "parameters": {"classification": 1000}}]
    return json.dumps(asked).encode()


def frames(side: int, count: int = 20) -> bytes:
    """Return an animated WebP, all of whose frames are the same few bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return kind + len(data).to_bytes(4, "little") + data + bytes(len(data) & 1)

    size = (side - 1).to_bytes(3, "little") * 2
    one = webp(side)[12:]
    frame = chunk(b"ANMF", bytes(6) + size + bytes(4) + one)
    canvas = chunk(b"VP8X", b"\2\0\0\0" + size) + chunk(b"ANIM", bytes(6))
    return chunk(b"RIFF", b"WEBP" + canvas + frame * count)


def webp(side: int) -> bytes:
    """Return a small lossless WebP of one colour."""
    return _saved(Image.new("RGB", (side, side), (1, 2, 3)), "WebP", lossless=True, method=4)


def png(side: int) -> bytes:
    """Return a PNG of one colour with one bit per pixel."""
    return _saved(Image.new("1", (side, side)), "PNG", optimize=True)


def scans(side: int = 2000, most: int = 100) -> bytes:
    """Return a progressive JPEG of one colour in which the last scan is repeated."""
    file = _saved(Image.new("RGB", (side, side), (1, 2, 3)), "JPEG", progressive=True)
    mark = b"\xff\xda"
    first, last = file.index(mark), file.rindex(mark)
    there = file.count(mark, first)
    return file[:-2] + file[last:-2] * (most - there) + file[-2:]


def _saved(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


@asynccontextmanager
async def under_attack(
    url: str, attacks: Sequence[Attack], connections: int
) -> "AsyncIterator[Attackers]":
    """Send every attack on `connections` connections of its own within this block."""
    seen = Attackers(connections * len(attacks))
    connector = aiohttp.TCPConnector(limit=0, local_addr=(ADDRESS, 0))
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        sending = [
            asyncio.create_task(_attack(session, url, attack, seen))
            for attack in attacks
            for _ in range(connections)
        ]
        try:
            yield seen
        finally:
            for task in sending:
                task.cancel()
            await asyncio.gather(*sending, return_exceptions=True)


async def _attack(
    session: aiohttp.ClientSession, url: str, attack: Attack, seen: Attackers
) -> None:
    while True:
        try:
            async with session.post(
                url + attack.path, data=attack.body, headers=attack.headers
            ) as response:
                await response.read()
                status = str(response.status)
        except asyncio.CancelledError:
            seen.statuses[UNANSWERED] += 1
            raise
        except (aiohttp.ClientError, OSError):
            status = NO_ANSWER
        seen.statuses[status] += 1
        if status != "200":
            await asyncio.sleep(_REFUSED_PAUSE_S)  # or all that is measured is this program
