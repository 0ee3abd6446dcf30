"""Creates classifiers for tests of engines, and computes their scores with the reference."""

from dataclasses import replace
from functools import partial

import numpy as np
import onnx
from numpy.typing import NDArray

from kernels.device.device import Device, Stream
from kernels.device.gpus import H200
from kernels.problems.binary_operation import BinaryOp
from kernels.problems.interpolation import Interpolation
from kernels.problems.pool import PoolKind
from kernels.tuning.heuristic import heuristic
from models.classifier import Classifier
from models.engines import tolerance
from models.engines.cuda_engine import CudaEngine
from models.engines.engine import Batch
from models.graph import Graph, Softmax, last_nodes
from models.onnx_loader import LoadedModel, load_proto
from models.plan import Plan
from models.preprocessing import (
    ChannelOrder,
    CropMode,
    Layout,
    Preprocessing,
    normalisation,
)
from models.rewrite import rewrite
from models.scores import OutputKind
from tests.support.models.graphs import GraphBuilder
from tests.support.models.reference import run_reference

H200_CHOICE = heuristic(H200)


def preprocessing_of(shape: tuple[int, ...], layout: Layout = Layout.NCHW) -> Preprocessing:
    """Return preprocessing for C×H×W or C×D×H×W. Its numbers differ between channels, so that
    swapped channels are noticed."""
    channels, *depth, height, width = shape
    return Preprocessing(
        height=height,
        width=width,
        crop_mode=CropMode.SQUASH,
        resize=height,
        interpolation=Interpolation.BILINEAR,
        channels=ChannelOrder.RGB,
        layout=layout,
        scale=1 / 64,
        mean=tuple(1.5 + 0.1 * c for c in range(channels)),
        std=tuple(0.8 + 0.05 * c for c in range(channels)),
        output=OutputKind.LOGITS,
        labels=(),
        frames=depth[0] if depth else None,
    )


def classifier_of(graph: Graph, layout: Layout = Layout.NCHW) -> Classifier:
    """Return a typed graph as a classifier, without an ONNX form."""
    shape = graph.shape(graph.inputs[0])
    if layout is Layout.NHWC:
        shape = (shape[-1], *shape[:-1])
    loaded = LoadedModel(graph.name, graph, onnx.ModelProto())
    classes = int(np.prod(graph.shape(graph.outputs[0])))
    preprocessing = preprocessing_of(shape, layout)
    if any(isinstance(node, Softmax) and not node.log for node in last_nodes(graph)):
        preprocessing = replace(preprocessing, output=OutputKind.PROBABILITIES)
    return Classifier(graph.name, loaded, preprocessing, classes)


def network_of(name: str, proto: onnx.ModelProto) -> Classifier:
    """Return an ONNX model as a classifier."""
    return classifier_of(load_proto(name, proto).graph)


def branching() -> Classifier:
    """Return a network with several branches. Some write into the same buffer, and some have
    different lengths."""
    b = GraphBuilder(0, x=(3, 8, 8))
    first = b.conv("first", "x", 16, 3)
    deep = b.conv("deep2", b.conv("deep1", first, 8, 1), 8, 3)
    wide = b.conv("wide", first, 24, 5)
    pooled = b.conv("pooled2", b.pool("pooled1", first, PoolKind.MAX, 3, pad=1), 8, 1)
    joined = b.concat("joined", deep, wide, pooled)
    left, right = b.conv("left", joined, 16, 3), b.conv("right", joined, 16, 1)
    y = b.binary("y", BinaryOp.ADD, left, right)
    graph = b.build(b.gemm("scores", b.reshape("flat", y, (16 * 8 * 8,)), 7))
    return classifier_of(rewrite(graph).graph)


def opened(classifier: Classifier, device: Device, max_batch: int = 1) -> CudaEngine:
    """Open an engine with Convoy's kernels, warm it up, and return it. The caller closes the
    engine."""
    engine = CudaEngine(classifier, device, max_batch=max_batch, choose=heuristic(device))
    engine.warm_up()
    return engine


class _Steps:
    """Runs a plan step by step instead of replaying its captured graph."""

    def __init__(self, engine: CudaEngine, plan: Plan) -> None:
        self._engine, self._plan = engine, plan

    def replay(self, _: Stream) -> None:
        self._engine._run_step_by_step(self._plan)


def scores_by_steps(engine: CudaEngine, images: Batch) -> NDArray[np.float32]:
    """Return the scores that the engine computes step by step, without captured graphs."""
    graphs = {key: replay.graph for key, replay in engine._replays.items()}
    for key, replay in engine._replays.items():
        replay.graph = _Steps(engine, engine._plans[key])
    try:
        return engine.run(images).scores
    finally:
        for key, graph in graphs.items():
            engine._replays[key].graph = graph


def with_one_output(graph: Graph) -> Graph:
    """Return the graph with only its first output."""
    return replace(graph, outputs=graph.outputs[:1])


def pixels(classifier: Classifier, n: int, seed: int = 0) -> NDArray[np.uint8]:
    """Return n images or clips that differ in colour and coarse pattern. The frames of a clip also
    differ."""
    *spatial, channels = classifier.preprocessing.image_shape
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (n, *[4] * len(spatial), channels))
    for axis, size in enumerate(spatial, 1):
        images = images.take(np.arange(size) * 4 // size, axis)
    noise = rng.integers(-20, 21, images.shape)
    return (images + noise).clip(0, 255).astype(np.uint8)


def reference_scores(classifier: Classifier, images: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return the scores that the loaded network, before rewriting, has in float64. There is one row
    per image."""
    multiplier, offset = normalisation(classifier.preprocessing)
    x = images * multiplier.astype(np.float64) + offset
    if classifier.preprocessing.layout is Layout.NCHW:
        x = np.moveaxis(x, -1, 1)
    graph = classifier.network.graph
    scores = run_reference(graph, {graph.inputs[0]: x})[graph.outputs[0]]
    return np.asarray(scores, np.float64).reshape(len(images), -1)


network_tolerance = partial(tolerance.network_tolerance, choose=H200_CHOICE)
"""The tolerance for the algorithms that are chosen for an H200. Algorithms for other devices are
similar."""
