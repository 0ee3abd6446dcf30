"""In each family of benchmarks/results/families.md, images of a batch stay independent, and the
rewritten graph has PyTorch's scores.

The files come from `python -m benchmarks.families export`, which needs torch and timm.
"""

import logging

import numpy as np
import onnx
import pytest

from benchmarks.families.check import plain
from benchmarks.families.export import CLASSES, EXPORTERS, FAMILIES, side_of
from models.classifier import Classifier
from models.engines.onnxruntime_engine import OnnxRuntimeEngine, SessionModel
from models.engines.prove import prove
from models.engines.tolerance import relative_error
from models.onnx_loader import load_proto
from tests.support import ROOT
from tests.support.models.reference import run_reference

FOLDER = ROOT / ".cache" / "families"
MAX_BATCH = 3


@pytest.mark.slow
@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_proved_in_batches_of_every_size(
    name: str, exporter: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = FOLDER / f"{name}.{exporter}.dynamic.onnx"
    if not file.is_file():
        pytest.skip(f"needs {file}, which `python -m benchmarks.families export` writes")
    side = side_of(name)
    network = load_proto(name, onnx.load(file), (3, side, side), opaque=True)
    classifier = Classifier(name, network, plain(side), CLASSES)
    engine = OnnxRuntimeEngine(SessionModel.of(classifier), max_batch=MAX_BATCH, threads=1)
    engine.warm_up()
    with caplog.at_level(logging.WARNING, "convoy"):
        assert prove(engine, classifier) == MAX_BATCH
    assert not caplog.records  # it tells the images apart, too
    engine.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_a_rewritten_family_has_the_scores_of_pytorch(name: str) -> None:
    file = FOLDER / f"{name}.dynamo.dynamic.onnx"
    if not file.is_file():
        pytest.skip(f"needs {file}, which `python -m benchmarks.families export` writes")
    kept = np.load(FOLDER / f"{name}.npz")
    side = side_of(name)
    network = load_proto(name, onnx.load(file), (3, side, side))
    graph = Classifier(name, network, plain(side), CLASSES).rewritten.graph
    # One image: more would take a second to a minute each.
    (scores,) = run_reference(graph, {graph.inputs[0]: kept["images"][:1]}, np.float32).values()
    assert relative_error(scores.reshape(1, -1), kept["scores"][:1]) < 1e-5
