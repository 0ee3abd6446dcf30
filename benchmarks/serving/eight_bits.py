"""Compares a model and its 8-bit form over HTTP, and measures what limits the gain.

    python -m benchmarks.serving.eight_bits MODEL MODEL_INT8 PHOTOS [--preset NAME] [--seconds N]
                                            [--rounds N] [--record [FILE]]

Two `convoy serve --device cpu` on all cores take turns (A B, B A), so other work on the machine
affects both. Closed loops of 1 and of 8 connections send a photograph as JPEG; then UINT8 pixels of
the model's size by V2, which are not decoded. The processor's time of an answer, of server and
client together, bounds what the cores can give: cores / time, if none of them ever waited.
`engine alone` is the same engine in this process. Then every second photograph, those that `convoy
quantize PHOTOS` did not see, goes to both, and their labels are compared.
"""

import argparse
import json
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from time import perf_counter, process_time
from typing import IO, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.rows import RESULTS, add_record, append
from benchmarks.serving.http_client import (
    Address,
    Connection,
    address_of,
    closed_loop,
    post_request,
)
from benchmarks.serving.overhead import where
from benchmarks.serving.protocols import Sent, v2_request
from benchmarks.serving.served import logged
from models import Classifier, load_classifier
from models.engines.engine import Images
from models.engines.onnxruntime_engine import OnnxRuntimeEngine, SessionModel
from service.cli.classify import with_folders
from service.cli.named import expected_of, names_of_labels
from service.engine.cores import available_cores
from service.hosting.presets import label_names

CONNECTIONS = (1, 8)
MARGIN = 0.1
"""The least difference of the float model's two best probabilities for its label to count as
clear."""

RECORD = RESULTS / "service.jsonl"
FLOAT, EIGHT_BITS = "float", "8 bits"
ALONE, JPEG, PIXELS = "engine alone", "JPEG", "UINT8 pixels"

Seconds = Callable[[], float]
_Loops = Mapping[str, tuple[Callable[[], list[float]], Seconds]]


@dataclass(frozen=True)
class Measurement:
    """Holds the results of one model with one kind of request."""

    model: str
    kind: str
    at_once: int  # images, or connections
    images: int
    images_a_second: float
    p50_ms: float
    cpu_ms: float  # of the processor, an image


@dataclass(frozen=True)
class Labels:
    """Counts right labels on photographs that calibration did not see."""

    images: int
    kept: int
    clear: int
    kept_clear: int
    named: int  # after a label
    right: int  # of those, of the float model
    right_in_8_bits: int


@dataclass
class _Turns:
    """Collects the results of one model in all its turns."""

    took: list[float]  # seconds of a request
    seconds: float = 0.0
    cpu_s: float = 0.0


def in_turn(loops: _Loops, rounds: int) -> dict[str, _Turns]:
    """Run each model's loop once a round, in alternating order; each loop comes with a function
    that gives the processor seconds so far."""
    turns = {name: _Turns([]) for name in loops}
    for number in range(rounds):
        for name in sorted(loops, key=list(loops).index, reverse=number % 2 == 1):
            loop, cpu_s = loops[name]
            begun, spent = perf_counter(), cpu_s()
            turns[name].took += loop()
            turns[name].seconds += perf_counter() - begun
            turns[name].cpu_s += cpu_s() - spent
    return turns


def measurements(
    turns: Mapping[str, _Turns], kind: str, at_once: int, images: int = 1
) -> list[Measurement]:
    """Return a row for each model, for requests with this many images."""
    rows = []
    for name, taken in turns.items():
        n = images * len(taken.took)
        p50_ms = 1e3 * statistics.median(taken.took)
        cpu_ms = 1e3 * taken.cpu_s / n
        rows.append(Measurement(name, kind, at_once, n, n / taken.seconds, p50_ms, cpu_ms))
    return rows


def cpu_of(pid: int) -> float:
    """Return the processor seconds that a process and this one have used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])  # in its own code and in the kernel's
    return ticks / os.sysconf("SC_CLK_TCK") + process_time()


def engine_loop(engine: OnnxRuntimeEngine, images: Images, seconds: float) -> list[float]:
    """Return the seconds of each run of a batch, run for about `seconds`."""
    took: list[float] = []
    deadline = perf_counter() + seconds
    while (begun := perf_counter()) < deadline:
        engine.run(images)
        took.append(perf_counter() - begun)
    return took


def compared(answers: Mapping[str, Sequence[Any]], right: Sequence[Sequence[str]]) -> Labels:
    """Compare the models' predictions, the two best for each photograph, with the right names."""
    images = kept = clear = kept_clear = named = 0
    hits = dict.fromkeys(answers, 0)
    for before, after, names in zip(answers[FLOAT], answers[EIGHT_BITS], right, strict=True):
        same = before[0]["label"] == after[0]["label"]
        is_clear = before[0]["probability"] - before[1]["probability"] >= MARGIN
        images += 1
        kept += same
        clear += is_clear
        kept_clear += same and is_clear
        named += bool(names)
        for name, best in ((FLOAT, before), (EIGHT_BITS, after)):
            hits[name] += bool({*names} & {*label_names(best[0]["label"])})
    return Labels(images, kept, clear, kept_clear, named, hits[FLOAT], hits[EIGHT_BITS])


def _predictions(address: Address, files: Sequence[Path]) -> list[Any]:
    connection = Connection(address)
    found = []
    for file in files:
        request = post_request("/v1/classify?top_k=2", file.read_bytes(), "image/jpeg")
        answer = connection.exchange(request).partition(b"\r\n\r\n")[2]
        found.append(json.loads(answer)["results"][0]["predictions"])
    connection.close()
    return found


def _table(rows: Sequence[Measurement], cores: int) -> Table:
    table = Table("", "at once", "", "images/s", "p50 ms", "CPU ms", "at most images/s", "gain")
    base: Measurement | None = None
    for row in rows:
        base = row if row.model == FLOAT else base
        gain = row.images_a_second / base.images_a_second if base else 1.0
        numbers = f"{row.images_a_second:.1f}", f"{row.p50_ms:.2f}", f"{row.cpu_ms:.2f}"
        bound = f"{cores / row.cpu_ms * 1e3:.1f}"
        shown = "" if row is base else f"{gain:.2f}"
        table.add_row(row.kind, str(row.at_once), row.model, *numbers, bound, shown)
    return table


def _alone(models: Mapping[str, Classifier], seconds: float, rounds: int) -> list[Measurement]:
    rows = []
    with ExitStack() as stack:
        engines = {}
        for name, model in models.items():
            session, cores = SessionModel.of(model), available_cores()
            engine = OnnxRuntimeEngine(session, max_batch=max(CONNECTIONS), threads=cores)
            stack.callback(engine.close)
            engine.warm_up()
            engines[name] = engine
        for n in CONNECTIONS:
            images = np.stack([_noise(models)] * n)
            loops: _Loops = {
                name: (partial(engine_loop, engine, images, seconds), process_time)
                for name, engine in engines.items()
            }
            rows += measurements(in_turn(loops, rounds), ALONE, n, n)
    return rows


def _noise(models: Mapping[str, Classifier]) -> Images:
    shape = next(iter(models.values())).preprocessing.image_shape
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def _serve(
    stack: ExitStack, log: IO[str], paths: Mapping[str, Path], preset: str | None
) -> dict[str, tuple[Address, Seconds]]:
    """Return each model's server's address, and a function for the processor seconds that it has
    used."""
    servers: dict[str, tuple[Address, Seconds]] = {}
    for name, path in paths.items():
        options = [str(path), "--device", "cpu", "--no-access-log"]
        options += ["--preset", preset] if preset else []
        process, url, _ = stack.enter_context(logged(options, log))
        servers[name] = address_of(url), partial(cpu_of, process.pid)
    return servers


def _by_http(
    servers: Mapping[str, tuple[Address, Seconds]],
    kinds: Mapping[str, Mapping[str, bytes]],
    seconds: float,
    rounds: int,
) -> list[Measurement]:
    rows = []
    for kind, requests in kinds.items():
        for connections in CONNECTIONS:
            loops: _Loops = {
                name: (partial(closed_loop, at, requests[name], connections, seconds), cpu_s)
                for name, (at, cpu_s) in servers.items()
            }
            in_turn(loops, 1)  # until the batcher knows the latencies
            rows += measurements(in_turn(loops, rounds), kind, connections)
    return rows


def main(command_line: Sequence[str] | None = None) -> None:
    """Measure, show, and write down what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.eight_bits")
    parser.add_argument("model", type=Path, help="in float")
    parser.add_argument("eight_bits", type=Path, metavar="MODEL_INT8")
    parser.add_argument("photos", type=Path, help="a folder of JPEG files")
    parser.add_argument("--preset", default=None)
    parser.add_argument("--seconds", type=float, default=3, help="of load a turn (%(default)s)")
    parser.add_argument("--rounds", type=int, default=4, help="turns of each (%(default)s)")
    add_record(parser, RECORD)
    asked = parser.parse_args(command_line)
    held = list(with_folders([asked.photos]))[1::2]
    if not held:
        parser.error(f"{asked.photos} has fewer than two photographs")
    paths = {FLOAT: asked.model, EIGHT_BITS: asked.eight_bits}
    preset = {"preset": asked.preset} if asked.preset else {}
    models = {name: load_classifier(path, overrides=preset) for name, path in paths.items()}
    jpeg = sorted(held, key=lambda file: file.stat().st_size)[len(held) // 2].read_bytes()
    noise = _noise(models)
    pixels = Sent(PIXELS, "UINT8", (1, *noise.shape), noise.tobytes())
    kinds = {
        JPEG: dict.fromkeys(paths, post_request("/v1/classify", jpeg, "image/jpeg")),
        PIXELS: {name: v2_request(pixels, model.name) for name, model in models.items()},
    }
    rows = _alone(models, asked.seconds, asked.rounds)
    with TemporaryFile("w+", encoding="utf-8") as log, ExitStack() as stack:
        servers = _serve(stack, log, paths, asked.preset)
        rows += _by_http(servers, kinds, asked.seconds, asked.rounds)
        answers = {name: _predictions(at, held) for name, (at, _) in servers.items()}
    names = names_of_labels(models[FLOAT].preprocessing.labels)
    found = compared(answers, [expected_of(file, names) for file in held])
    console = Console(highlight=False, width=110)
    console.print(_table(rows, available_cores()))
    console.print(
        f"Over HTTP, of {found.images} photographs, {found.kept} labels stay, {found.kept_clear} of"
        f" the {found.clear} whose two best probabilities are {MARGIN:g} apart; of {found.named}"
        f" named after a label {found.right_in_8_bits} are right, {found.right} before"
    )
    if asked.record:
        about = {**where("onnxruntime", "uvicorn", "uvloop"), "part": "eight bits"}
        append(asked.record, [{**about, **asdict(row)} for row in rows])
        append(asked.record, [{**about, **asdict(found)}])


if __name__ == "__main__":
    main()
