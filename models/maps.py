"""Computes class activation maps of networks whose scores are averages over an image's positions.

A map shows how much each position contributes to the score of a class (Zhou et al. 2016):

    features C×H×W ─ mean over H×W ─ Gemm ─ scores       map = weight · features, without bias
    features C×H×W ─ Conv 1×1 ─ mean over H×W ─ scores   map = weight · features + bias, or its ReLU

In both cases, the mean of a class's map plus a constant is the class's score before any softmax.
"""

from dataclasses import replace
from itertools import islice
from math import prod

import numpy as np
from numpy.typing import NDArray

from kernels.problems.activation import RELU
from kernels.problems.binary_operation import BinaryOp
from kernels.problems.pool import PoolKind
from models.graph import (
    Activate,
    Binary,
    Conv,
    Gemm,
    GlobalPool,
    Graph,
    Identity,
    Node,
    Reshape,
    Softmax,
)
from models.inner import from_scores, in_onnx, is_of_one_position, why_shut
from models.onnx_loader import LoadedModel
from models.rewrite import rewrite
from models.rewrite.global_pool import global_pool
from models.served import Absent, Inner, Maps

_Array = NDArray[np.float32]

_SKIPPED = Identity | Reshape | Softmax

_LENGTH = 3  # the number of last nodes that decide

_NEEDS = (
    "its scores are not a linear function of averages over an image's positions; a network with"
    " maps ends with a convolution, global average pooling and one linear layer"
)


def find_maps(network: LoadedModel) -> Maps | Absent:
    """Return the `Maps` of a network, or the reason why it has none.

    A network with a single score has the classes "yes" and "no". The score belongs to "yes", and
    the map of "no" is the negative of the map of "yes".
    """
    found = _found(network)
    if isinstance(found, Absent) or len(found.weight) > 1:
        return found
    if found.rectified:
        return Absent('its single score is never negative, so the class "no" cannot have a map')
    weight, inside, beside = (
        np.concatenate([-part, part]) for part in (found.weight, found.inside, found.beside)
    )
    return replace(found, weight=weight, inside=inside, beside=beside)


def _found(network: LoadedModel) -> Maps | Absent:
    if reason := why_shut(network):
        return Absent(reason)
    graph = rewrite(network.graph, (global_pool,)).graph
    match _last_computing(graph):
        case [Binary() as add, Gemm() | Conv() as linear, GlobalPool() as pool, *_]:
            added = _added(graph, add, linear)
        case [Gemm() | Conv() as linear, GlobalPool() as pool, *_]:
            added = np.zeros(1, np.float32)
        case [GlobalPool() as pool, Activate(activation=activation), Conv() as linear, *_] if (
            activation == RELU
        ):
            return _of_positions(network, graph, pool, linear, rectified=True)
        case [GlobalPool() as pool, Conv() as linear, *_]:
            return _of_positions(network, graph, pool, linear, rectified=False)
        case _:
            return Absent(_NEEDS)
    weight, bias = _linear(graph, linear)
    if added is None or weight is None or pool.kind is not PoolKind.AVERAGE:
        return Absent(_NEEDS)
    features = _features(network, graph, pool.x)
    if isinstance(features, Absent):
        return features
    return Maps(features, weight, np.zeros_like(bias), rectified=False, beside=bias + added)


def _of_positions(
    network: LoadedModel, graph: Graph, pool: GlobalPool, linear: Conv, *, rectified: bool
) -> Maps | Absent:
    """Return the maps of a network that first computes scores per position, and then their
    average."""
    weight, bias = _linear(graph, linear)
    if weight is None or pool.kind is not PoolKind.AVERAGE:
        return Absent(_NEEDS)
    features = _features(network, graph, linear.x)
    if isinstance(features, Absent):
        return features
    return Maps(features, weight, bias, rectified, beside=np.zeros_like(bias))


def _last_computing(graph: Graph) -> list[Node]:
    """Return up to three nodes from the end of the network, beginning with the last one.

    Reshapes, Identities and Softmaxes are left out.
    """
    passed = (node for node in from_scores(graph) if not isinstance(node, _SKIPPED))
    return list(islice(passed, _LENGTH))


def _linear(graph: Graph, node: Gemm | Conv) -> tuple[_Array | None, _Array]:
    """Return a node's weight (classes×C) and bias. The weight is None for a Conv whose outputs
    depend on more than one position, or that changes the number of positions."""
    weight = graph.weights[node.weight]
    bias = np.zeros(len(weight), np.float32) if node.bias is None else graph.weights[node.bias]
    is_linear = isinstance(node, Gemm) or (
        is_of_one_position(node) and node.problem.window.output == node.problem.window.input
    )
    return weight.reshape(len(weight), -1) if is_linear else None, bias


def _added(graph: Graph, add: Binary, linear: Gemm | Conv) -> _Array | None:
    """Return the constant that `add` adds to the scores: one number, or one number per class.
    Return None if `add` does anything else."""
    weight = graph.weights.get(add.a, graph.weights.get(add.b))
    if add.op is not BinaryOp.ADD or weight is None:
        return None
    return weight.ravel() if weight.size in (1, graph.weights[linear.weight].shape[0]) else None


def _features(network: LoadedModel, graph: Graph, name: str) -> Inner | Absent:
    shape = graph.shape(name)
    if len(shape) != 3 or prod(shape[1:]) == 1:
        sizes = "×".join(map(str, shape))
        return Absent(
            f"its features have the shape {sizes}; maps need several positions of one image"
        )
    return in_onnx(network, name)
