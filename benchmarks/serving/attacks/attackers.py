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
from math import prod
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import aiohttp
import grpc
from PIL import Image

from service.api.embeddings import PATH as EMBEDDINGS_PATH
from service.api.v1 import CLASSIFY_PATH
from service.grpc.messages import INFERENCE, message_class

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ADDRESS = "127.0.0.2"
"""The address of an attacker; all of 127.0.0.0/8 are this machine on Linux."""

_SIDE = 5000
_TIMEOUT_S = 120.0
_REFUSED_PAUSE_S = 0.1
_STREAM_S = 5.0  # until another stream is opened
_STREAM_PAUSE_S = 0.05  # between its messages

# As HTTP has them, in which a server counts.
_STATUSES = {
    grpc.StatusCode.OK: "200",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "429",
    grpc.StatusCode.UNAVAILABLE: "503",
    grpc.StatusCode.DEADLINE_EXCEEDED: "504",
}

ATTACKED = ("--grpc-port", "0", "--shared-memory", "--repository-api")
"""Options for `convoy serve`, so that there is something to attack."""

NO_ANSWER = "no answer"
UNANSWERED = "in progress at the end"
LOADED = "loaded"  # no model's answer, so that a server does not count it


@dataclass(frozen=True)
class Attack:
    """Describes one request of an attacker."""

    name: str
    path: str
    body: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True)
class GrpcAttack:
    """Describes one message of an attacker, or a stream of it whose answers are not read."""

    name: str
    address: str
    body: bytes
    is_stream: bool


@dataclass
class Attackers:
    """Counts the outcomes of the attackers' requests."""

    connections: int
    statuses: Counter[str] = field(default_factory=Counter)


def attacks_on(url: str, by_grpc: str = "") -> Sequence[Attack | GrpcAttack]:
    """Return the requests, for the first model of a server, which may have a gRPC address, too."""
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
    there: Mapping[str, Any] = {"shared_memory_region": "none", "shared_memory_byte_size": 2**40}
    region = {"name": "image", "datatype": "UINT8", "shape": [1, *shape], "parameters": there}
    return [
        *(_by_grpc(by_grpc, name, shape, scores) if by_grpc else ()),
        Attack("a region that is not there", infer, json.dumps({"inputs": [region]}).encode(), {}),
        Attack("the model again", f"/v2/repository/models/{name}/load", b"{}", {}),
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


def _by_grpc(address: str, model: str, shape: Sequence[int], scores: str) -> Sequence[GrpcAttack]:
    count = max(1, min(64, 4_000_000 // prod(shape)))
    asked = message_class("inference.ModelInferRequest")(model_name=model)
    asked.inputs.add(name="image", datatype="UINT8", shape=[count, *shape])
    asked.raw_input_contents.append(bytes(count * prod(shape)))
    asked.outputs.add(name=scores).parameters["classification"].int64_param = 1000
    body = asked.SerializeToString()
    return [
        GrpcAttack("every class, by gRPC", address, body, is_stream=False),
        GrpcAttack("a stream that is not read", address, body, is_stream=True),
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
    url: str, attacks: Sequence[Attack | GrpcAttack], connections: int
) -> "AsyncIterator[Attackers]":
    """Send every attack on `connections` connections of its own within this block."""
    seen = Attackers(connections * len(attacks))
    connector = aiohttp.TCPConnector(limit=0, local_addr=(ADDRESS, 0))
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        sending = [
            asyncio.create_task(
                _attack(session, url, attack, seen)
                if isinstance(attack, Attack)
                else _attack_by_grpc(attack, seen)
            )
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
                if status == "200" and attack.path.endswith("/load"):
                    status = LOADED
        except asyncio.CancelledError:
            seen.statuses[UNANSWERED] += 1
            raise
        except (aiohttp.ClientError, OSError):
            status = NO_ANSWER
        seen.statuses[status] += 1
        if status != "200":
            await asyncio.sleep(_REFUSED_PAUSE_S)  # or all that is measured is this program


async def _attack_by_grpc(attack: GrpcAttack, seen: Attackers) -> None:
    options = [
        *(("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)),
        *(("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 2**16)),
    ]
    compression = grpc.Compression.Gzip
    async with (
        _from_there(attack.address) as address,
        grpc.aio.insecure_channel(address, options, compression=compression) as open_,
    ):
        while True:
            if attack.is_stream:
                await _leave_unread(open_, attack.body, seen)
                continue
            try:
                await open_.unary_unary(f"/{INFERENCE}/ModelInfer")(attack.body)
                code = grpc.StatusCode.OK
            except asyncio.CancelledError:
                seen.statuses[UNANSWERED] += 1
                raise
            except grpc.aio.AioRpcError as error:
                code = error.code()
                await asyncio.sleep(_REFUSED_PAUSE_S)
            seen.statuses[_STATUSES.get(code, code.name)] += 1


@asynccontextmanager
async def _from_there(address: str) -> "AsyncIterator[str]":
    """Yield an address from which all goes on to `address`, as from an attacker's own machine.

    grpcio cannot choose the address that it comes from.
    """
    host, _, port = address.rpartition(":")

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection(host, int(port), local_addr=(ADDRESS, 0))
        await asyncio.gather(_pump(reader, there[1]), _pump(there[0], writer))

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()
    except OSError:  # one of both sides has closed
        pass
    finally:
        writer.close()


async def _leave_unread(channel: grpc.aio.Channel, body: bytes, seen: Attackers) -> None:
    """Send messages on a stream, and read no answers."""
    seen.statuses[UNANSWERED] += 1
    stream = channel.stream_stream(f"/{INFERENCE}/ModelStreamInfer")()
    try:
        async with asyncio.timeout(_STREAM_S):
            while True:
                seen.statuses[UNANSWERED] += 1
                await stream.write(body)
                await asyncio.sleep(_STREAM_PAUSE_S)
    except (TimeoutError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
        await asyncio.sleep(_REFUSED_PAUSE_S)
    finally:
        stream.cancel()
