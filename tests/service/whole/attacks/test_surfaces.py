"""Every surface refuses what exceeds a bound, and says so, under limits that small files reach."""

import base64
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from models.preprocessing import PRESETS
from service.api.app import create_app
from service.grpc.messages import INFERENCE, message_class
from service.grpc.port import GrpcPort
from service.hosting.regions import Regions
from service.hosting.repository import Repository
from service.images.prepare import ImageLimits, prepare_image
from tests.service.api.test_explain import FEATURES, MAPS, MappedEngine, photo
from tests.support.servers.listening import OpenPort, listening, post
from tests.support.servers.served import run
from tests.support.service.fakes import fake_info

BYTES, IMAGES, PIXELS = 5000, 3, 1200
SMALL, LARGE = (60, 20), (61, 20)
REGION = f"convoy-test-surfaces-{os.getpid()}"

Ask = Callable[[Sequence[bytes]], Awaitable[str]]
"""Sends files, and returns the error that comes back, or nothing."""


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


# Each surface of HTTP: its path, and how files are sent there.
HTTP: Mapping[str, tuple[str, Callable[[Sequence[bytes]], tuple[bytes, str]]]] = {
    "classify, an image": ("/v1/classify", alone),
    "classify, a form": ("/v1/classify", form),
    "classify, JSON": ("/v1/classify", in_json),
    "explain": ("/v1/classify?explain=1", form),
    "embeddings, a form": ("/v1/embeddings", form),
    "embeddings, JSON": ("/v1/embeddings", in_json),
    "pixels": ("/v1/models/fake/pixels", alone),
    "V2": ("/v2/models/fake/infer", tensor),
    "shared memory": ("/v2/models/fake/infer", in_memory),
}
GRPC = ("ModelInfer", "ModelStreamInfer")
SEVERAL = [name for name, (_, send) in HTTP.items() if send is not alone] + [*GRPC]

every_surface = pytest.mark.parametrize("surface", [*HTTP, *GRPC])


@asynccontextmanager
async def asking(surface: str) -> AsyncIterator[tuple[Ask, Repository]]:
    """The surface of a server with low limits."""
    repository = Repository(max_batch=8, max_queue=IMAGES, max_body_bytes=BYTES, decode_threads=1)
    preprocessing, limits = PRESETS["digits"].at(1, 1), ImageLimits(max_pixels=PIXELS)
    prepare = partial(prepare_image, preprocessing=preprocessing, limits=limits)
    info = replace(fake_info(), maps=MAPS, inner=[FEATURES], embedding=FEATURES)
    repository.add(info, [MappedEngine()], prepare, None)
    repository.regions = repository.models["fake"].regions = Regions(BYTES)
    await repository.warm_up()
    app = create_app(repository)
    async with listening(app, endpoints=app.endpoints) as server:
        if surface in HTTP:
            with region(repository.regions):
                yield partial(by_http, server, *HTTP[surface]), repository
        else:
            port = GrpcPort("127.0.0.1", 0, repository, 4, shared=False)
            await port.start(server.edge)
            yield partial(by_grpc, port.number, surface), repository
            await port.stop(0.5)
    assert repository.room.taken == 0
    await repository.close(5)


@contextmanager
def region(regions: Regions) -> Iterator[None]:
    """A file of shared memory, longer than a tensor may be."""
    file = Path(f"/dev/shm/{REGION}")
    file.write_bytes(bytes(2 * BYTES))
    regions.register(REGION, REGION, 0, 2 * BYTES)
    try:
        yield
    finally:
        file.unlink()


async def by_http(server: OpenPort, path: str, send: Any, files: Sequence[bytes]) -> str:
    body, kind = send(files)
    reply = await server.ask(post(body, f"Content-Type: {kind}", path=path))
    return "" if reply.status == 200 else reply.error(reply.status)


async def by_grpc(port: int, method: str, files: Sequence[bytes]) -> str:
    asked = message_class("inference.ModelInferRequest")(model_name="fake")
    made = asked.inputs.add(name="image", datatype="BYTES", shape=[len(files)])
    made.contents.bytes_contents.extend(files)
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        path, data = f"/{INFERENCE}/{method}", asked.SerializeToString()
        try:
            if method == "ModelInfer":
                await channel.unary_unary(path)(data)
                return ""
            stream = channel.stream_stream(path)(iter([data]))
            answer = message_class("inference.ModelStreamInferResponse").FromString
            return "".join([answer(each).error_message async for each in stream])
        except grpc.aio.AioRpcError as error:
            return str(error.details())


@every_surface
@run
async def test_bytes_and_pixels_have_a_limit(surface: str) -> None:
    async with asking(surface) as (ask, _):
        assert await ask([photo(7, SMALL)]) == ""
        assert "pixels" in await ask([photo(7, LARGE)])
        refused = await ask([photo(7, SMALL) + bytes(BYTES)])
        assert "bytes" in refused or "larger than max" in refused
        assert await ask([photo(7, SMALL)]) == ""


@pytest.mark.parametrize("surface", SEVERAL)
@run
async def test_images_of_a_request_have_a_limit(surface: str) -> None:
    async with asking(surface) as (ask, _):
        assert await ask([photo(7, SMALL)] * IMAGES) == ""
        refused = await ask([photo(7, SMALL)] * (IMAGES + 1))
        assert f"at most {IMAGES}" in refused or f"more than {IMAGES} images" in refused


@every_surface
@run
async def test_bytes_of_an_answer_have_a_limit(surface: str) -> None:
    async with asking(surface) as (ask, repository):
        repository.room.max_bytes = len(photo(7, SMALL)) * 4
        assert "the answer would have" in await ask([photo(7, SMALL)])
