"""Changes a model under load, and checks each answer against the version that the answer names.

The built-in model's file alternates between two sets of weights. Clients send requests over HTTP
and over gRPC. Each answer names a version, and must have the scores or the embedding that this
process computes with the weights of that version.
"""

import asyncio
import os
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from math import inf
from pathlib import Path
from typing import Self

import aiohttp
import grpc
import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from benchmarks.serving.v2 import v2_body, v2_message
from loadtest.images import SAMPLES, ImageFile
from loadtest.journal import MIXED_UP, OK, Outcome
from models import (
    BUILT_IN_MODEL,
    DeviceKind,
    Inner,
    as_vectors,
    load_classifier,
    open_engine,
)
from service.grpc.messages import INFERENCE, message_class
from service.hosting.finding import image_reader
from service.settings import Settings

NAME = "swapped"

# The factor on the logits of odd versions, and the largest allowed difference of an answer in any
# batch. The versions differ so little that loadtest's clients, which ignore versions, accept the
# answers of both.
_FACTOR, _TOLERANCE = 0.975, 0.002

# The factors of bad versions: one turns all scores into NaN, the other reverses their order.
_BAD = float("nan"), -1.0

_TIMEOUT_S, _LOAD_S = 20.0, 120.0  # loading is slow, because a version is tested on idle cores
_Answered = message_class("inference.ModelInferResponse")

Rows = Sequence[NDArray[np.float32]]
"""A row of numbers for each image."""


def write_version(folder: Path, version: int, factor: float | None = None) -> None:
    """Write the files of a model version, in which the logits are multiplied by `factor`. By
    default, odd versions have one factor, and even versions have another."""
    served = folder / NAME
    if not served.exists():
        served.mkdir(parents=True)
        shutil.copy(BUILT_IN_MODEL.with_suffix(".toml"), served / "model.toml")
        shutil.copy(BUILT_IN_MODEL.with_name("labels.txt"), served)
    if factor is None:
        factor = _FACTOR if version % 2 else 1.0
    (served / "new").write_bytes(_file_of(factor))
    os.replace(served / "new", served / "model.onnx")


@cache
def _file_of(factor: float) -> bytes:
    """Return the bytes of the model file with the logits multiplied by a factor. A positive factor
    does not change the likeliest class."""
    model = onnx.load(BUILT_IN_MODEL)
    graph = model.graph
    value = numpy_helper.from_array(np.array(factor, np.float32))
    scores = graph.output[0].name
    (last,) = (node for node in graph.node if scores in node.output)
    last.output[list(last.output).index(scores)] = "version.unscaled"
    graph.node.insert(0, helper.make_node("Constant", [], ["version.factor"], value=value))
    graph.node.append(helper.make_node("Mul", ["version.unscaled", "version.factor"], [scores]))
    data: bytes = model.SerializeToString()
    return data


def scores_of(folder: Path, images: Sequence[ImageFile]) -> Rows:
    """Return the scores of each image. They are computed with the model that is now in the
    folder."""
    return _computed(folder, images)[0]


def vectors_of(folder: Path, images: Sequence[ImageFile]) -> Rows:
    """Return the embedding of each image. It is the same in all versions."""
    return _computed(folder, images)[1]


def _computed(folder: Path, images: Sequence[ImageFile]) -> tuple[Rows, Rows]:
    """Compute the scores and the embeddings of all images."""
    classifier = load_classifier(folder / NAME / "model.onnx")
    inner, read = classifier.embedding, image_reader(Settings())
    assert isinstance(inner, Inner)
    engine = open_engine(classifier, device=DeviceKind.CPU, max_batch=1, threads=1).warm_up()
    try:
        found = [
            engine.run([read(SAMPLES / image.name, classifier.preprocessing)], [inner.name])
            for image in images
        ]
    finally:
        engine.close()
    return (
        [each.scores[0] for each in found],
        [as_vectors(each.inner[inner.name])[0] for each in found],
    )


def first_version(folder: Path, images: Sequence[ImageFile]) -> Sequence[Rows]:
    """Write version 1. Return two lists with the scores of all images, one list for even versions
    and one for odd versions.

    Raises ValueError if at least half of the images have the same scores in both lists.
    """
    expected = []
    for version in (0, 1):
        write_version(folder, version)
        expected.append(scores_of(folder, images))
    changes = [np.abs(even - odd).max() for even, odd in zip(*expected, strict=True)]
    if np.median(changes) <= 2 * _TOLERANCE:
        raise ValueError("both versions have the same scores for most images; use other images")
    return expected


class Clients:
    """Sends V2 requests, alternately over HTTP and gRPC. Each answer names the model's version. The
    clients check that the scores are this version's scores."""

    def __init__(
        self,
        url: str,
        grpc_address: str,
        images: Sequence[ImageFile],
        expected: Sequence[Rows],
        vectors: Rows = (),
    ) -> None:
        """Prepare the clients. `expected` has two lists with the scores of all images, one list for
        even versions and one for odd versions. If `vectors` has the embeddings of all images, every
        second request over gRPC asks for the embedding."""
        self._url = f"{url}/v2/models/{NAME}/infer"
        self._repository = f"{url}/v2/repository/models/{NAME}/load"
        self._address = grpc_address
        self._expected = expected
        self._bodies = [v2_body(image.data) for image in images]
        self._messages = [v2_message(image.data, NAME) for image in images]
        self._vectors = vectors
        self._wanting = [_for_embedding(message) for message in self._messages]
        self.versions: Counter[int] = Counter()  # the number of right answers, by version
        self.embeddings = 0  # right answers with embeddings

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        connector = aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        self._channel = grpc.aio.insecure_channel(self._address)
        self._infer = self._channel.unary_unary(f"/{INFERENCE}/ModelInfer")
        self._load = self._channel.unary_unary(f"/{INFERENCE}/RepositoryModelLoad")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()
        await self._channel.close()

    async def send(self, number: int) -> Outcome:
        """Send the next image. The requests alternate between HTTP and gRPC, and go through all
        images in turn."""
        again, turn = divmod(number // 2, len(self._bodies))
        embeds = bool(self._vectors and number % 2 and again % 2)
        try:
            if embeds:
                version, values = await self._by_grpc(self._wanting[turn])
            elif number % 2:
                version, values = await self._by_grpc(self._messages[turn])
            else:
                version, values = await self._by_http(turn)
        except grpc.aio.AioRpcError as error:
            full = error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            return Outcome("429" if full else f"gRPC {error.code().name}: {error.details()}")
        except _RefusedError as error:
            return Outcome("429" if error.status == 429 else str(error))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return Outcome(f"HTTP {type(error).__name__}: {error}")
        return self.judged(version, turn, values, embeds=embeds)

    def judged(
        self, version: int, turn: int, values: NDArray[np.float32], *, embeds: bool = False
    ) -> Outcome:
        """Compare the values of an answer with the expected scores or embedding of an image in this
        version. Return OK if they match, and otherwise MIXED_UP."""
        expected = self._vectors[turn] if embeds else self._expected[version % 2][turn]
        if values.shape != expected.shape or not np.allclose(values, expected, 0, _TOLERANCE):
            return Outcome(MIXED_UP)
        self.versions[version] += 1
        self.embeddings += embeds
        return Outcome(OK)

    async def load(self, number: int) -> None:
        """Make the server load the model that is now in the folder. Raises the error of the
        request."""
        if number % 2:
            await self._load(
                message_class("inference.RepositoryModelLoadRequest")(
                    model_name=NAME
                ).SerializeToString(),
                timeout=_LOAD_S,
            )
            return
        patience = aiohttp.ClientTimeout(total=_LOAD_S)
        async with self._session.post(self._repository, timeout=patience) as response:
            if response.status != 200:
                raise _RefusedError(response.status, await response.text())

    async def _by_http(self, turn: int) -> tuple[int, NDArray[np.float32]]:
        head, body = self._bodies[turn]
        headers = {"Inference-Header-Content-Length": str(head)}
        async with self._session.post(self._url, data=body, headers=headers) as response:
            data = await response.read()
            if response.status != 200:
                raise _RefusedError(response.status, repr(data[:300]))
            length = int(response.headers["inference-header-content-length"])
        answer = msgspec.json.decode(data[:length])
        return int(answer["model_version"]), np.frombuffer(data[length:], "<f4")

    async def _by_grpc(self, message: bytes) -> tuple[int, NDArray[np.float32]]:
        answer = _Answered.FromString(await self._infer(message, timeout=_TIMEOUT_S))
        return int(answer.model_version), np.frombuffer(answer.raw_output_contents[0], "<f4")


def _for_embedding(message: bytes) -> bytes:
    """Return a copy of the request that asks for the embedding instead of the scores."""
    asked = message_class("inference.ModelInferRequest").FromString(message)
    asked.outputs.add(name="embedding")
    encoded: bytes = asked.SerializeToString()
    return encoded


class _RefusedError(Exception):
    """Raised when the status of the server's answer is not 200."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"HTTP {status}: {text}")
        self.status = status


def serve_options(folder: Path) -> list[str]:
    """Return the options for `convoy serve` to serve the model in the folder and to let clients
    change it."""
    return [str(folder), "--grpc-port", "0", "--repository-api", "--device", "cpu"]


@asynccontextmanager
async def swapping(
    clients: Clients,
    folder: Path,
    every_s: float,
    first: int = 2,
    most: float = inf,
    bad: int = 0,
) -> AsyncIterator["Swaps"]:
    """Change the model at regular intervals, `most` times, beginning with version `first`. Versions
    whose number is a multiple of `bad` have wrong scores, and the server must refuse them. If `bad`
    is 0, no version has wrong scores."""
    done = Swaps(first)

    async def load(factor: float | None) -> None:
        started = asyncio.get_running_loop().time()
        try:
            await clients.load(done.next)
        except Exception as error:  # noqa: BLE001  counted, and shown
            if factor is not None and _is_refusal(error):
                done.refused += 1
            else:
                done.failures.append(str(error))
        else:
            if factor is not None:
                done.failures.append(
                    f"the server accepted version {done.next} with factor {factor}"
                )
        done.took_s.append(asyncio.get_running_loop().time() - started)
        done.next += 1

    async def change() -> None:
        loop = asyncio.get_running_loop()
        next_at = loop.time() - every_s / 2  # the last change ends while there is load
        while len(done.took_s) < most:
            next_at += every_s
            await asyncio.sleep(max(0.0, next_at - loop.time()))
            factor = _BAD[done.next // bad % len(_BAD)] if bad and not done.next % bad else None
            await asyncio.to_thread(write_version, folder, done.next, factor)
            loading = asyncio.ensure_future(load(factor))
            try:
                await asyncio.shield(loading)
            except asyncio.CancelledError:
                await loading  # otherwise the version of the file would be unknown
                raise

    changing = asyncio.create_task(change())
    try:
        yield done
    finally:
        changing.cancel()
        await asyncio.wait([changing])


def _is_refusal(error: Exception) -> bool:
    """Return whether the error says that the server refused a version because its scores are
    wrong."""
    if isinstance(error, grpc.aio.AioRpcError):
        return bool(error.code() is grpc.StatusCode.INVALID_ARGUMENT)
    return isinstance(error, _RefusedError) and error.status == HTTPStatus.UNPROCESSABLE_ENTITY


@dataclass
class Swaps:
    """Records the changes of the model during a run."""

    next: int  # version
    took_s: list[float] = field(default_factory=list)
    refused: int = 0  # number of bad versions that were refused
    failures: list[str] = field(default_factory=list)
