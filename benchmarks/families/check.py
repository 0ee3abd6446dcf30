"""Checks whether Convoy loads each exported network. Counts the network's kernel launches, and
measures its errors.

An error is the largest difference from PyTorch's scores, relative to the image's largest score. It
is measured for ONNX Runtime with the model file, for ONNX Runtime with the model that Convoy's
loader writes, and for Convoy's kernels on the simulator.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from benchmarks.families.export import FAMILIES, SIZE, N, side_of
from benchmarks.rows import Row, commit
from cusim.build import FAST
from cusim.device import CusimDevice
from kernels.device.gpus import H200
from kernels.problems.precision import Precision
from kernels.tuning.heuristic import heuristic
from models.classifier import Classifier
from models.engines.cuda_engine import CudaEngine
from models.engines.tolerance import relative_error
from models.errors import ModelError
from models.graph import Node, Reshape
from models.onnx_loader import load_proto
from models.preprocessing import PRESETS, CropMode, Preprocessing
from models.reports.plan_report import plan_report

IMAGE = (3, SIZE, SIZE)


def plain(side: int = SIZE) -> Preprocessing:
    """Return the preprocessing of square images whose side is `side` pixels."""
    raw = PRESETS["raw"].at(side, side)
    return replace(raw, crop_mode=CropMode.SQUASH, resize=side, scale=1 / 255)


PLAIN = plain()


@dataclass(frozen=True)
class ReferenceScores:
    """Holds some images and the scores that PyTorch computed for them."""

    images: NDArray[np.float32]
    scores: NDArray[np.float32]


def check(
    folder: Path, families: Sequence[str] = FAMILIES, *, planned: bool = True
) -> Iterator[Row]:
    """Check each file that `export` wrote into the folder for these families, and yield a row of
    results for each file.

    If `planned`, the rows also have the number of kernel launches and their estimated time, which
    take long to compute.
    """
    for name in families:
        kept = np.load(folder / f"{name}.npz")
        expected = ReferenceScores(kept["images"], kept["scores"])
        for file in sorted(folder.glob(f"{name}.*.onnx")):
            _, exporter, batch, _ = file.name.rsplit(".", 3)
            row = {"family": name, "exporter": exporter, "batch": batch, "commit": commit()}
            yield row | _checked(file, expected, planned=planned)


def _checked(file: Path, expected: ReferenceScores, *, planned: bool) -> dict[str, Any]:
    proto = onnx.load(file)
    found: dict[str, Any] = {
        "file_error": relative_error(_scores(proto, expected, at_once=False), expected.scores)
    }
    try:
        loaded = load_proto(file.stem, proto, expected.images.shape[1:])
    except ModelError as error:
        return found | {"loads": False, "reason": str(error)}
    preprocessing = plain(expected.images.shape[-1])
    classifier = Classifier(file.stem, loaded, preprocessing, expected.scores.shape[1])
    scores = _scores(loaded.proto, expected, at_once=True)
    best, wanted = (each.argmax(axis=1) for each in (scores, expected.scores))
    return found | {
        "loads": True,
        "nodes": len(proto.graph.node),
        **(_planned(classifier) if planned else {}),
        "unfused": len([node for node in loaded.graph.nodes if _computes(node)]),
        "cpu_error": relative_error(scores, expected.scores),
        "top_1": bool((best == wanted).all()),
    }


def _planned(classifier: Classifier) -> dict[str, Any]:
    """Return the number of kernel launches on an H200. For fp16, also return two times: the
    estimated time, and the least time in which the GPU could run the launches at its peak rates."""
    found: dict[str, Any] = {}
    for n in (1, 8):
        at = "" if n == 1 else f"_at_{n}"
        report = plan_report(replace(classifier, precision=Precision.FP16), n, H200)
        found[f"launches{at}"] = len(plan_report(classifier, n, H200).steps)
        found[f"fp16_us{at}"] = round(report.timeline.us, 1)
        found[f"fp16_roofline_us{at}"] = round(report.roofline_us, 1)
    return found


def _computes(node: Node) -> bool:
    return not isinstance(node, Reshape)


def _scores(
    proto: onnx.ModelProto, expected: ReferenceScores, *, at_once: bool
) -> NDArray[np.float32]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    size = N if at_once else 1
    scores = [
        session.run(None, {name: expected.images[i : i + size]})[0] for i in range(0, N, size)
    ]
    return np.concatenate(scores).reshape(N, -1)


def simulate(folder: Path, families: Sequence[str]) -> Iterator[Row]:
    """Run one image of each family on Convoy's kernels in the simulator, and yield a row of results
    for each family."""
    for name in families:
        kept = np.load(folder / f"{name}.npz")
        proto = onnx.load(folder / f"{name}.dynamo.dynamic.onnx")
        side = side_of(name)
        network = load_proto(name, proto, (3, side, side))
        classes = kept["scores"].shape[1]
        device = CusimDevice(FAST)
        classifier = Classifier(name, network, plain(side), classes)
        engine = CudaEngine(classifier, device, max_batch=1, choose=heuristic(device))
        engine.warm_up()
        started = perf_counter()
        scores = engine.run(kept["images"][:1].astype(np.float32)).scores
        yield {
            "family": name,
            "commit": commit(),
            "simulated_error": relative_error(scores, kept["scores"][:1]),
            "simulated_s": round(perf_counter() - started, 1),
        }
        engine.close()
        device.close()
