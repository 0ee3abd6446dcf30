"""Checks the exported networks: whether Convoy loads them, their launches, and their errors.

An error is the largest difference from PyTorch's scores, relative to the image's largest score.
There is one of the model file run by ONNX Runtime alone, one of the loader's normal form run by it,
and one of the engine on the simulator.
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

from benchmarks.families.export import FAMILIES, SIZE, N
from benchmarks.rows import Row, commit
from cusim.build import FAST
from cusim.device import CusimDevice
from kernels.device.gpus import H200
from kernels.tuning.heuristic import heuristic
from models.classifier import Classifier
from models.engines.cuda_engine import CudaEngine
from models.engines.tolerance import relative_error
from models.errors import ModelError
from models.graph import Node, Reshape
from models.onnx_loader import load_proto
from models.plan import build_plan
from models.preprocessing import PRESETS, CropMode

IMAGE = (3, SIZE, SIZE)
PLAIN = replace(
    PRESETS["raw"].at(SIZE, SIZE), crop_mode=CropMode.SQUASH, resize=SIZE, scale=1 / 255
)


@dataclass(frozen=True)
class ReferenceScores:
    """Holds PyTorch's scores of some images."""

    images: NDArray[np.float32]
    scores: NDArray[np.float32]


def check(folder: Path, families: Sequence[str] = FAMILIES) -> Iterator[Row]:
    """Yield a row for each of the families' exports in the folder that `export` wrote."""
    for name in families:
        kept = np.load(folder / f"{name}.npz")
        expected = ReferenceScores(kept["images"], kept["scores"])
        for file in sorted(folder.glob(f"{name}.*.onnx")):
            _, exporter, batch, _ = file.name.rsplit(".", 3)
            row = {"family": name, "exporter": exporter, "batch": batch, "commit": commit()}
            yield row | _checked(file, expected)


def _checked(file: Path, expected: ReferenceScores) -> dict[str, Any]:
    proto = onnx.load(file)
    found: dict[str, Any] = {"file_error": _error_of(proto, expected, at_once=False)}
    try:
        loaded = load_proto(file.stem, proto, IMAGE)
    except ModelError as error:
        return found | {"loads": False, "reason": str(error)}
    classifier = Classifier(file.stem, loaded, PLAIN, expected.scores.shape[1])
    graph = classifier.rewritten.graph
    return found | {
        "loads": True,
        "nodes": len(proto.graph.node),
        "launches": len(build_plan(graph, PLAIN, 1, heuristic(H200)).steps),
        "launches_at_8": len(build_plan(graph, PLAIN, 8, heuristic(H200)).steps),
        "unfused": len([node for node in loaded.graph.nodes if _computes(node)]),
        "cpu_error": _error_of(loaded.proto, expected, at_once=True),
    }


def _computes(node: Node) -> bool:
    return not isinstance(node, Reshape)


def _error_of(proto: onnx.ModelProto, expected: ReferenceScores, *, at_once: bool) -> float:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    size = N if at_once else 1
    scores = [
        session.run(None, {name: expected.images[i : i + size]})[0] for i in range(0, N, size)
    ]
    return relative_error(np.concatenate(scores).reshape(N, -1), expected.scores)


def simulate(folder: Path, families: Sequence[str]) -> Iterator[Row]:
    """Yield a row for each family, by running one image on Convoy's kernels in the simulator."""
    for name in families:
        kept = np.load(folder / f"{name}.npz")
        proto = onnx.load(folder / f"{name}.dynamo.dynamic.onnx")
        network = load_proto(name, proto, IMAGE)
        classes = kept["scores"].shape[1]
        device = CusimDevice(FAST)
        classifier = Classifier(name, network, PLAIN, classes)
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
