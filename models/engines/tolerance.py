"""Bounds the rounding error of correct scores, based on the operations of the network."""

from math import log, prod, sqrt
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kernels.convolution.rounding import FACTORS, ROUNDED, direct_rounding
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import HALF
from models.classifier import Classifier
from models.graph import (
    Activate,
    Attention,
    Binary,
    Conv,
    Dequantize,
    Gemm,
    GlobalPool,
    Graph,
    Lrn,
    Move,
    Node,
    Normalise,
    Pool,
    Product,
    Quantize,
    Reduce,
    Resample,
    ScaleShift,
    Softmax,
)
from models.onnx_loader import Opaque
from models.quantized_filters import is_quantized

if TYPE_CHECKING:  # it imports the planner, which only a GPU needs
    from models.lowering import Choose

_STEPS = 255
"""The number of steps from the smallest byte to the largest."""


def network_tolerance(graph: Graph, choose: "Choose | None" = None) -> float:
    """Return the largest allowed |computed - float64| of a score, relative to the largest score.

    Let u = eps / 2. A sum of L products with independent rounding errors has a relative error of
    about √L·u (Higham and Mary 2019, "A new approach to probabilistic rounding error analysis",
    theorem 3.1). Any other node has an error of a few u. A value stored as float16 is rounded to 11
    bits, which is an error of 2^13 u. The errors of all layers are added, because activations have
    about the same size in all layers. `choose` returns the algorithm of each convolution. Without
    it, convolutions are assumed to be direct.

    After a quantization with the scale s, most numbers have no error. If the error before was e,
    the fraction e / s of the numbers is rounded to a neighbouring integer, which is an error of s.
    The root mean square of the errors is then √(e·s).
    """
    u = float(np.finfo(np.float32).eps) / 2
    total = 0.0  # in units of u
    for node in graph.nodes:
        errors: list[float] = []
        if is_quantized(graph.values[node.output].stored):
            total = max(total, sqrt(total / u / _STEPS))
        if graph.values[node.output].stored == HALF:
            errors.append(ROUNDED)
        if isinstance(node, Conv):
            errors.append(_conv_error(node.problem, choose))
            if node.problem.prologue is not None:
                errors.append(2)  # the error of the node that it replaced
        elif isinstance(node, Gemm):
            errors.append(sqrt(graph.shape(node.weight)[1]))
            if graph.values[node.x].stored == HALF:
                errors.append(ROUNDED)  # the weights are rounded
        elif isinstance(node, Attention):
            errors += [sqrt(_terms(graph, node)), 2 * FACTORS[node.precision]]  # for both products
        elif isinstance(node, Product):
            errors += [max(2, sqrt(_terms(graph, node))), FACTORS[node.precision]]
        elif isinstance(node, Opaque):
            errors += [2 + sqrt(terms) + ROUNDED * node.halves for terms in node.sums]
        else:
            errors.append(max(2, sqrt(_terms(graph, node))))
        total += sum(errors)
    return u * total


def _terms(graph: Graph, node: Node) -> int:
    """Return the number of terms in the sum that the node computes for each element of its result.
    It is at least 1."""
    match node:
        case Attention():  # terms of a score, and of a sum of values
            return sum(graph.shape(node.k)[-2:])
        case Product():
            return graph.shape(node.a)[-1]
        case Pool():
            return node.problem.window.kernel_volume
        case GlobalPool():
            return prod(graph.shape(node.x)[1:])
        case Reduce():
            return prod(graph.shape(node.x)[axis] for axis in node.axes)
        case Normalise():
            return prod(graph.shape(node.x)[axis] for axis in node.axes) // node.groups
        case Lrn():
            return node.size
        case Resample():
            return int(2 ** len(node.taps))
        case Softmax():
            return graph.shape(node.x)[node.axis]
        case Activate() | Binary() | Dequantize() | Quantize() | ScaleShift():
            return 1
        case _ if isinstance(node, Move):
            return 1
        case _:
            raise TypeError(f"{type(node).__name__} has no bound for its rounding; add one here")


def score_tolerance(
    classifier: Classifier, smallest: float, choose: "Choose | None" = None, n: int = 1
) -> float:
    """Return the largest allowed difference between the scores of an engine and of ONNX Runtime.

    The difference is relative to the largest score. It covers the rounding errors of both engines.
    A relative error δ of logits z changes a probability p by at most 2δ·p·max |z|. The estimate of
    max |z| is |ln p| of the smallest probability, `smallest`. n is the batch size of the engine.
    """
    if classifier.network.no_kernels:  # ONNX Runtime computes both scores
        return repeat_tolerance(classifier, smallest)
    at_n = choose and (lambda conv: choose(conv.with_batch(n)))
    ours = network_tolerance(classifier.rewritten.graph, at_n)
    return _of_scores(classifier, smallest, ours + network_tolerance(classifier.network.graph))


def repeat_tolerance(classifier: Classifier, smallest: float) -> float:
    """Return the allowed difference between two runs of ONNX Runtime, relative to the largest
    score.

    ONNX Runtime may add the same numbers in another order if the batch size is different.
    """
    return _of_scores(classifier, smallest, 2 * network_tolerance(classifier.network.graph))


def _of_scores(classifier: Classifier, smallest: float, bound: float) -> float:
    kind = classifier.preprocessing.output
    if not (kind.is_unbounded or kind.by_softmax):
        tiny = float(np.finfo(np.float32).tiny)
        bound *= 2 * max(1.0, -log(smallest if smallest > tiny else tiny))  # NaN: `tiny`
    return bound


def _conv_error(problem: ConvProblem, choose: "Choose | None") -> float:
    """Return the rounding error of a convolution's sums, in units of eps / 2 of float32."""
    if choose is None:
        return direct_rounding(problem)
    choice = choose(problem)
    return choice.algorithm.rounding(problem, choice.config)


def relative_error(actual: NDArray[np.floating], expected: NDArray[np.floating]) -> float:
    """Return the largest error of any score, relative to the largest score of its image.

    Equal scores have no error, even if they are infinite or NaN.
    """
    equal = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    with np.errstate(invalid="ignore", divide="ignore"):
        errors = np.where(equal, 0, np.abs(actual - expected)).max(axis=1)
        relative = errors / np.abs(expected).max(axis=1)
    return float(np.where(errors == 0, 0, relative).max())
