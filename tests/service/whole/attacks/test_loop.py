"""No request blocks the event loop for long, at any interface.

The tests measure the CPU time that one callback takes in the loop's own thread, because it does not
depend on other work on the machine. `test_holds` tests the same for the GIL.
"""

import asyncio
import json
import re
import socket
import struct
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import grpc
import numpy as np
import pytest

from models import Batch, Inner, Results
from service.api.app import create_app
from service.grpc.messages import INFERENCE, message_class
from service.grpc.port import GrpcPort
from service.hosting.regions import Regions
from service.hosting.repository import Repository
from tests.service.whole.attacks.test_surfaces import EVERY, OTHER_GRPC, OTHER_HTTP, form
from tests.support import PATIENCE_S
from tests.support.models.slowness import slowness
from tests.support.servers.listening import get, listening, post
from tests.support.servers.served import run
from tests.support.service.fakes import FakeEngine, decode_digit, fake_info, free
from tests.support.service.shared_memory import shared_memory

MOST_S = 0.005
TRIES = 20  # others' work on the core only adds to what is seen

BYTES, IMAGES, VECTOR = 20_000_000, 128, 1280
SHAPE = (224, 224, 3)
FLOATS = 33  # as many tensors of four bytes a number as a body may have


class WideEngine(FakeEngine):
    """Returns the same row of scores for every image."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes
        self._row = np.random.default_rng(0).standard_normal(classes).astype(np.float32)

    def run(self, images: Batch, inner: Collection[str] = ()) -> Results:
        """Return the row for each image, or NaN for tensors that begin with NaN."""
        scores = np.tile(self._row, (len(images), 1))
        for index, image in enumerate(images):
            if np.isnan(np.asarray(image).ravel()[0]):
                scores[index, 0] = np.nan
        vectors = np.ones((len(images), VECTOR), np.float32)
        return Results(scores, inner=dict.fromkeys(inner, vectors))


class Ports:
    """The ports of a server, and its models."""

    def __init__(self, http: int, by_grpc: int, repository: Repository) -> None:
        self.http, self.grpc, self.repository = http, by_grpc, repository


@asynccontextmanager
async def serving(names: Collection[str], classes: int) -> AsyncIterator[Ports]:
    """Serve models with this many classes."""
    repository = Repository(max_batch=8, max_queue=IMAGES, max_body_bytes=BYTES, decode_threads=2)
    labels = [f"a class of some length, {number}" for number in range(classes)]
    vector = Inner("vector", (VECTOR,))
    repository.regions = Regions(BYTES)
    for name in names:
        info = replace(
            fake_info(name),
            labels=labels,
            tensor="x",
            tensor_shape=SHAPE,
            embedding=vector,
            inner=[vector],
        )
        repository.add(info, [WideEngine(classes)], free(decode_digit), None)
        repository.models[name].regions = repository.regions
    await repository.warm_up()
    app = create_app(repository)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(repository.close, PATIENCE_S)
        open_ = listening(app, endpoints=app.endpoints, room=repository.room)
        server = await stack.enter_async_context(open_)
        port = GrpcPort("127.0.0.1", 0, repository, 4)
        stack.push_async_callback(port.stop, 0.5)
        await port.start(server.edge)
        yield Ports(server.port, port.number, repository)


@contextmanager
def callbacks(patch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Yield a list with the seconds that each callback of this thread's event loop takes from now
    on. Those of a callback that seems to take too long are seconds of an idle core."""
    took: list[float] = []
    mine, usual = threading.get_ident(), asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        started = time.thread_time()
        usual(handle)
        if threading.get_ident() == mine:
            took.append(time.thread_time() - started)
            if took[-1] > MOST_S:  # a core's speed may change before the request has ended
                took[-1] /= slowness()

    with patch.context() as patched:
        patched.setattr(asyncio.Handle, "_run", timed)
        yield took


def by_http(port: int, data: bytes) -> str:
    """Send a request from a thread, read its whole answer, and return its status."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as client:
        client.sendall(data)
        got = client.recv(2**20)
        while b"\r\n\r\n" not in got:
            got += client.recv(2**20)
        head, _, body = got.partition(b"\r\n\r\n")
        found = re.search(rb"content-length: (\d+)", head.lower())
        left = (int(found[1]) if found else 0) - len(body)
        while left > 0:
            left -= len(client.recv(2**20)) or left
    return head[9:12].decode()


def by_grpc(port: int, method: str, data: bytes) -> str:
    """Send a request over gRPC, and return its status."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        answers = channel.stream_stream(f"/{INFERENCE}/{method}")(iter([data]))
        try:
            return str([len(answer) > 0 for answer in answers])
        except grpc.RpcError as error:
            return str(error.code())


async def longest_s(ask: Callable[[], str], patch: pytest.MonkeyPatch) -> tuple[float, str]:
    """Return the time of the longest callback, in seconds of an idle core, in the best of several
    tries. Also return the request's outcome."""
    found, ended = float("inf"), ""
    for _ in range(TRIES):
        with callbacks(patch) as took:
            ended = await asyncio.to_thread(ask)
        found = min(found, max(took))
        if found <= MOST_S:
            break
    return found, ended


# --- requests ------------------------------------------------------------------------------------

MODEL = "m"
INFER = f"/v2/models/{MODEL}/infer"
JSON = "Content-Type: application/json"
FORM = form([b"7"])[1]
CHUNKED = "POST {} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"

Make = Callable[[], bytes]


def in_form(files: int, query: str = "", path: str = "/v1/classify", size: int = 1) -> Make:
    body, kind = form([b"7" * size] * files)
    return lambda: post(body, f"Content-Type: {kind}", path=path + query)


def in_chunks(path: str, piece: bytes, count: int) -> Make:
    chunk = b"%x\r\n%b\r\n" % (len(piece), piece)
    return lambda: CHUNKED.format(path).encode() + chunk * count + END


def tensor(datatype: str, shape: list[int], **parameters: Any) -> dict[str, Any]:
    name = "x" if datatype == "FP32" else "image"
    return {"name": name, "datatype": datatype, "shape": shape, "parameters": parameters}


def in_v2(asked: dict[str, Any], data: bytes = b"", **wanted: Any) -> bytes:
    """Return a V2 request whose tensor is binary or in shared memory."""
    if data:
        asked["parameters"]["binary_data_size"] = len(data)
    outputs = [{"name": "scores", "parameters": wanted}]
    head = json.dumps({"inputs": [asked], "outputs": outputs}).encode()
    return post(head + data, f"Inference-Header-Content-Length: {len(head)}", path=INFER)


def files_in_binary(size: int) -> bytes:
    return (struct.pack("<I", size) + b"7" * size) * IMAGES


def nan() -> bytes:
    numbers = np.ones((FLOATS, *SHAPE), np.float32)
    numbers[:, 0, 0, 0] = np.nan
    return numbers.tobytes()


def message(data: bytes, datatype: str, shape: list[int], **wanted: int) -> bytes:
    asked = message_class("inference.ModelInferRequest")(model_name=MODEL)
    asked.inputs.add(name="x" if datatype == "FP32" else "image", datatype=datatype, shape=shape)
    asked.raw_input_contents.append(data)
    output = asked.outputs.add(name="scores")
    for name, value in wanted.items():
        output.parameters[name].int64_param = value
    encoded: bytes = asked.SerializeToString()
    return encoded


PIXELS = [IMAGES, 1, 1, 1]
SHARED = {"shared_memory_region": "files", "shared_memory_byte_size": 150_004 * IMAGES}
NUMBERS = {"name": "image", "datatype": "UINT8", "shape": PIXELS, "data": [7] * IMAGES}

# What each surface is sent by HTTP: the longest bodies of each kind, those of the most pieces, and
# those with the longest answers.
BY_HTTP: Mapping[str, Mapping[str, Make]] = {
    "classify, an image": {
        "20 MB": lambda: post(b"7" + bytes(BYTES - 1)),
        "chunks of a byte": in_chunks("/v1/classify", b"7", 100_000),
        "chunks of 500 bytes": in_chunks("/v1/classify", b"7" * 500, 39_000),
    },
    "classify, a form": {
        "many files": in_form(IMAGES),
        "too many files": in_form(3000),
        "every class": in_form(IMAGES, "?top_k=1000"),
        "long files": in_form(IMAGES, size=150_000),
        "line ends": lambda: post(*_form_of(b"\r\n" * 127_000)),
        "almost boundaries": lambda: post(*_form_of(b"\r\n--" * 63_000)),
        "long headers": lambda: post(*_form_of(b"7", b"a: " + b"b" * 1900 + b"\r\n", 120)),
    },
    "classify, JSON": {
        "many images": lambda: post(json.dumps({"input": ["Nw=="] * IMAGES}).encode(), JSON),
        "white space": lambda: post(b'{"input":' + b" " * 255_000 + b'"Nw=="}', JSON),
        "brackets": lambda: post(b'{"input":' + b"[" * 255_000, JSON),
    },
    "explain": {"many labels": lambda: post(b"7", path="/v1/classify?" + "explain=a&" * 100)},
    "clips": {"a file cut off": lambda: post(b"GIF89a\x10\0\x10\0\0\0\0" * 15_000)},
    "embeddings, a form": {"many images": in_form(IMAGES, path="/v1/embeddings")},
    "embeddings, JSON": {
        "many images": lambda: post(
            json.dumps({"input": ["Nw=="] * IMAGES}).encode(), JSON, path="/v1/embeddings"
        )
    },
    "pixels": {"20 MB": lambda: post(b"7" + bytes(BYTES - 1), path=f"/v1/models/{MODEL}/pixels")},
    "V2": {
        "files": lambda: in_v2(tensor("BYTES", [IMAGES]), files_in_binary(150_000)),
        "NaN": lambda: in_v2(tensor("FP32", [FLOATS, *SHAPE]), nan(), classification=1),
        "NaN for NaN": lambda: in_v2(tensor("FP32", [FLOATS, *SHAPE]), nan(), binary_data=True),
        "numbers": lambda: post(json.dumps({"inputs": [NUMBERS]}).encode(), path=INFER),
        "every class": lambda: in_v2(tensor("UINT8", PIXELS), bytes(IMAGES), classification=1000),
    },
    "shared memory": {"files": lambda: in_v2(tensor("BYTES", [IMAGES], **SHARED))},
    OTHER_HTTP: {
        "the OpenAPI document": lambda: get("/openapi.json"),
        "models": lambda: get("/v1/models"),
        "metrics": lambda: get("/metrics"),
        "regions": lambda: get("/v2/systemsharedmemory/status"),
        "a path of escapes": lambda: get("/" + "%41" * 2700),
        "a path of parts": lambda: get("/v1/models" + "/a" * 4000),
        "a query of keys": lambda: get(f"/v2/models/{MODEL}?" + "all=1&" * 1300),
        "a query of escapes": lambda: get(f"/v2/models/{MODEL}?" + "%41&" * 2000),
        "cookies": lambda: get(f"/v2/models/{MODEL}", 'Cookie: a="' + "\\101" * 15_000 + '"'),
        "long headers": lambda: get("/v2", *[f"X-{n}: " + "a" * 620 for n in range(95)]),
        "types": lambda: get("/v2", "Accept: " + "a/b;q=0.1," * 6000),
        "ranges": lambda: get("/page/page.js", "Range: bytes=" + "0-0," * 15_000 + "1-1"),
        "tags": lambda: get("/page/page.js", "If-None-Match: " + '"a",' * 15_000),
        "chunks of a byte": in_chunks("/v2/repository/index", b" ", 4000),
    },
}
BY_GRPC: Mapping[str, Mapping[str, tuple[str, Make]]] = {
    "ModelInfer": {
        "FP32": (
            "ModelInfer",
            lambda: message(bytes(FLOATS * 4 * 150_528), "FP32", [FLOATS, *SHAPE]),
        ),
        "files": ("ModelInfer", lambda: message(files_in_binary(150_000), "BYTES", [IMAGES])),
        "every class": (
            "ModelInfer",
            lambda: message(bytes(IMAGES), "UINT8", PIXELS, classification=1000),
        ),
    },
    "ModelStreamInfer": {
        "files": ("ModelStreamInfer", lambda: message(files_in_binary(150_000), "BYTES", [IMAGES])),
        "every class": (
            "ModelStreamInfer",
            lambda: message(bytes(IMAGES), "UINT8", PIXELS, classification=1000),
        ),
    },
    OTHER_GRPC: {
        "20 MB": ("ServerLive", lambda: bytes(BYTES - 100)),
        "regions": ("SystemSharedMemoryStatus", lambda: b""),
        "statistics": ("ModelStatistics", lambda: b""),
        "models": ("RepositoryIndex", lambda: b""),
    },
}

# What is asked of a model of very many classes, and of a server of many models.
OF_CLASSES: Mapping[str, Make] = {
    "its labels": lambda: get("/v1/models"),
    "one image": lambda: post(b"7"),
    "a batch": in_form(8),
    "every class": in_form(3, "?top_k=100000"),
    "every number": lambda: in_v2(tensor("UINT8", [8, 1, 1, 1]), bytes(8)),
    "every number in binary": lambda: in_v2(
        tensor("UINT8", [60, 1, 1, 1]), bytes(60), binary_data=True
    ),
    "every class by V2": lambda: in_v2(
        tensor("UINT8", [2, 1, 1, 1]), bytes(2), classification=100_000
    ),
}
FAMILY = [f"a-model-of-a-family-of-similar-names-{number:03d}" for number in range(40)]
OF_MODELS: Mapping[str, Make] = {
    "models": lambda: get("/v1/models"),
    "metrics": lambda: get("/metrics"),
    "statistics": lambda: get("/v2/models/stats"),
    "index": lambda: post(b"", path="/v2/repository/index"),
    "nearly a path": lambda: get(f"/v1/models/{FAMILY[0][:-3]}0x0/klassify"),
    "nearly a model": lambda: post(b"7", path=f"/v1/models/{FAMILY[0][:-3]}0x0/classify"),
}


def _form_of(content: bytes, headers: bytes = b"", count: int = 1) -> tuple[bytes, str]:
    part = b'--b\r\nContent-Disposition: form-data; name="file"\r\n' + headers + b"\r\n"
    return (part + content + b"\r\n") * count + b"--b--\r\n", f"Content-Type: {FORM}"


def test_each_surface_is_sent_something() -> None:
    assert {*BY_HTTP, *BY_GRPC} == {*EVERY}


async def too_long(
    ports: Ports,
    patch: pytest.MonkeyPatch,
    requests: Mapping[str, Make],
    calls: Mapping[str, tuple[str, Make]],
) -> list[str]:
    """Return the requests that block the loop for too long, each with its outcome."""
    asked = {name: partial(by_http, ports.http, make()) for name, make in requests.items()}
    for name, (method, make) in calls.items():
        asked[name] = partial(by_grpc, ports.grpc, method, make())
    found = []
    for name, ask in asked.items():
        took_s, ended = await longest_s(ask, patch)
        if took_s > MOST_S:
            found.append(f"{name}: {took_s * 1e3:.1f} ms, {ended}")
    return found


def named(surfaces: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {
        f"{surface}: {name}": made
        for surface, all_ in surfaces.items()
        for name, made in all_.items()
    }


@run
async def test_no_surface_keeps_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    with shared_memory(files_in_binary(150_000)) as file:
        async with serving([MODEL], 1000) as ports:
            regions = ports.repository.regions
            assert regions is not None
            regions.register("files", file.name, 0, 150_004 * IMAGES)
            for number in range(1000):
                regions.register(f"another region {number}", file.name, 0, 1)
            found = await too_long(ports, monkeypatch, named(BY_HTTP), named(BY_GRPC))
    assert found == []


@run
async def test_no_model_of_many_classes_keeps_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving([MODEL], 100_000) as ports:
        assert await too_long(ports, monkeypatch, OF_CLASSES, {}) == []


@run
async def test_no_server_of_many_models_keeps_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving(FAMILY, 1000) as ports:
        assert await too_long(ports, monkeypatch, OF_MODELS, BY_GRPC[OTHER_GRPC]) == []
