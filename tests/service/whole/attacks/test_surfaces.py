"""Every interface enforces every bound. The limits are so low that small files and short times
reach them.

The table of docs/reliability.md has a row for each of `ROWS`. `test_bounds` checks that they agree.
"""

import asyncio
import base64
import json
import os
import socket
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from PIL import Image

from benchmarks.serving.attacks import http2
from models import Batch, Results
from models.preprocessing import PRESETS
from service.api import json_images
from service.api.app import create_app
from service.api.v2 import parse
from service.edge.connections import GRACE_S
from service.grpc import port as grpc_port
from service.grpc.messages import INFERENCE, message_class
from service.grpc.methods import METHODS
from service.grpc.port import GrpcPort
from service.hosting.regions import Regions
from service.hosting.repository import Repository
from service.images.clip import prepare_clip
from service.images.prepare import ImageLimits, prepare_image
from tests.service.api.test_explain import FEATURES, MAPS, MappedEngine, photo
from tests.service.grpc.test_port_connections import closing, silent
from tests.support import PATIENCE_S
from tests.support.images.files import encode
from tests.support.servers.listening import PATIENT, Client, OpenPort, get, listening, post
from tests.support.servers.routes import posts_of
from tests.support.servers.served import run
from tests.support.service.client import until
from tests.support.service.fakes import fake_info

BYTES, IMAGES, PIXELS = 5000, 3, 1200
SMALL, LARGE = (60, 20), (61, 20)
REGION = f"convoy-test-surfaces-{os.getpid()}"

CLIP = (4, 1, 1, 1)
PIPELINED = 100


def form(files: Sequence[bytes]) -> tuple[bytes, str]:
    part = b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\n'
    body = b"".join(part + file + b"\r\n" for file in files)
    return body + b"--b--\r\n", "multipart/form-data; boundary=b"


def in_json(files: Sequence[bytes]) -> tuple[bytes, str]:
    texts = [base64.b64encode(file).decode() for file in files]
    return json.dumps({"input": texts}).encode(), "application/json"


def alone(files: Sequence[bytes]) -> tuple[bytes, str]:
    (file,) = files
    return file, "image/png"


def tensor(files: Sequence[bytes]) -> tuple[bytes, str]:
    texts = [base64.b64encode(file).decode() for file in files]
    asked = {"name": "image", "datatype": "BYTES", "shape": [len(files)], "data": texts}
    return json.dumps({"inputs": [asked]}).encode(), "application/json"


def in_memory(files: Sequence[bytes]) -> tuple[bytes, str]:
    data = b"".join(len(file).to_bytes(4, "little") + file for file in files)
    with open(f"/dev/shm/{REGION}", "r+b") as file:
        file.write(data)
    part = {"shared_memory_region": REGION, "shared_memory_byte_size": len(data)}
    asked = {"name": "image", "datatype": "BYTES", "shape": [len(files)], "parameters": part}
    return json.dumps({"inputs": [asked]}).encode(), "application/json"


def animated(size: tuple[int, int]) -> bytes:
    """Return a clip of four frames."""
    frames = [Image.new("L", size, level) for level in (0, 60, 120, 180)]
    return encode(frames[0], "GIF", save_all=True, append_images=frames[1:])


Send = Callable[[Sequence[bytes]], tuple[bytes, str]]

# Each surface of HTTP that takes images: its path, and how files are sent there.
HTTP: Mapping[str, tuple[str, Send]] = {
    "classify, an image": ("/v1/classify", alone),
    "classify, a form": ("/v1/classify", form),
    "classify, JSON": ("/v1/classify", in_json),
    "explain": ("/v1/classify?explain=1", form),
    "embeddings, a form": ("/v1/embeddings", form),
    "embeddings, JSON": ("/v1/embeddings", in_json),
    "pixels": ("/v1/models/fake/pixels", alone),
    "clips": ("/v1/classify", alone),
    "V2": ("/v2/models/fake/infer", tensor),
    "shared memory": ("/v2/models/fake/infer", in_memory),
}
GRPC = ("ModelInfer", "ModelStreamInfer")
OTHER_HTTP, OTHER_GRPC = "other calls by HTTP", "other calls by gRPC"

# The surfaces of each row of the table.
ROWS: Mapping[str, Sequence[str]] = {
    "`/v1/.../classify`, images, forms, JSON": [
        "classify, an image",
        "classify, a form",
        "classify, JSON",
    ],
    "the same with `explain`": ["explain"],
    "`/v1/.../embeddings`": ["embeddings, a form", "embeddings, JSON"],
    "`/v1/.../pixels`": ["pixels"],
    "clips": ["clips"],
    "`/v2/.../infer`": ["V2"],
    "shared memory": ["shared memory"],
    "gRPC `ModelInfer`": ["ModelInfer"],
    "gRPC `ModelStreamInfer`": ["ModelStreamInfer"],
    "all other calls by HTTP": [OTHER_HTTP],
    "all other calls by gRPC": [OTHER_GRPC],
}
BY_HTTP = [*HTTP, OTHER_HTTP]
EVERY = [*BY_HTTP, *GRPC, OTHER_GRPC]
SEVERAL = [name for name, (_, send) in HTTP.items() if send is not alone] + [*GRPC]

# The surfaces that take JSON, and what knows how long it may be.
JSON = {"classify, JSON": json_images, "embeddings, JSON": json_images, "V2": parse}

# The routes of each surface that takes images; all others are "other calls".
ROUTES: Mapping[str, Sequence[str]] = {
    "classify": ["/v1/classify", "/v1/models/{model}/classify"],
    "embeddings": ["/v1/embeddings", "/v1/models/{model}/embeddings"],
    "pixels": ["/v1/models/{model}/pixels"],
    "V2": [
        "/v2/models/{model}/infer",
        "/v2/models/{model}/versions/{version}/infer",
    ],
}

# What is posted there is short, and is no image.
OTHER_ROUTES = {
    "/v2/repository/index",
    "/v2/repository/models/{model}/load",
    "/v2/repository/models/{model}/unload",
    *(
        f"/v2/{kind}/{what}"
        for kind in ("systemsharedmemory", "cudasharedmemory")
        for what in ("unregister", "region/{region}/register", "region/{region}/unregister")
    ),
    "/v2/logging",
    "/v2/trace/setting",
    "/v2/models/{model}/trace/setting",
}

surfaces_with_images = pytest.mark.parametrize("surface", [*HTTP, *GRPC])
every_surface = pytest.mark.parametrize("surface", EVERY)


class ClipEngine(MappedEngine):
    """An engine for clips. It scores only the first frame."""

    def run(self, images: Batch, inner: Collection[str] = ()) -> Results:
        """Return the scores of each clip's first frame."""
        return super().run([np.asarray(clip)[0] for clip in images], inner)


class Surface:
    """An interface of a server with low limits."""

    def __init__(self, name: str, server: OpenPort, port: GrpcPort, repository: Repository) -> None:
        self.name, self.server, self.port, self.repository = name, server, port, repository

    def files(self, size: tuple[int, int], count: int = 1) -> list[bytes]:
        """Return files that the interface accepts. Each shows a digit."""
        return [animated(size) if self.name == "clips" else photo(7, size)] * count

    def request(self, files: Sequence[bytes]) -> bytes:
        """Return a request over HTTP."""
        if self.name == OTHER_HTTP:
            return get("/v2/models/fake")
        path, send = HTTP[self.name]
        body, kind = send(files)
        return post(body, f"Content-Type: {kind}", path=path)

    async def ask(self, files: Sequence[bytes], source: str = "127.0.0.1") -> str:
        """Send files, and return the answer's error, or an empty text."""
        if self.name in BY_HTTP:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", self.server.port, local_addr=(source, 0)
            )
            writer.write(self.request(files))
            reply = await Client(reader, writer).reply()
            writer.close()
            return "" if reply.status == 200 else reply.error(reply.status)
        async with self.channel() as channel:
            return await by_grpc(channel, self.name, files)

    def channel(self) -> Any:
        """Return a separate gRPC connection."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        return grpc.aio.insecure_channel(f"127.0.0.1:{self.port.number}", options=options)

    @property
    def method(self) -> str:
        """Return the gRPC method."""
        return "ModelMetadata" if self.name == OTHER_GRPC else self.name


@asynccontextmanager
async def asking(name: str, **limits: Any) -> AsyncIterator[Surface]:
    """Yield the interface of a server with low limits."""
    repository = Repository(max_batch=8, max_queue=IMAGES, max_body_bytes=BYTES, decode_threads=1)
    preprocessing, images = PRESETS["digits"].at(1, 1), ImageLimits(max_pixels=PIXELS)
    info = replace(fake_info(), maps=MAPS, inner=[FEATURES], embedding=FEATURES)
    if name == "clips":
        preprocessing, info = replace(preprocessing, frames=4), replace(info, image_shape=CLIP)
        prepare: Any = partial(prepare_clip, preprocessing=preprocessing, limits=images)
        repository.add(info, [ClipEngine()], prepare, None)
    else:
        prepare = partial(prepare_image, preprocessing=preprocessing, limits=images)
        repository.add(info, [MappedEngine()], prepare, None)
    repository.regions = repository.models["fake"].regions = Regions(BYTES)
    await repository.warm_up()
    app = create_app(repository)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(repository.close, PATIENCE_S)
        edge = replace(PATIENT, **{"sweep_s": 0.01, **limits})
        server = await stack.enter_async_context(
            listening(app, endpoints=app.endpoints, limits=edge, room=repository.room)
        )
        port = GrpcPort("127.0.0.1", 0, repository, 4)
        stack.push_async_callback(port.stop, 0.5)
        await port.start(server.edge)
        stack.enter_context(region(repository.regions))
        yield Surface(name, server, port, repository)
        await until(lambda: not repository.requests)
    assert repository.room.taken == 0


@contextmanager
def region(regions: Regions) -> Iterator[None]:
    """Return a file of shared memory that is longer than a tensor may be."""
    file = Path(f"/dev/shm/{REGION}")
    file.write_bytes(bytes(2 * BYTES))
    try:
        regions.register(REGION, REGION, 0, 2 * BYTES)
        yield
    finally:
        file.unlink()


def message(files: Sequence[bytes]) -> bytes:
    asked = message_class("inference.ModelInferRequest")(model_name="fake")
    made = asked.inputs.add(name="image", datatype="BYTES", shape=[len(files)])
    made.contents.bytes_contents.extend(files)
    encoded: bytes = asked.SerializeToString()
    return encoded


async def by_grpc(channel: Any, name: str, files: Sequence[bytes]) -> str:
    try:
        if name == OTHER_GRPC:
            await channel.unary_unary(f"/{INFERENCE}/ServerMetadata")(b"")
            return ""
        path, data = f"/{INFERENCE}/{name}", message(files)
        if name == "ModelInfer":
            await channel.unary_unary(path)(data)
            return ""
        stream = channel.stream_stream(path)(iter([data]))
        answer = message_class("inference.ModelStreamInferResponse").FromString
        return "".join([answer(each).error_message async for each in stream])
    except grpc.aio.AioRpcError as error:
        return str(error.details())


def error_in(answer: bytes) -> str:
    """Return the message of a 408 answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 "), answer
    return str(json.loads(body)["error"])


def test_every_surface_has_a_row_and_every_route_a_surface() -> None:
    assert sorted(name for names in ROWS.values() for name in names) == sorted(EVERY)
    app = create_app(Repository(max_batch=1, max_queue=1, max_body_bytes=1, decode_threads=0))
    routes = {route for routes in ROUTES.values() for route in routes}
    assert posts_of(app) - routes == OTHER_ROUTES
    assert routes <= posts_of(app)
    assert {name.partition(",")[0] for name in HTTP} - {"explain", "clips", "shared memory"} == set(
        ROUTES
    )


@surfaces_with_images
@run
async def test_bytes_and_pixels_have_a_limit(surface: str) -> None:
    async with asking(surface) as asked:
        (small,), (large,) = asked.files(SMALL), asked.files(LARGE)
        assert await asked.ask([small]) == ""
        assert "pixels" in await asked.ask([large])
        refused = await asked.ask([small + bytes(BYTES)])
        assert "bytes" in refused or "larger than max" in refused
        assert await asked.ask([small]) == ""


@pytest.mark.parametrize("surface", [*JSON])
@run
async def test_json_has_a_limit_of_its_own(surface: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with asking(surface) as asked:
        files = asked.files(SMALL)
        body, _ = HTTP[surface][1](files)
        monkeypatch.setattr(JSON[surface], "MAX_JSON_BYTES", len(body))
        assert await asked.ask(files) == ""
        monkeypatch.setattr(JSON[surface], "MAX_JSON_BYTES", len(body) - 1)
        assert f"the JSON has {len(body)} bytes; at most {len(body) - 1}" in await asked.ask(files)


@pytest.mark.parametrize("surface", SEVERAL)
@run
async def test_images_of_a_request_have_a_limit(surface: str) -> None:
    async with asking(surface) as asked:
        assert await asked.ask(asked.files(SMALL, IMAGES)) == ""
        refused = await asked.ask(asked.files(SMALL, IMAGES + 1))
        assert f"at most {IMAGES}" in refused or f"more than {IMAGES} images" in refused


@surfaces_with_images
@run
async def test_bytes_of_an_answer_have_a_limit(surface: str) -> None:
    async with asking(surface) as asked:
        files = asked.files(SMALL)
        asked.repository.room.max_bytes = len(files[0]) * 4
        assert "the answer would have" in await asked.ask(files)


@pytest.mark.parametrize("surface", [OTHER_HTTP, OTHER_GRPC])
@run
async def test_other_calls_take_short_bodies_and_no_images(surface: str) -> None:
    async with asking(surface) as asked:
        if surface == OTHER_HTTP:
            app = create_app(asked.repository)
            paths = [route.format(model="fake", region="r") for route in sorted(OTHER_ROUTES)]
            for path in paths:
                reply = await asked.server.ask(post(bytes(70_000), path=path))
                assert reply.status in (200, 400, 404, 413, 501), path
                if path in ("/v2/repository/index", "/v2/systemsharedmemory/region/r/register"):
                    assert "more than the 4096 bytes" in reply.error(413)
            assert not set(paths) & set(app.endpoints)
        else:
            async with asked.channel() as channel:
                for path in METHODS:
                    with pytest.raises(grpc.aio.AioRpcError, match="allows at most 4096"):
                        await channel.unary_unary(path)(bytes(5000))
        assert asked.repository.room.most_taken() < 70_000


@every_surface
@run
async def test_connections_of_one_address_leave_some_to_others(surface: str) -> None:
    few = {"connections": 12, "per_address": 6}
    async with asking(surface, **few) as asked:
        port = asked.server.port if surface in BY_HTTP else asked.port.number
        with silent(port, 20) as opened:
            await closing(opened, 14)
            await asyncio.sleep(2 * GRACE_S)
            assert await asked.ask(asked.files(SMALL)) == ""
            if surface in BY_HTTP:  # its own next request displaces a silent one
                assert await asked.ask(asked.files(SMALL), "127.0.0.2") == ""
                await closing(opened, 15)


@every_surface
@run
async def test_a_silent_connection_ends(surface: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_port, "_IDLE_MS", 300)
    async with asking(surface) as asked:
        if surface in BY_HTTP:
            client = await asked.server.send(asked.request(asked.files(SMALL)))
            assert (await client.reply()).status == 200
            asked.server.edge.limits = replace(asked.server.edge.limits, idle_s=0.3)
            assert await client.rest() == b""
            return
        async with asked.channel() as channel:
            if surface == "ModelStreamInfer":
                monkeypatch.setattr(grpc_port, "_IDLE_MS", 1e3 * PATIENCE_S)  # but for the last
                stream = channel.stream_stream(f"/{INFERENCE}/{surface}")()
                await stream.write(message(asked.files(SMALL)))
                assert await stream.read()
                monkeypatch.setattr(grpc_port, "_IDLE_MS", 300)
                await stream.write(message(asked.files(SMALL)))
                assert await stream.read()
                with pytest.raises(grpc.aio.AioRpcError, match="no message arrived for"):
                    await stream.read()
            else:
                assert await by_grpc(channel, surface, asked.files(SMALL)) == ""
            ready = grpc.ChannelConnectivity.READY
            await until(lambda: channel.get_state() is not ready)


@every_surface
@run
async def test_a_request_that_does_not_arrive_ends(
    surface: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_port, "_IDLE_MS", 300)
    async with asking(surface, body_s=0.3) as asked:
        if surface in BY_HTTP:
            whole = asked.request(asked.files(SMALL))
            if surface == OTHER_HTTP:
                whole = post(b"{}", path="/v2/repository/index")
            client = await asked.server.send(whole[:-1])
            assert "did not arrive within 0.3 s" in error_in(await client.rest())
            return
        async with asked.channel() as channel:
            call = channel.stream_stream(f"/{INFERENCE}/{asked.method}")()
            with pytest.raises(grpc.aio.AioRpcError, match=r"did not arrive|no message arrived"):
                await call.read()


@run
async def test_pixels_are_of_one_image() -> None:
    async with asking("pixels") as asked:
        body, kind = form(asked.files(SMALL, 2))
        path, _ = HTTP["pixels"]
        reply = await asked.server.ask(post(body, f"Content-Type: {kind}", path=path))
        assert "one image" in reply.error(reply.status)
        assert 400 <= reply.status < 500


@every_surface
@run
async def test_answers_that_are_not_read_end_and_count(surface: str) -> None:
    async with asking(surface, answer_s=0.3) as asked:
        room, files = asked.repository.room, asked.files(SMALL)
        if surface in BY_HTTP:
            asked.server.edge.limits = replace(asked.server.edge.limits, answer_s=PATIENT.answer_s)
            await leave_unread(asked, asked.request(files))
        else:
            address = f"127.0.0.1:{asked.port.number}"
            async with http2.Connection(address, "127.0.0.1", reads=False, window=0) as client:
                stream = client.begin(f"/{INFERENCE}/{asked.method}")
                data = b"\x0a\x04fake" if surface == OTHER_GRPC else message(files)
                await client.send(stream, http2.message_of(data, compressed=False))
                await until(lambda: room.most_taken() > 0)
                await until(lambda: client.is_lost)
        await until(lambda: not room.taken)


async def leave_unread(asked: Surface, request: bytes) -> None:
    """Send requests over HTTP until unread answers wait, and then wait until the server closes the
    connection."""
    room, loop = asked.repository.room, asyncio.get_running_loop()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        client.setblocking(False)
        await loop.sock_connect(client, ("127.0.0.1", asked.server.port))
        await until(lambda: bool(asked.server.connections))
        (connection,) = asked.server.connections
        transport: Any = vars(connection)["_transport"]
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        transport.set_write_buffer_limits(high=0)
        sending = asyncio.create_task(loop.sock_sendall(client, request * PIPELINED))
        await until(lambda: room.taken > 0 and transport.get_write_buffer_size() > 0)
        asked.server.edge.limits = replace(asked.server.edge.limits, answer_s=0.3)
        await until(lambda: not asked.server.connections)
        sending.cancel()
        await asyncio.wait([sending])
