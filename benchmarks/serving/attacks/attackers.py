"""Lists hostile requests: short requests that cost a server much, or did so before Convoy limited
their cost.

An attacker runs in a separate process with a separate address, like an attacker on another machine.
The server can therefore distinguish it from honest clients, and the process of the honest client is
not slowed down. The functions of ways.py send the requests.
"""

import asyncio
import gzip
import io
import json
from base64 import b64encode
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from math import prod
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

from PIL import Image

from benchmarks.serving.attacks import ways
from benchmarks.serving.attacks.ways import Place
from service.api.embeddings import PATH as EMBEDDINGS_PATH
from service.api.v1 import CLASSIFY_PATH
from service.grpc.messages import message_class

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_SIDE = 5000

ATTACKED = ("--grpc-port", "0", "--shared-memory", "--repository-api")
"""Options for `convoy serve` that enable the features under attack."""


@dataclass(frozen=True)
class Attack:
    """Describes an attack: the request to repeat, and the function that sends it."""

    name: str
    body: bytes
    # Sends the body again and again on a connection, and counts the outcomes.
    how: Callable[[Place, bytes, Counter[str]], Awaitable[None]]


@dataclass
class Attackers:
    """Counts the attackers' requests by outcome. The counts are complete once the attackers have
    ended."""

    statuses: Counter[str] = field(default_factory=Counter)


def attacks_on(url: str, *, by_grpc: bool = False) -> Sequence[Attack]:
    """Return all attacks on the first model of a server. If `by_grpc`, also return attacks on its
    gRPC port."""
    with urlopen(f"{url}/v1/models", timeout=10) as response:
        model = json.load(response)["models"][0]
    name, shape = model["name"], model["image"]
    with urlopen(f"{url}/v2/models/{name}", timeout=10) as response:
        tensors_of = json.load(response)
    inputs, scores = tensors_of["inputs"], tensors_of["outputs"][0]["name"]
    infer = f"/v2/models/{name}/infer"
    # If the model's own input is named `image` too, the list has only one `image`.
    height, width, channels = shape
    planes: Mapping[str, Any] = {"name": "image", "shape": [-1, channels, height, width]}
    own = next((tensor for tensor in inputs if tensor["datatype"] == "FP32"), planes)
    tensors = _zeros(own["name"], "FP32", [8, *own["shape"][1:]])
    many = [128, *shape]
    there: Mapping[str, Any] = {"shared_memory_region": "none", "shared_memory_byte_size": 2**40}
    region = {"name": "image", "datatype": "UINT8", "shape": [1, *shape], "parameters": there}
    load = partial(ways.post, path=f"/v2/repository/models/{name}/load", scores=False)
    base64 = gzip.compress(b'{"input":"' + b"QUJD" * 2_000_000 + b'"}', 9)
    in_json = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    return [
        *(_by_grpc(name, shape, scores) if by_grpc else ()),
        _posted("a region that is not there", infer, json.dumps({"inputs": [region]}).encode()),
        Attack("regions that come and go", b"", ways.register),
        Attack("the model again", b"{}", load),
        Attack("the list of models and the metrics", b"{}", ways.poll),
        Attack("wrong requests without a pause", b"{}", partial(ways.post, path=infer, pause_s=0)),
        _compressed("4 WebPs of 25 megapixels", infer, _files([webp(_SIDE)] * 4)),
        _compressed("64 WebPs of 1 megapixel", infer, _files([webp(1000)] * 64)),
        _compressed("8 FP32 tensors in JSON", infer, tensors),
        _compressed("128 UINT8 images", infer, _zeros("image", "UINT8", many)),
        _compressed("every class of 128 images", infer, _with_classes(many, scores)),
        _compressed("8 MB of brackets", infer, b'{"parameters":{"a":' + b"[" * 7_999_000),
        _compressed("200 MB of white space", infer, b'{"inputs":[' + b" " * 200_000_000),
        _posted("10,000 binary tensors", infer, *_tensors(10_000)),
        _posted("20,000 files in a form", CLASSIFY_PATH, *_parts(20_000)),
        _posted("8 MB of base64 in JSON", EMBEDDINGS_PATH, base64, in_json),
        _posted("20 frames that repeat one", CLASSIFY_PATH, frames(_SIDE)),
        _posted("a 1-bit PNG of 25 megapixels", CLASSIFY_PATH, png(_SIDE)),
        _posted("100 refinement scans", CLASSIFY_PATH, scans()),
        Attack("pipelined requests whose answers are not read", png(8), ways.pipeline),
        Attack("bodies that stay halves", bytes(100_000), ways.half),
        Attack("requests that are reset", png(8), ways.reset),
        Attack("requests whose clients close at once", png(8), ways.leave),
        Attack("a connection for each wrong request", b"{}", partial(ways.anew, path=infer)),
        Attack("chunks of a byte in short segments", b"1\r\n7\r\n" * 200, ways.in_segments),
        Attack("chunks of a byte", b"1\r\n7\r\n" * 500_000 + b"0\r\n\r\n", ways.in_chunks),
        _posted("numbers that are none", infer, *_nan(own)),
    ]


def _by_grpc(model: str, shape: Sequence[int], scores: str) -> Sequence[Attack]:
    count = max(1, min(64, 4_000_000 // prod(shape)))
    asked = message_class("inference.ModelInferRequest")(model_name=model)
    asked.inputs.add(name="image", datatype="UINT8", shape=[count, *shape])
    asked.raw_input_contents.append(bytes(count * prod(shape)))
    asked.outputs.add(name=scores).parameters["classification"].int64_param = 1000
    body = gzip.compress(asked.SerializeToString(), 9)
    return [
        Attack("every class, by gRPC", body, ways.call),
        Attack("a stream that is not read", body, ways.leave_unread),
        Attack("an answer that is read slowly", body, ways.read_slowly),
        Attack("calls that are cancelled at once", body, ways.cancel),
        Attack("calls without a message", b"", ways.say_nothing),
        Attack("calls for no model", gzip.compress(b""), ways.ask),
    ]


def _compressed(name: str, path: str, body: bytes) -> Attack:
    return _posted(name, path, gzip.compress(body, 9), {"Content-Encoding": "gzip"})


def _posted(name: str, path: str, body: bytes, headers: Mapping[str, str] = {}) -> Attack:
    return Attack(name, body, partial(ways.post, path=path, headers=headers))


def _tensors(count: int) -> tuple[bytes, Mapping[str, str]]:
    """Return the body and the headers of a request that has `count` binary tensors of a few bytes
    each."""
    one = {"name": "image", "datatype": "BYTES", "shape": [1]}
    inputs = [one | {"parameters": {"binary_data_size": 5}}] * count
    head = json.dumps({"inputs": inputs}, separators=(",", ":")).encode()
    body = head + b"\1\0\0\0x" * count
    return body, {"Inference-Header-Content-Length": str(len(head))}


def _nan(own: Mapping[str, Any]) -> tuple[bytes, Mapping[str, str]]:
    """Return the body and the headers of a V2 request whose tensor has many images. All numbers in
    the tensor are NaN."""
    shape = own["shape"][1:]
    n = max(1, min(128, 4_900_000 // prod(shape)))
    numbers = b"\x00\x00\xc0\x7f" * (n * prod(shape))
    tensor = {"name": own["name"], "datatype": "FP32", "shape": [n, *shape]}
    sized = tensor | {"parameters": {"binary_data_size": len(numbers)}}
    head = json.dumps({"inputs": [sized]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head)), "Content-Encoding": "gzip"}
    return gzip.compress(head + numbers, 9), headers


def _parts(count: int) -> tuple[bytes, Mapping[str, str]]:
    """Return the body and the headers of a form that has `count` files of one byte each."""
    part = b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\n7\r\n'
    return part * count + b"--b--\r\n", {"Content-Type": "multipart/form-data; boundary=b"}


def _files(files: Sequence[bytes]) -> bytes:
    data = [b64encode(file).decode() for file in files]
    tensor = {"name": "image", "datatype": "BYTES", "shape": [len(files)], "data": data}
    return json.dumps({"inputs": [tensor]}).encode()


def _zeros(name: str, datatype: str, shape: Sequence[int]) -> bytes:
    """Return a JSON request with as many images as may fit into a body. All pixels are 0."""
    numbers = 1
    for side in shape[1:]:
        numbers *= side
    n = max(1, min(shape[0], 4_000_000 // numbers))
    head = json.dumps({"name": name, "datatype": datatype, "shape": [n, *shape[1:]]})
    data = ",".join(["0"] * (n * numbers))
    return f'{{"inputs":[{head[:-1]},"data":[{data}]}}]}}'.encode()


def _with_classes(shape: Sequence[int], scores: str) -> bytes:
    """Return a JSON request with as many images as may fit into a body. It asks for the labels of
    all classes of each image."""
    asked = json.loads(_zeros("image", "UINT8", shape))
    asked["outputs"] = [{"name": scores, "parameters": {"classification": 1000}}]
    return json.dumps(asked).encode()


def frames(side: int, count: int = 20) -> bytes:
    """Return an animated WebP whose frames all consist of the same few bytes."""

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
    url: str, grpc: str, attacks: Sequence[Attack], connections: int
) -> "AsyncIterator[Attackers]":
    """Send each attack on `connections` separate connections within this block."""
    seen = Attackers()
    if not attacks:
        yield seen
        return
    spawned = get_context("spawn")
    here, there = spawned.Pipe()
    process = spawned.Process(
        target=_attack, args=(there, url, grpc, attacks, connections), daemon=True
    )
    process.start()
    there.close()
    try:
        await asyncio.to_thread(here.recv)  # the attack has begun
        yield seen
        here.send(None)
        seen.statuses.update(await asyncio.to_thread(here.recv))
    finally:
        here.close()
        process.kill()
        process.join()


def _attack(
    parent: Connection, url: str, grpc: str, attacks: Sequence[Attack], connections: int
) -> None:
    """Attack until the parent process sends a message. Then send the counts of the outcomes to the
    parent process."""

    async def attack() -> Counter[str]:
        seen: Counter[str] = Counter()
        async with ways.at(url, grpc) as place:
            each = [
                asyncio.create_task(_named(attack, place, seen))
                for attack in attacks
                for _ in range(connections)
            ]
            parent.send(None)
            await asyncio.to_thread(parent.recv)
            for task in each:
                task.cancel()
            ended = await asyncio.gather(*each, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                raise error
        return seen

    parent.send(asyncio.run(attack()))


async def _named(attack: Attack, place: Place, seen: Counter[str]) -> None:
    try:
        await attack.how(place, attack.body, seen)
    except Exception as error:
        error.add_note(f"in the attack {attack.name!r}")
        raise
