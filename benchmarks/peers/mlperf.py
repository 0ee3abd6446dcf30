"""Measures Convoy and ONNX Runtime with MLPerf's load generator. Convoy is measured in this process
and over HTTP.

    python -m benchmarks.peers.mlperf [--work NAME] [--device NAME] [--out FOLDER] [--record [FILE]]
    python -m benchmarks.peers.mlperf --docs

The scenario SingleStream sends one image as soon as the previous answer has arrived. The scenario
MultiStream sends eight images as soon as all previous answers have arrived. `mlcommons-loadgen` is
installed once, from the package index into a separate environment. This load generator times the
queries and writes log files below FOLDER, in one folder per side (Convoy or ONNX Runtime) and
scenario. The table is read from these files. On a machine with a GPU, the same command measures the
GPU with `--device auto`.
"""

import argparse
import importlib
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.environments import Environment, environment
from benchmarks.peers.__main__ import CACHE
from benchmarks.peers.catalogue import CONVOY, Setting, form_request
from benchmarks.peers.comparison import Contender, started, top_of
from benchmarks.peers.works import DIGITS, NOOP, WORKS, Task, tasks
from benchmarks.rows import RESULTS, ROOT, Row, add_record, append, commit, fill, markdown, read
from benchmarks.serving.http_client import Connection
from benchmarks.serving.overhead import where
from models import DeviceKind, open_engine
from models.session import open_session
from service.images.prepare import ImageLimits, prepare_image
from service.machine.cores import available_cores

LOADGEN = "mlcommons-loadgen==6.0.17"
RECORD = RESULTS / "mlperf.jsonl"
DOCS = ROOT / "docs" / "comparison.md"
BEGIN, END = "<!-- benchmarks.peers.mlperf -->", "<!-- end of benchmarks.peers.mlperf -->"

SCENARIOS = {"SingleStream": 1, "MultiStream": 8}
"""The number of images in a query, by scenario."""

# The number of queries from which MLPerf accepts the percentile of MultiStream.
QUERIES = 662

# The number of answers with which a side is warmed up before the load generator begins.
_WARM_UPS = 5

_PERCENTILES = {"p50_us": "50.00", "p90_us": "90.00", "p99_us": "99.00"}

Answer = Callable[[Sequence[int]], object]
"""A function that computes the classes of the images with the given indices, and then returns."""

Side = Callable[[Task, str, str], Any]


@contextmanager
def _alone(task: Task, _work: str, _device: str) -> Iterator[Answer]:
    """Yield a function that runs ONNX Runtime in this process, on images that are already
    decoded."""
    session = open_session(task.model.read_bytes(), available_cores())
    name, pixels = session.get_inputs()[0].name, _pixels(task)
    yield lambda images: session.run(None, {name: pixels[list(images)]})


@contextmanager
def _in_process(task: Task, _work: str, device: str) -> Iterator[Answer]:
    """Yield a function that runs Convoy's engine in this process, on images that are already
    decoded."""
    assert task.classifier is not None
    engine = open_engine(
        task.classifier,
        device=DeviceKind(device),
        max_batch=max(SCENARIOS.values()),
        threads=available_cores(),
    ).warm_up()
    pixels = _pixels(task)
    yield lambda images: engine.run(pixels[list(images)])
    engine.close()


@contextmanager
def _decoding(task: Task, _work: str, _device: str) -> Iterator[Answer]:
    """Yield a function that decodes JPEG files in one thread and runs ONNX Runtime, all in this
    process."""
    session = open_session(task.model.read_bytes(), available_cores())
    name = session.get_inputs()[0].name
    yield lambda images: session.run(
        None, {name: np.stack([_decoded(task, image) for image in images])}
    )


@contextmanager
def _by_http(task: Task, work: str, device: str) -> Iterator[Answer]:
    """Start a Convoy server. Yield a function that sends JPEG files to it, in a form, over one
    connection."""
    setting = Setting("as it comes", {"options": ["--device", device]})
    contender = Contender(CONVOY, Environment(Path(sys.prefix), {}))
    with (
        tempfile.TemporaryDirectory(prefix="convoy-mlperf-") as folder,
        started(contender, setting, work, task, Path(folder) / work) as server,
    ):
        connection = Connection(server.address)

        def answer(images: Sequence[int]) -> object:
            files = [task.cases[image].image for image in images]
            return top_of(connection.exchange(form_request(CONVOY.path, files, "image/jpeg")))

        yield answer
        connection.close()


SIDES: Mapping[str, Side] = {
    "ONNX Runtime alone, pixels": _alone,
    "Convoy in process, pixels": _in_process,
    "ONNX Runtime alone, JPEG": _decoding,
    "Convoy by HTTP, JPEG": _by_http,
}


def _decoded(task: Task, image: int) -> Any:
    assert task.classifier is not None
    how = task.classifier.preprocessing
    return prepare_image(task.cases[image].image, how, ImageLimits()).run()


def _pixels(task: Task) -> Any:
    return np.stack([_decoded(task, image) for image in range(len(task.cases))])


def drive(
    loadgen: Any,
    scenario: str,
    answer: Answer,
    images: int,
    seconds: float,
    queries: int,
    out: Path,
) -> dict[str, float | str]:
    """Run the load generator in one scenario. Return the latency percentiles in µs, and whether the
    load generator calls the result valid."""

    def issue(query: Sequence[Any]) -> None:
        answer([sample.index for sample in query])
        done = [loadgen.QuerySampleResponse(sample.id, 0, 0) for sample in query]
        loadgen.QuerySamplesComplete(done)

    out.mkdir(parents=True, exist_ok=True)
    settings = loadgen.TestSettings()
    settings.scenario = getattr(loadgen.TestScenario, scenario)
    settings.mode = loadgen.TestMode.PerformanceOnly
    settings.min_duration_ms = round(seconds * 1000)
    settings.min_query_count = queries
    # The load generator creates all queries before it begins. It creates more queries if it expects
    # low latencies. With too few queries, the run would be too short to be valid.
    first = range(min(SCENARIOS[scenario], images))
    fastest_ns = min(_nanoseconds(partial(answer, first)) for _ in range(_WARM_UPS))
    settings.single_stream_expected_latency_ns = fastest_ns // 2
    settings.multi_stream_expected_latency_ns = fastest_ns // 2
    settings.multi_stream_samples_per_query = SCENARIOS["MultiStream"]
    log = loadgen.LogSettings()
    log.enable_trace = False
    log.log_output.outdir = str(out)
    log.log_output.copy_summary_to_stdout = False
    system = loadgen.ConstructSUT(issue, lambda: None)
    library = loadgen.ConstructQSL(images, images, lambda _: None, lambda _: None)
    try:
        loadgen.StartTestWithLogSettings(system, library, settings, log)
    finally:
        loadgen.DestroyQSL(library)
        loadgen.DestroySUT(system)
    return summary((out / "mlperf_log_summary.txt").read_text())


def _nanoseconds(function: Callable[[], object]) -> int:
    begun = perf_counter_ns()
    function()
    return perf_counter_ns() - begun


def summary(text: str) -> dict[str, float | str]:
    """Return the latency percentiles in µs, and whether the result is valid. `text` is the load
    generator's summary."""
    verdict = re.search(r"Result is : (\w+)", text)
    if verdict is None:
        raise ValueError(f"the load generator's summary has no result: {text[:200]!r}")
    found: dict[str, float | str] = {"result": verdict[1]}
    for name, percent in _PERCENTILES.items():
        (ns,) = re.findall(rf"^{percent} percentile latency \(ns\) +: (\d+)", text, re.MULTILINE)
        found[name] = round(int(ns) / 1e3, 1)
    return found


def measure(
    loadgen: Any, work: str, device: str, seconds: float, queries: int, out: Path
) -> list[Row]:
    """Measure each side (Convoy or ONNX Runtime) in each scenario, and return a row of results for
    each."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="convoy-mlperf-") as folder:
        task = tasks([work], Path(folder))[work]
        for side, opened in SIDES.items():
            with opened(task, work, device) as answer:
                for scenario in SCENARIOS:
                    logs = out / f"{side} {scenario}".lower().replace(",", "").replace(" ", "-")
                    found = drive(
                        loadgen, scenario, answer, len(task.cases), seconds, queries, logs
                    )
                    row = {"work": work, "device": device, "side": side, "scenario": scenario}
                    rows.append({**row, **found})
    return rows


# Published results of ResNet-50 in INT8: p50 in µs for SingleStream and for MultiStream.
PUBLISHED = {
    "L4, TensorRT": (346, 806, "inference_results_v3.1", "L4x1_TRT"),
    "A100, TensorRT": (470, 681, "inference_results_v3.0", "A100-PCIe-80GBx1_TRT"),
    "A100, Triton": (526, 962, "inference_results_v3.0", "A100-PCIe-80GBx1_TRT_Triton"),
}


def table(rows: Sequence[Row]) -> str:
    """Return a table in Markdown. It has the last recorded results, and results that others have
    published for GPUs."""
    heading = ("system", "N = 1: p50 / p99, µs", "N = 8: p50 / p99, µs")
    lines = []
    rows = [row for row in rows if row["date"] == rows[-1]["date"]]
    for side in dict.fromkeys(row["side"] for row in rows):
        own = {row["scenario"]: row for row in rows if row["side"] == side}
        cells = [f"{own[each]['p50_us']:,.0f} / {own[each]['p99_us']:,.0f}" for each in SCENARIOS]
        lines.append((side, *cells))
    published = [
        (
            f"ResNet-50 in INT8, {name} ([{repository}](https://github.com/mlcommons/{repository}),"
            f" `{system}`)",
            f"{one} / –",
            f"{eight} / –",
        )
        for name, (one, eight, repository, system) in PUBLISHED.items()
    ]
    if not rows:
        return f"Nothing has been measured yet. Published:\n\n{markdown(heading, *published)}"
    last = rows[-1]
    return (
        f"{WORKS[last['work']]}; device {last['device']}, {last['cpu']}, {last['cores']} cores, "
        f"{last['date'][:10]}, commit {last['commit']}; the last three rows are published results:"
        "\n\n" + markdown(heading, *lines, *published)
    )


def main(command_line: Sequence[str] | None = None) -> None:
    """Measure, print, and write the requested files."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers.mlperf",
        description="Let MLPerf's load generator drive Convoy compared with ONNX Runtime alone.",
    )
    works = [work for work in WORKS if work != NOOP]
    parser.add_argument(
        "--work", choices=works, default=DIGITS, help="work to measure (%(default)s)"
    )
    devices = [kind.value for kind in DeviceKind]
    parser.add_argument(
        "--device", choices=devices, default="auto", help="Convoy's device (%(default)s)"
    )
    parser.add_argument(
        "--seconds", type=float, default=10, help="least seconds for each scenario (%(default)s)"
    )
    parser.add_argument(
        "--queries", type=int, default=QUERIES, help="least number of queries (%(default)s)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "build" / "mlperf",
        metavar="FOLDER",
        help="folder for the load generator's logs (build/mlperf)",
    )
    add_record(parser, RECORD)
    parser.add_argument("--docs", action="store_true", help=f"only write {DOCS.name}'s table")
    arguments = parser.parse_args(command_line)
    if arguments.docs:
        text = DOCS.read_text(encoding="utf-8")
        DOCS.write_text(fill(text, BEGIN, END, table(read(RECORD))), encoding="utf-8")
        return
    if arguments.record == RECORD and commit().endswith("+"):
        parser.error("--record: the sources have changes that are not committed; commit them first")
    console = Console(highlight=False)
    installed = environment("loadgen", [LOADGEN], CACHE, console.print)
    sys.path += [str(folder) for folder in installed.folder.glob("lib/*/site-packages")]
    loadgen = importlib.import_module("mlperf_loadgen")
    stands = {**where("numpy", "onnxruntime", "pillow"), **installed.versions}
    rows = [
        {**stands, **row}
        for row in measure(
            loadgen,
            arguments.work,
            arguments.device,
            arguments.seconds,
            arguments.queries,
            arguments.out / arguments.work,
        )
    ]
    console.print(table(rows), soft_wrap=True, markup=False)
    for row in rows:
        if row["result"] != "VALID":
            console.print(f"{row['side']}, {row['scenario']}: {row['result']} by MLPerf's rules")
    console.print(f"the load generator's logs: {arguments.out / arguments.work}", soft_wrap=True)
    if arguments.record:
        append(arguments.record, rows)


if __name__ == "__main__":
    main()
