"""Classifiers for engine tests, and what the reference says of them."""

from collections.abc import Callable
from dataclasses import replace
from math import prod, sqrt

import numpy as np
import onnx
from numpy.typing import NDArray

from kernels.convolution.algorithms import ConvChoice
from kernels.convolution.winograd import WinogradConv
from kernels.convolution.winograd_nonfused import NonfusedWinogradConv
from kernels.device.device import Device
from kernels.problems.conv import ConvProblem
from kernels.tuning.heuristic import H200, heuristic
from kernels.winograd.matrices import winograd_matrices
from kernels.winograd.reference import winograd_roundings
from models.classifier import Classifier
from models.engines.cuda_engine import CudaEngine
from models.graph import Conv, Gemm, GlobalPool, Graph
from models.onnx_loader import LoadedModel, load_proto
from models.preprocessing import (
    ChannelOrder,
    Fit,
    Layout,
    OutputKind,
    Preprocessing,
    normalisation,
)
from models.reference import run_reference
from tests.support.kernels.rounding import winograd_growth

Choose = Callable[[ConvProblem], ConvChoice]

H200_CHOICE = heuristic(H200)
"""What tolerances are for, unless they are told: other devices choose much the same."""


def preprocessing_of(shape: tuple[int, ...], layout: Layout = Layout.NCHW) -> Preprocessing:
    """Different for each channel, so that swapping two shows; `shape` is C×H×W or C×D×H×W."""
    channels, *depth, height, width = shape
    return Preprocessing(
        height=height,
        width=width,
        fit=Fit.STRETCH,
        resize=height,
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
    """A typed graph as a classifier; its ONNX form is not there."""
    shape = graph.shape(graph.inputs[0])
    if layout is Layout.NHWC:
        shape = (shape[-1], *shape[:-1])
    loaded = LoadedModel(graph.name, graph, onnx.ModelProto())
    classes = int(np.prod(graph.shape(graph.outputs[0])))
    return Classifier(graph.name, loaded, preprocessing_of(shape, layout), classes)


def network_of(name: str, proto: onnx.ModelProto) -> Classifier:
    """An ONNX model as a classifier."""
    return classifier_of(load_proto(name, proto).graph)


def opened(classifier: Classifier, device: Device, max_batch: int = 1) -> CudaEngine:
    """The engine on Convoy's kernels, warm; the caller closes it."""
    engine = CudaEngine(classifier, device, max_batch=max_batch, choose=heuristic(device))
    engine.warm_up()
    return engine


def with_one_output(graph: Graph) -> Graph:
    """The graph, its first output alone."""
    return replace(graph, outputs=graph.outputs[:1])


def pixels(classifier: Classifier, n: int, seed: int = 0) -> NDArray[np.uint8]:
    """n images that differ in colour and coarse pattern, as do the frames of a clip."""
    *spatial, channels = classifier.preprocessing.image_shape
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (n, *[4] * len(spatial), channels))
    for axis, size in enumerate(spatial, 1):
        images = images.take(np.arange(size) * 4 // size, axis)
    noise = rng.integers(-20, 21, images.shape)
    return (images + noise).clip(0, 255).astype(np.uint8)


def reference_scores(classifier: Classifier, images: NDArray[np.uint8]) -> NDArray[np.float64]:
    """What the network as loaded gives in float64, one row an image."""
    multiplier, offset = normalisation(classifier.preprocessing)
    x = images * multiplier.astype(np.float64) + offset
    if classifier.preprocessing.layout is Layout.NCHW:
        x = np.moveaxis(x, -1, 1)
    graph = classifier.network.graph
    scores = run_reference(graph, {graph.inputs[0]: x})[graph.outputs[0]]
    return np.asarray(scores, np.float64).reshape(len(images), -1)


def network_tolerance(graph: Graph, choose: Choose = H200_CHOICE) -> float:
    """How far float32 scores may lie from float64 ones, relative to the largest score.

    A sum of L products whose rounding errors are independent errs by about √L·u relative to its
    size, u = eps / 2 (Higham and Mary 2019, "A new approach to probabilistic rounding error
    analysis", theorem 3.1), any other node by a few u. Networks keep the size of activations from
    layer to layer, or no float32 would do; then the layers' errors add up, at most linearly.
    """
    u = float(np.finfo(np.float32).eps) / 2
    errors: list[float] = []
    for node in graph.nodes:
        if isinstance(node, Conv):
            errors.append(_conv_error(node.problem, choose))
        elif isinstance(node, Gemm):
            errors.append(sqrt(graph.shape(node.weight)[1]))
        elif isinstance(node, GlobalPool):
            errors.append(sqrt(prod(graph.shape(node.x)[1:])))
        else:
            errors.append(2)
    return u * sum(errors)


def _conv_error(problem: ConvProblem, choose: Choose) -> float:
    """Relative to the size of the sums, in u: √L, or what Winograd's algorithm makes of it."""
    algorithm, config = choose(problem)
    if isinstance(algorithm, WinogradConv | NonfusedWinogradConv):
        matrices = winograd_matrices(algorithm.m, algorithm.r, config.points)
        return float(
            winograd_growth(matrices) ** algorithm.axes
            * sqrt(winograd_roundings(problem, matrices))
        )
    return sqrt(prod(problem.filter_shape[1:]))


def relative_error(actual: NDArray[np.floating], expected: NDArray[np.floating]) -> float:
    """The largest error of an image, relative to its largest score."""
    return float((np.abs(actual - expected).max(axis=1) / np.abs(expected).max(axis=1)).max())
