"""What is proved of a device: checks, each of which says what it saw or raises what is wrong."""

import csv
import io
import json
import sys
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.gpu import carried
from benchmarks.gpu.clocks import clocks
from benchmarks.networks.sides import ConvoyNetwork
from benchmarks.serving.served import CONVOY, served
from kernels.device.compile import compile_all
from kernels.device.cuda_device import CudaDevice
from kernels.device.device import Device, Instantiation
from kernels.tuning.heuristic import heuristic
from kernels.tuning.micro import LATE_THREADS, late_launch
from kernels.tuning.timing import launcher
from models import BUILT_IN_MODEL, load_classifier
from models.classifier import Classifier
from models.engines.cuda_engine import CudaEngine
from models.engines.engine import Images
from models.engines.onnxruntime_engine import OnnxRuntimeEngine
from models.engines.proved_engine import check_images, prove
from models.engines.tolerance import relative_error, score_tolerance
from service.images.decode import ImageLimits, prepare_image
from tests.support.cases import CASES, INSTANTIATIONS
from tests.support.kernels.kernel_case import KernelCase, run
from tests.support.kernels.resources import CACHE

PHOTOGRAPHS = 20
REQUESTS = 10
REPLAYS = 10_000
CHAIN, CHAIN_REPLAYS = 16, 20
"""Launches of a row, and how often it is replayed."""


class NotProvedError(Exception):
    """A check saw something that is not right."""


@dataclass(frozen=True)
class Subject:
    """The device to prove, and the part of the cases that it gets: the simulator not all."""

    device: Device
    data: Path | None  # of SqueezeNet and photographs
    cases: Sequence[KernelCase] = CASES
    max_batch: int = 8
    photographs: int = PHOTOGRAPHS
    replays: int = REPLAYS  # of each graph
    server: Sequence[str] = CONVOY  # the program that serves on this device by --device cuda
    serve_squeezenet: bool = True
    engines: dict[str, tuple[CudaEngine, Classifier]] = field(default_factory=dict)  # warm ones

    @property
    def instantiations(self) -> list[Instantiation]:
        """Of the cases, each once."""
        each = (launch.instantiation for case in self.cases for launch in case.launches)
        return list(dict.fromkeys(each))


def first_cases() -> list[KernelCase]:
    """A case of every kernel template: the first that launches one."""
    found: dict[tuple[str, str], KernelCase] = {}
    for case in CASES:
        for launch in case.launches:
            each = launch.instantiation
            found.setdefault((each.source, each.kernel), case)
    return list(dict.fromkeys(found.values()))


def describe(subject: Subject) -> str:
    """Device, driver, compiler, clocks."""
    device = subject.device
    reading = ", ".join(f"{name} {value:g}" for name, value in clocks().items())
    free = device.memory().free / 1e9
    words = (device.name, device.driver, device.compiler, f"{free:.1f} GB free", reading)
    return "; ".join(word for word in words if word)


def load_kernels(subject: Subject) -> str:
    """Every instantiation compiles and loads."""
    device, wanted = subject.device, subject.instantiations
    if device.architecture != "cusim":
        compile_all(wanted, [device.architecture], CACHE)
    for instantiation in wanted:
        device.load(instantiation)
    return f"{len(wanted)} of {len(INSTANTIATIONS)} instantiations load"


def run_cases(subject: Subject) -> str:
    """Every case is within its bound of float64, and the same bits the second time."""
    wrong = []
    for case in subject.cases:
        try:
            if run(case, subject.device).tobytes() != run(case, subject.device).tobytes():
                wrong.append(f"{case}: other bits the second time")
        except AssertionError as error:
            wrong.append(f"{case}: {error}")
    if wrong:
        raise NotProvedError(f"{len(wrong)} cases are wrong: " + "; ".join(wrong[:5]))
    return f"{len(subject.cases)} of {len(CASES)} cases, each twice"


def classify_digits(subject: Subject) -> str:
    """The built-in model at every N."""
    _prove(subject, "digits", load_classifier(BUILT_IN_MODEL))
    return f"N = 1..{subject.max_batch} as ONNX Runtime"


def classify_photographs(subject: Subject) -> str:
    """SqueezeNet on photographs, in batches of every size: the label and the scores."""
    classifier, images, names = _squeezenet(subject)
    engine = _prove(subject, "squeezenet", classifier)
    choose = heuristic(subject.device)
    reference = OnnxRuntimeEngine(classifier, max_batch=1)
    expected = np.concatenate([reference.run(image[np.newaxis]) for image in images])
    reference.close()
    begin, worst = 0, 0.0
    while begin < len(images):
        n = begin % subject.max_batch + 1
        part = slice(begin, begin + n)
        scores, right = engine.run(images[part]), expected[part]
        error = relative_error(scores, right)
        worst = max(worst, error)
        if not error <= score_tolerance(classifier, right.min(), choose, n):
            raise NotProvedError(f"{names[part]} at N = {n}: off by {error:.1e} of the largest")
        if (scores.argmax(axis=1) != right.argmax(axis=1)).any():
            raise NotProvedError(f"{names[part]} at N = {n}: other labels")
        begin += n
    return f"{len(images)} photographs as ONNX Runtime, at most {worst:.1e} off"


def replay_graphs(subject: Subject) -> str:
    """A captured graph and its steps one by one give the same bits."""
    for name, n, engine, images in _every_graph(subject):
        if engine.run(images).tobytes() != engine.run_step_by_step(images).tobytes():
            raise NotProvedError(f"{name} at N = {n}: the graph and its steps differ")
    return f"{', '.join(subject.engines)} at every N"


def count_edges(subject: Subject) -> str:
    """As many launches of each captured graph as planned may begin before the one ahead ends."""
    early = 0
    for name, n, engine, _ in _every_graph(subject):
        planned, captured = engine.early_launches(n)
        if captured != planned:
            raise NotProvedError(
                f"{name} at N = {n}: {captured} of {planned} dependent launches may begin early;"
                " the capture made full edges of the others"
            )
        early += captured
    return f"{early} programmatic edges, as planned"


def wait_for_late_stores(subject: Subject) -> str:
    """A row of launches that store 100 µs after they let the next one begin adds up, each time."""
    device = subject.device
    stream = device.stream()
    launches = [late_launch(1), late_launch(1).renamed({"x": "y", "y": "x"})] * (CHAIN // 2)
    buffers = {name: device.allocate(4 * LATE_THREADS) for name in ("x", "y")}
    at = {name: each.address for name, each in buffers.items()}
    run = launcher(device, launches, [at], dependent=True)
    run(stream, 0)  # once before the capture, which may not load kernels
    with device.capture(stream) as graph:
        run(stream, 0)
    last = np.zeros(LATE_THREADS, np.float32)
    device.upload(at["x"], last, stream)
    for _ in range(CHAIN_REPLAYS):
        graph.replay(stream)
    device.download(last, at["x"], stream)
    stream.synchronize()
    for each in buffers.values():
        each.free()
    if (last != CHAIN * CHAIN_REPLAYS).any():
        raise NotProvedError(f"{CHAIN * CHAIN_REPLAYS} launches in a row added up to {last.min()}")
    return f"{CHAIN_REPLAYS} replays of {CHAIN} launches, each after the stores of the one before"


def replay_often(subject: Subject) -> str:
    """Replays give the bits of a graph without dependent launches, every time."""
    choose = heuristic(subject.device)
    for name, n, engine, images in _every_graph(subject):
        _, classifier = subject.engines[name]
        apart = ConvoyNetwork(classifier, subject.device, n, choose, "dependent launches")
        expected = apart.run(images).tobytes()
        apart.close()
        for replay in range(subject.replays):
            if engine.run(images).tobytes() != expected:
                raise NotProvedError(f"{name} at N = {n}: replay {replay} gives other bits")
    return f"{subject.replays:,} replays of each graph"


def _every_graph(subject: Subject) -> Iterator[tuple[str, int, CudaEngine, Images]]:
    """Network, N, engine and images of each captured graph."""
    if not subject.engines:
        raise NotProvedError("there is no engine to try")
    for name, (engine, classifier) in subject.engines.items():
        for n in engine.plans:
            yield name, n, engine, check_images(n, classifier.preprocessing.image_shape)


def free_memory(subject: Subject) -> str:
    """An engine that is opened, run and closed leaves as much memory free as before."""
    for engine, _ in subject.engines.values():
        engine.close()
    subject.engines.clear()
    classifier = load_classifier(BUILT_IN_MODEL)
    free = []
    for _ in range(2):
        engine = _opened(subject, classifier)
        engine.run(check_images(1, classifier.preprocessing.image_shape))
        engine.close()
        free.append(subject.device.memory().free)
    if free[0] != free[1]:
        raise NotProvedError(f"{free[0] - free[1]:,} bytes are not given back")
    return f"{free[1]:,} bytes free before and after"


def answer_requests(subject: Subject) -> str:
    """The server itself, over HTTP, on the device."""
    if subject.serve_squeezenet:
        classifier, images, _ = _squeezenet(subject)
        model, preset, options = _model(subject), "caffe", ["--max-batch", "8"]
        files = _photographs(subject)
    else:
        classifier = load_classifier(BUILT_IN_MODEL)
        model, preset, options = BUILT_IN_MODEL, None, ["--max-batch", "2"]
        files = sorted((BUILT_IN_MODEL.parent / "samples").iterdir())
        images = _decoded(classifier, files)
    reference = OnnxRuntimeEngine(classifier, max_batch=1)
    right = [int(reference.run(image[np.newaxis]).argmax()) for image in images[:REQUESTS]]
    reference.close()
    answers = []
    with served(
        model, preset, ["--device", "cuda", "--precision", "fp32", *options], subject.server
    ) as url:
        for file in files[:REQUESTS]:
            request = urllib.request.Request(
                f"{url}/v1/classify", file.read_bytes(), {"Content-Type": "image/jpeg"}
            )
            with urllib.request.urlopen(request, timeout=30) as answer:
                answers.append(json.load(answer)["results"][0]["predictions"][0]["index"])
        with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
            metrics = answer.read().decode()
    if answers != right:
        raise NotProvedError(f"classes {answers} are answered, ONNX Runtime has {right}")
    if f'device="{subject.device.name}' not in metrics:
        raise NotProvedError(f"the server does not run on {subject.device.name}")
    return f"{len(answers)} images over HTTP, all as ONNX Runtime has them"


CHECKS: dict[str, Callable[[Subject], str]] = {
    "device": describe,
    "kernels load": load_kernels,
    "kernels are right": run_cases,
    "digits": classify_digits,
    "photographs": classify_photographs,
    "graphs": replay_graphs,
    "edges": count_edges,
    "late stores": wait_for_late_stores,
    "replays": replay_often,
    "memory": free_memory,
    "server": answer_requests,
}
"""In order: a later one uses what an earlier one opened."""


def _opened(subject: Subject, classifier: Classifier) -> CudaEngine:
    choose = heuristic(subject.device)
    engine = CudaEngine(classifier, subject.device, max_batch=subject.max_batch, choose=choose)
    engine.warm_up()
    return engine


def _prove(subject: Subject, name: str, classifier: Classifier) -> CudaEngine:
    """A warm engine whose scores of built-in images are right; kept for later checks."""
    engine = _opened(subject, classifier)
    prove(engine, classifier, heuristic(subject.device))
    subject.engines[name] = engine, classifier
    return engine


def _model(subject: Subject) -> Path:
    if subject.data is None:
        raise NotProvedError("SqueezeNet and the photographs are not here; `carry` brings them")
    return subject.data / "squeezenet1.1-fp16.onnx"


def _photographs(subject: Subject) -> list[Path]:
    folder = _model(subject).parent / "images"
    rows = csv.DictReader(io.StringIO((folder / "labels.csv").read_text()))
    files = [folder / row["file"] for row in rows]
    there = [file for file in files if file.is_file()]
    return there[:: max(1, len(there) // subject.photographs)][: subject.photographs]


def _squeezenet(subject: Subject) -> tuple[Classifier, Images, list[str]]:
    """The network, photographs as it wants them, and their names."""
    classifier = load_classifier(
        _model(subject), overrides={"preset": "caffe", "precision": "fp32"}
    )
    files = _photographs(subject)
    return classifier, _decoded(classifier, files), [file.name for file in files]


def _decoded(classifier: Classifier, files: Iterable[Path]) -> Images:
    meaning, limits = classifier.preprocessing, ImageLimits(20_000_000, 50_000_000)
    return np.stack([prepare_image(file.read_bytes(), meaning, limits).run() for file in files])


def on_gpu() -> Subject:
    """All of it, on the GPU. Raises DeviceError."""
    return Subject(CudaDevice(cache=CACHE), carried.data())


def simulated(device: Device | None = None) -> Subject:
    """On the simulator: a case of each kernel, N = 1 and 2, one photograph, digits served."""
    from tests.cusim.device import CusimDevice  # noqa: PLC0415  (only where it is asked for)

    return Subject(
        device or CusimDevice(),
        carried.data(),
        cases=first_cases(),
        max_batch=2,
        photographs=1,
        replays=2,
        server=(sys.executable, "-m", "tests.support.servers.lost_device_server", "never"),
        serve_squeezenet=False,
    )
