"""The rounding error that correct scores may have, derived from the arithmetic, not measured."""

from collections.abc import Callable
from math import log, prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.convolution.algorithms import Algorithm, ConvChoice
from kernels.convolution.tensor_winograd import TensorWinogradConv
from kernels.convolution.winograd import WinogradConv
from kernels.convolution.winograd_nonfused import NonfusedWinogradConv
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import HALF, Precision
from kernels.winograd.matrices import winograd_matrices
from kernels.winograd.reference import winograd_growth, winograd_roundings
from models.classifier import Classifier
from models.graph import Conv, Gemm, GlobalPool, Graph
from models.onnx_loader import Opaque
from models.preprocessing import OutputKind

Choice = Callable[[ConvProblem], ConvChoice]


_ROUNDED = 2.0**13
"""The relative error of rounding a number to 11 bits, in units of u."""

_FACTORS = {
    Precision.FP32: 0.0,
    Precision.TF32: 2 * _ROUNDED,  # x and the weights
    Precision.TF32X3: 3 * 4 + 2 * 24,  # 2^-22 thrice; 24 truncated sums of products in a chunk
    Precision.FP16: _ROUNDED,  # the weights; x was rounded where it was stored
}
"""The relative error of a product's factors by precision, in units of u."""


def network_tolerance(graph: Graph, choose: Choice | None = None) -> float:
    """The largest difference allowed between computed and float64 scores, over the largest score.

    A sum of L products whose rounding errors are independent errs by about √L·u relative to its
    size, u = eps / 2 (Higham and Mary 2019, "A new approach to probabilistic rounding error
    analysis", theorem 3.1), any other node by a few u. Activations have about the same size in all
    layers; then the layers' errors add up, at most linearly. A value that is stored as float16 is
    rounded to 11 bits, 2^13 u. Without `choose` every
    convolution sums its products directly. An opaque node errs by as much as the nodes inside.
    """
    u = float(np.finfo(np.float32).eps) / 2
    errors: list[float] = []
    for node in graph.nodes:
        if graph.values[node.output].stored == HALF:
            errors.append(_ROUNDED)
        if isinstance(node, Conv):
            errors.append(_conv_error(node.problem, choose))
            if node.problem.prologue is not None:
                errors.append(2)  # as the node that it was
        elif isinstance(node, Gemm):
            errors.append(sqrt(graph.shape(node.weight)[1]))
            if graph.values[node.x].stored == HALF:
                errors.append(_ROUNDED)  # its weights
        elif isinstance(node, GlobalPool):
            errors.append(sqrt(prod(graph.shape(node.x)[1:])))
        elif isinstance(node, Opaque):
            errors += [2 + sqrt(terms) + _ROUNDED * node.halves for terms in node.sums]
        else:
            errors.append(2)
    return u * sum(errors)


def score_tolerance(
    classifier: Classifier, smallest: float, choose: Choice | None = None, n: int = 1
) -> float:
    """How far scores of n images may lie from ONNX Runtime's, relative to an image's largest.

    Both sides round. An error of δ in the logits z becomes one of at most 2δ·p in a softmax, and
    δ is relative to the largest |z|, for which the largest |ln p| stands, of the `smallest` score.
    """
    at_n = choose and (lambda conv: choose(conv.with_batch(n)))
    ours = network_tolerance(classifier.rewritten.graph, at_n)
    return _of_scores(classifier, smallest, ours + network_tolerance(classifier.network.graph))


def repeat_tolerance(classifier: Classifier, smallest: float) -> float:
    """How far two scores that ONNX Runtime gives an image may lie apart, as `score_tolerance`.

    It may sum in another order in a batch than for the image alone.
    """
    return _of_scores(classifier, smallest, 2 * network_tolerance(classifier.network.graph))


def _of_scores(classifier: Classifier, smallest: float, bound: float) -> float:
    if classifier.preprocessing.output is OutputKind.PROBABILITIES:
        tiny = float(np.finfo(np.float32).tiny)
        bound *= 2 * max(1.0, -log(smallest if smallest > tiny else tiny))  # not NaN
    return bound


def _conv_error(problem: ConvProblem, choose: Choice | None) -> float:
    """Relative to the size of the sums, in u: √L, or what Winograd's algorithm makes of it."""
    algorithm, config, _ = choose(problem) if choose else (None, None, None)
    winograd = WinogradConv | TensorWinogradConv | NonfusedWinogradConv
    if isinstance(algorithm, winograd) and config is not None:
        matrices = winograd_matrices(algorithm.m, algorithm.r, config.points)
        return float(
            winograd_growth(matrices) ** algorithm.axes
            * (sqrt(winograd_roundings(problem, matrices)) + _winograd_factors(problem, algorithm))
        )
    return sqrt(prod(problem.filter_shape[1:])) + _FACTORS[problem.precision]


def _winograd_factors(problem: ConvProblem, algorithm: Algorithm[Any]) -> float:
    """Like `_FACTORS`, for Winograd: data, filter and float16 products are rounded to 11 bits."""
    match algorithm:
        case NonfusedWinogradConv():
            precision, rounded = algorithm.product_precision(problem), sqrt(3)
        case TensorWinogradConv():
            precision, rounded = problem.precision, sqrt(2)
        case _:
            return 0.0
    return rounded * _ROUNDED if precision is Precision.FP16 else _FACTORS[precision]


def relative_error(actual: NDArray[np.floating], expected: NDArray[np.floating]) -> float:
    """The largest error of an image, relative to its largest score.

    Equal scores have none, whatever they are: 0, infinite, not a number.
    """
    equal = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    with np.errstate(invalid="ignore", divide="ignore"):
        errors = np.where(equal, 0, np.abs(actual - expected)).max(axis=1)
        relative = errors / np.abs(expected).max(axis=1)
    return float(np.where(errors == 0, 0, relative).max())
