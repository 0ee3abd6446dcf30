"""Changes a model under load, and compares latency with the same load without changes.

    python -m benchmarks.serving.swaps [--swaps N] [--every S] [--rounds N] [--rate R]
        [--record [FILE]] [--model FILE --images FOLDER]

Starts `convoy serve` with two sets of weights of the built-in model, or of another, which take
turns in one file, and asks by HTTP and by gRPC in open-loop Poisson arrivals. Time without and with
swaps alternates, so other work on the machine affects both. Each answer must have the scores of the
version that it says: those that the same weights give in this process. The exit status is 0 only if
no request failed and none was mixed up; the p99 with swaps over that without is printed.
"""

import argparse
import asyncio
import os
import shutil
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from http import HTTPStatus
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any, Self

import aiohttp
import grpc
import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from rich.console import Console
from rich.table import Table

from benchmarks.rows import RESULTS, add_record, append
from benchmarks.serving.overhead import where
from benchmarks.serving.protocols import file_of, v2_body, v2_message
from benchmarks.serving.served import logged as serving
from loadtest.clock import Clock, precise_clock
from loadtest.images import SAMPLES, ImageFile, load_images
from loadtest.journal import MIXED_UP, OK, Journal, Outcome
from loadtest.loops import Arrivals, arrivals, open_loop
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

RECORD = RESULTS / "service.jsonl"
NAME = "swapped"

# What the logits of odd versions are multiplied by, and what an answer may differ by in any batch.
# Clients that know of no versions take all answers for the same.
_FACTOR, _TOLERANCE = 0.975, 0.002

# The same of versions that must be refused: no number is left, or the order is turned round.
_BAD = float("nan"), -1.0
_MAX_OUTSTANDING = 500

# The longest round without swaps.
_QUIET_S = 60.0
_TIMEOUT_S, _LOAD_S = 20.0, 120.0  # a version is tried on idle cores, of which there may be few
_Answered = message_class("inference.ModelInferResponse")


def write_version(
    folder: Path, version: int, model: Path = BUILT_IN_MODEL, factor: float | None = None
) -> None:
    """Write the model's files for a version; all odd versions share weights, and so do all even
    ones, unless there is a `factor` of its logits."""
    served = folder / NAME
    if not served.exists():
        served.mkdir(parents=True)
        for beside in (model.with_suffix(".toml"), model.with_name("labels.txt")):
            if beside.exists():
                name = "model.toml" if beside.suffix == ".toml" else beside.name
                shutil.copy(beside, served / name)
    if factor is None:
        factor = _FACTOR if version % 2 else 1.0
    (served / "new").write_bytes(_file_of(model, factor))
    os.replace(served / "new", served / "model.onnx")


@cache
def _file_of(path: Path, factor: float) -> bytes:
    """Return a model whose logits are multiplied: no label changes by a positive factor."""
    model = onnx.load(path)
    graph = model.graph
    (last,) = (node for node in graph.node if graph.output[0].name in node.output)
    value = numpy_helper.from_array(np.array(factor, np.float32))
    graph.node.insert(0, helper.make_node("Constant", [], ["version.factor"], value=value))
    if last.op_type == "Softmax":
        scaled = helper.make_node("Mul", [last.input[0], "version.factor"], ["version.scaled"])
        last.input[0] = "version.scaled"
        graph.node.insert(len(graph.node) - 1, scaled)
    else:
        (index,) = (i for i, name in enumerate(last.output) if name == graph.output[0].name)
        last.output[index] = "version.unscaled"
        inputs = ["version.unscaled", "version.factor"]
        graph.node.append(helper.make_node("Mul", inputs, [graph.output[0].name]))
    data: bytes = model.SerializeToString()
    return data


def scores_of(
    folder: Path, images: Sequence[ImageFile], samples: Path = SAMPLES
) -> list[NDArray[np.float32]]:
    """Return the scores of each image in `samples` by the weights that the folder has now."""
    path = folder / NAME / "model.onnx"
    classifier = load_classifier(path)
    read = image_reader(Settings())
    engine = open_engine(classifier, device=DeviceKind.CPU, max_batch=1, threads=1).warm_up()
    try:
        return [
            engine.run([read(samples / image.name, classifier.preprocessing)]).scores[0]
            for image in images
        ]
    finally:
        engine.close()


def vectors_of(
    folder: Path, images: Sequence[ImageFile], samples: Path = SAMPLES
) -> list[NDArray[np.float32]]:
    """Return the embedding of each image, which all versions share."""
    classifier = load_classifier(folder / NAME / "model.onnx")
    inner = classifier.embedding
    assert isinstance(inner, Inner)
    read = image_reader(Settings())
    engine = open_engine(classifier, device=DeviceKind.CPU, max_batch=1, threads=1).warm_up()
    try:
        return [
            as_vectors(
                engine.run(
                    [read(samples / image.name, classifier.preprocessing)], [inner.name]
                ).inner[inner.name]
            )[0]
            for image in images
        ]
    finally:
        engine.close()


def first_version(
    folder: Path, images: Sequence[ImageFile], model: Path = BUILT_IN_MODEL, samples: Path = SAMPLES
) -> Sequence[Sequence[NDArray[np.float32]]]:
    """Write version 1, and return the images' scores by even versions and then by odd ones.

    Raises ValueError where the scores of half of the images do not tell them apart.
    """
    expected = []
    for version in (0, 1):
        write_version(folder, version, model)
        expected.append(scores_of(folder, images, samples))
    changes = [np.abs(even - odd).max() for even, odd in zip(*expected, strict=True)]
    if np.median(changes) <= 2 * _TOLERANCE:
        raise ValueError(f"both versions of {model} have the same scores of most images")
    return expected


class Clients:
    """Sends V2 requests over both protocols in turn and checks each answer; a context manager."""

    def __init__(
        self,
        url: str,
        grpc_address: str,
        images: Sequence[ImageFile],
        expected: Sequence[Sequence[NDArray[np.float32]]],
        vectors: Sequence[NDArray[np.float32]] = (),
    ) -> None:
        """Take `expected`, the scores of all images by even versions and those by odd ones.

        With `vectors`, the embeddings of all images, every other image sent by gRPC asks for that.
        """
        self._url = f"{url}/v2/models/{NAME}/infer"
        self._repository = f"{url}/v2/repository/models/{NAME}/load"
        self._address = grpc_address
        self._expected = expected
        sent = [file_of(image.data) for image in images]
        self._bodies = [v2_body(file) for file in sent]
        self._messages = [v2_message(file, NAME) for file in sent]
        self._vectors = vectors
        self._wanting = [_for_embedding(message) for message in self._messages]
        self.versions: Counter[int] = Counter()  # of the good answers
        self.embeddings = 0  # of them

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
        """Send the next image in turn, by HTTP or by gRPC."""
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
        """Return whether an image's scores, or its embedding, are those of the version that
        answered."""
        expected = self._vectors[turn] if embeds else self._expected[version % 2][turn]
        if values.shape != expected.shape or not np.allclose(values, expected, 0, _TOLERANCE):
            return Outcome(MIXED_UP)
        self.versions[version] += 1
        self.embeddings += embeds
        return Outcome(OK)

    async def load(self, number: int) -> None:
        """Have the server load what the folder has now. Raises what the call raises."""
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
    """Return a request for the embedding in place of the scores."""
    asked = message_class("inference.ModelInferRequest").FromString(message)
    asked.outputs.add(name="embedding")
    encoded: bytes = asked.SerializeToString()
    return encoded


class _RefusedError(Exception):
    """Says that the server's answer was not 200."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"HTTP {status}: {text}")
        self.status = status


def serve_options(folder: Path) -> list[str]:
    """Return options for `convoy serve` to serve the folder and let clients change its model."""
    return [str(folder), "--grpc-port", "0", "--repository-api", "--device", "cpu"]


@asynccontextmanager
async def swapping(
    clients: Clients,
    folder: Path,
    every_s: float,
    first: int = 2,
    most: float = inf,
    model: Path = BUILT_IN_MODEL,
    bad: int = 0,
) -> AsyncIterator["Swaps"]:
    """Change the model at regular intervals, `most` times, beginning with version `first`.

    Each version whose number `bad` divides is to be refused; 0: none.
    """
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
                done.failures.append(f"version {done.next}, of factor {factor}, is served")
        done.took_s.append(asyncio.get_running_loop().time() - started)
        done.next += 1

    async def change() -> None:
        loop = asyncio.get_running_loop()
        next_at = loop.time() - every_s / 2  # the last one ends while there is load
        while len(done.took_s) < most:
            next_at += every_s
            await asyncio.sleep(max(0.0, next_at - loop.time()))
            factor = _BAD[done.next // bad % len(_BAD)] if bad and not done.next % bad else None
            await asyncio.to_thread(write_version, folder, done.next, model, factor)
            loading = asyncio.ensure_future(load(factor))
            try:
                await asyncio.shield(loading)
            except asyncio.CancelledError:
                await loading  # or the file's version would be a mystery
                raise

    changing = asyncio.create_task(change())
    try:
        yield done
    finally:
        changing.cancel()
        await asyncio.wait([changing])


def _is_refusal(error: Exception) -> bool:
    """Return whether a server says that a version is not good enough."""
    if isinstance(error, grpc.aio.AioRpcError):
        return bool(error.code() is grpc.StatusCode.INVALID_ARGUMENT)
    return isinstance(error, _RefusedError) and error.status == HTTPStatus.UNPROCESSABLE_ENTITY


@dataclass
class Swaps:
    """Records the changes of the model during a run."""

    next: int  # version
    took_s: list[float] = field(default_factory=list)
    refused: int = 0  # bad versions
    failures: list[str] = field(default_factory=list)


@dataclass
class Result:
    """Holds the results of a run."""

    seconds: float  # with swaps
    rate: float
    swaps: int = 0
    failed_swaps: list[str] = field(default_factory=list)
    swap_p50_ms: float = 0.0
    requests: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    versions: int = 0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    p50_with_swaps_ms: float = 0.0
    p99_with_swaps_ms: float = 0.0
    ratios_by_round: list[float] = field(default_factory=list)  # of the p99
    resident_mb_before: float = 0.0
    resident_mb_after: float = 0.0

    @property
    def ratio(self) -> float:
        """Return p99 with swaps divided by p99 without."""
        return self.p99_with_swaps_ms / self.p99_ms


def _latencies(journal: Journal) -> NDArray[np.float64]:
    columns = journal.columns()
    good = columns.kind == 0
    latencies: NDArray[np.float64] = (columns.done - columns.intended)[good] * 1e3
    return latencies


def resident_mb(pid: int) -> float:
    """Return the memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


async def measure(
    clients: Clients,
    folder: Path,
    pid: int,
    swaps: int,
    every_s: float,
    rounds: int,
    rate: float,
    model: Path = BUILT_IN_MODEL,
) -> Result:
    """Load the server in rounds with and without swaps, in alternating order.

    A round with swaps goes on until its share of them has taken place; one without lasts as long,
    and a minute at most.
    """
    most = -(-swaps // rounds)
    seconds = most * every_s
    quiet, busy = Journal(), Journal()
    result = Result(seconds * rounds, rate)
    version, took = 2, list[float]()
    with precise_clock() as clock:
        await _load(clients, Journal(), clock, rate, min(5.0, seconds), 0)  # to warm up
        result.resident_mb_before = resident_mb(pid)
        for number in range(rounds):
            journals = Journal(), Journal()
            for swapped in (False, True) if number % 2 == 0 else (True, False):
                seed = number + 1  # of both, so that arrivals are the same
                if not swapped:
                    await _load(clients, journals[0], clock, rate, min(seconds, _QUIET_S), seed)
                    continue
                async with swapping(clients, folder, every_s, version, most, model) as done:
                    await _load(clients, journals[1], clock, rate, seconds, seed)
                    while len(done.took_s) < most:
                        await _load(clients, journals[1], clock, rate, every_s, seed + rounds)
                version = done.next
                took += done.took_s
                result.failed_swaps += done.failures
            p99s = [float(np.percentile(_latencies(journal), 99)) for journal in journals]
            result.ratios_by_round.append(round(p99s[1] / p99s[0], 3))
            for whole, part in zip((quiet, busy), journals, strict=True):
                _extend(whole, part)
        result.resident_mb_after = resident_mb(pid)
    result.swaps, result.versions = len(took) - len(result.failed_swaps), len(clients.versions)
    result.swap_p50_ms = float(np.median(took) * 1e3)
    outcomes: Counter[str] = Counter()
    for journal in (quiet, busy):
        columns = journal.columns()
        outcomes.update(columns.kinds[kind] for kind in columns.kind)
    result.requests = outcomes.total()
    result.failed = {kind: count for kind, count in outcomes.items() if kind != OK}
    result.p50_ms, result.p99_ms = map(float, np.percentile(_latencies(quiet), [50, 99]))
    marks = np.percentile(_latencies(busy), [50, 99])
    result.p50_with_swaps_ms, result.p99_with_swaps_ms = map(float, marks)
    return result


def _extend(whole: Journal, part: Journal) -> None:
    columns = part.columns()
    for intended, sent, done, kind in zip(*columns[:4], strict=True):
        whole.add(intended, sent, done, Outcome(columns.kinds[kind]))


async def _load(
    clients: Clients, journal: Journal, clock: Clock, rate: float, seconds: float, seed: int
) -> None:
    moments = clock.now() + arrivals(Arrivals.POISSON, rate, seconds, seed)
    await open_loop(moments, clients.send, journal, clock, _MAX_OUTSTANDING)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and return 0 if nothing failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.swaps")
    parser.add_argument("--swaps", type=int, default=200, help="in all (%(default)s)")
    parser.add_argument("--every", type=float, default=2.0, help="seconds (%(default)s)")
    parser.add_argument("--rounds", type=int, default=10, help="of both kinds (%(default)s)")
    parser.add_argument("--rate", type=float, default=100.0, help="requests/s (%(default)s)")
    add_record(parser, RECORD)
    parser.add_argument("--model", type=Path, default=BUILT_IN_MODEL, help="an ONNX file")
    parser.add_argument("--images", type=Path, default=SAMPLES, help="a folder of image files")
    options = parser.parse_args(arguments)
    images = load_images(options.images)
    with TemporaryDirectory() as name:
        folder = Path(name)
        expected = first_version(folder, images, options.model, options.images)
        with (
            TemporaryFile("w+") as log,
            serving([*serve_options(folder), "--no-access-log"], log) as (process, url, grpc),
        ):
            result = asyncio.run(
                _run(Clients(url, grpc, images, expected), folder, process.pid, options)
            )
    _show(Console(highlight=False), result)
    if options.record:
        about = {**where("uvicorn", "uvloop", "grpcio", "onnxruntime"), "part": "swaps"}
        setup = {"every_s": options.every, "model": options.model.stem}
        append(options.record, [{**about, **asdict(result), **setup}])
    return 1 if result.failed or result.failed_swaps else 0


async def _run(clients: Clients, folder: Path, pid: int, options: Any) -> Result:
    async with clients:
        every = options.swaps, options.every, options.rounds, options.rate
        return await measure(clients, folder, pid, *every, options.model)


def _show(console: Console, result: Result) -> None:
    table = Table("", "p50 ms", "p99 ms")
    table.add_row("without swaps", f"{result.p50_ms:.2f}", f"{result.p99_ms:.2f}")
    with_swaps = f"{result.p50_with_swaps_ms:.2f}", f"{result.p99_with_swaps_ms:.2f}"
    table.add_row("with swaps", *with_swaps)
    console.print(table)
    console.print(
        f"{result.swaps} swaps of {result.swap_p50_ms:.0f} ms, answers of {result.versions} "
        f"versions; {result.requests} requests, of which failed: {result.failed or 'none'}; "
        f"failed swaps: {result.failed_swaps or 'none'}\n"
        f"p99 with swaps over without: {result.ratio:.2f}, by round {result.ratios_by_round}\n"
        f"memory {result.resident_mb_before:.0f} MB before, {result.resident_mb_after:.0f} after"
    )


if __name__ == "__main__":
    sys.exit(main())
