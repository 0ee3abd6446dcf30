"""Creates the four works. A work is a workload for all servers: a model, images, and the right
answer for each image."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

from benchmarks.gpu.carried import data
from benchmarks.peers.servers.work import answer
from benchmarks.rows import ROOT
from benchmarks.serving.overhead import BODY_BYTES, jpeg_of
from loadtest.images import SAMPLES, load_images
from models import (
    BUILT_IN_MODEL,
    ChannelOrder,
    Classifier,
    DeviceKind,
    OutputKind,
    load_classifier,
    normalised,
    open_engine,
)
from models.engines.normalised import with_normalisation
from service.hosting.catalogue import pull, pulled, read_catalogue
from service.images.prepare import ImageLimits, prepare_image
from service.machine.cores import available_cores
from service.progress import download_progress

NOOP, DIGITS, SQUEEZENET, INT8 = "noop", "digits", "squeezenet", "int8"
WORKS = {
    NOOP: f"no-op, a body of {BODY_BYTES // 1000} kB",
    DIGITS: "digits, JPEG of 640 × 480",
    SQUEEZENET: "SqueezeNet 1.1, JPEG of 400 × 266",
    INT8: "SqueezeNet 1.1 in INT8, the same JPEG",
}

PHOTOGRAPHS = ROOT / "service" / "api" / "page" / "photographs"

TRAINED = "squeezenet1.1"  # the network's name in the catalogue

# The images that are timed. The answers to all images are checked.
_TIMED = {"1_pencil_on_paper.jpg", "cat.jpg"}


@dataclass(frozen=True)
class Case:
    """An image file and its right answer, `best`: the likeliest class and its probability. The
    class is None if all classes are equally likely."""

    image: bytes
    media_type: str
    best: tuple[int | None, float]

    @property
    def digest(self) -> str:
        """Return a digest of the image file."""
        return sha256(self.image).hexdigest()[:12]


@dataclass(frozen=True)
class Task:
    """A work: its images and its model. Servers are timed with the first image. The model is given
    both as a Convoy classifier and as an ONNX file."""

    cases: Sequence[Case]
    threads: int  # for one image, in a peer with one process
    within: float = 0.005  # the largest allowed difference of the best probability
    options: tuple[str, ...] = ()  # with which Convoy serves the model
    classifier: Classifier | None = None
    model: Path = Path()  # takes bytes, and normalises them in the graph

    @property
    def logits(self) -> bool:
        """Return whether softmax converts the scores to probabilities."""
        return not self.classifier or self.classifier.preprocessing.output is OutputKind.LOGITS

    @property
    def digest(self) -> str:
        """Return a digest of the model file."""
        return sha256(self.model.read_bytes()).hexdigest()[:12] if self.classifier else ""


def tasks(works: Sequence[str], folder: Path) -> dict[str, Task]:
    """Return the tasks of the workloads `works`, by name. Write the models below `folder`, and let
    Convoy's engine compute the right answers. Raises NotDownloadedError."""
    makers = {NOOP: _nothing, DIGITS: _digits, SQUEEZENET: _squeezenet, INT8: _int8}
    return {work: makers[work](folder) for work in works}


def _nothing(_: Path) -> Task:
    return Task([Case(jpeg_of(BODY_BYTES), "image/jpeg", (None, 0.001))], 1)


def _digits(folder: Path) -> Task:
    # A second thread would cost more than it saves, because the network takes only 0.05 ms.
    return _task(folder, DIGITS, BUILT_IN_MODEL, {}, SAMPLES, 1)


def squeezenet() -> tuple[Path, str]:
    """Return the trained network's file and its preset. If the file is missing, download it. Raises
    NotDownloadedError."""
    kept, folder = pulled(TRAINED), data()
    if kept is None and folder is not None:
        return folder / "squeezenet1.1-fp16.onnx", "caffe"
    if kept is None:
        with download_progress() as show:
            kept = pull(TRAINED, read_catalogue()[TRAINED], show)
    return kept, "imagenet"


def _squeezenet(folder: Path) -> Task:
    path, preset = squeezenet()
    return _task(folder, SQUEEZENET, path, {"preset": preset}, PHOTOGRAPHS, available_cores())


class _Calibration(CalibrationDataReader):  # type: ignore[misc]  # has no types
    """Passes preprocessed photographs to ONNX Runtime's quantizer, which calibrates with them."""

    def __init__(self, classifier: Classifier) -> None:
        name = classifier.network.proto.graph.input[0].name
        how = classifier.preprocessing
        self._left = [
            {name: normalised(_pixels(image.data, classifier)[np.newaxis], how)}
            for image in load_images(PHOTOGRAPHS)
        ]

    def get_next(self) -> dict[str, np.ndarray] | None:
        """Return the next photograph."""
        return self._left.pop() if self._left else None


def _int8(folder: Path) -> Task:
    path, preset = squeezenet()
    classifier = load_classifier(path, overrides={"preset": preset})
    file = folder / "squeezenet-int8.onnx"
    # quantize_static removes the weights from the given model, but `classifier` is not used again.
    quantize_static(
        classifier.network.proto,
        str(file),
        _Calibration(classifier),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        # All operators that take time. A softmax in 8 bits would have only 256 different
        # probabilities.
        op_types_to_quantize=["Conv", "Relu", "MaxPool", "Concat"],
    )
    task = _task(folder, INT8, file, {"preset": preset}, PHOTOGRAPHS, available_cores())
    # In a batch of another size, a value may be rounded to a neighbouring 8-bit code.
    return replace(task, within=0.02)


def _pixels(image: bytes, classifier: Classifier) -> np.ndarray:
    return prepare_image(image, classifier.preprocessing, ImageLimits()).run()


def _task(
    folder: Path, work: str, path: Path, overrides: Mapping[str, str], images: Path, threads: int
) -> Task:
    classifier = load_classifier(path, overrides=overrides)
    model = folder / f"{work}-of-bytes.onnx"
    proto = with_normalisation(classifier.network.proto, classifier.preprocessing)
    model.write_bytes(proto.SerializeToString())
    engine = open_engine(classifier, device=DeviceKind.CPU, max_batch=1, threads=0)
    flags = (part for name, value in overrides.items() for part in (f"--{name}", value))
    task = Task([], threads, options=(str(path), *flags), classifier=classifier, model=model)
    cases = []
    for image in sorted(load_images(images), key=lambda file: file.name not in _TIMED):
        (row,) = engine.run(_pixels(image.data, classifier)[np.newaxis]).scores
        top = answer(row, logits=task.logits)["predictions"][0]
        best = (int(top["index"]), top["probability"])
        cases.append(Case(image.data, image.media_type, best))
    engine.close()
    return replace(task, cases=cases)


def channels(task: Task) -> str:
    """Return the order of the colour channels in the model's input: "grey", "rgb" or "bgr"."""
    assert task.classifier is not None
    how = task.classifier.preprocessing
    return "grey" if len(how.mean) == 1 else "bgr" if how.channels is ChannelOrder.BGR else "rgb"
