"""The nodes of well-known networks after rewriting, and their unchanged scores."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest

from kernels.problems.precision import Precision
from models.graph import Conv, Graph, Node, Reshape, Slice
from models.onnx_loader import load_proto
from models.precision import at_precision
from models.rewrite import RULES_AT_A_PRECISION, RewriteResult, rewrite
from tests.support.models.reference import run_reference
from tests.support.networks import LIGHT_NETWORKS, QUICK, light_network

HEAD = {"Reshape": 1, "Gemm": 1, "Softmax": 1}
POOLED = {"GlobalPool": 1, **HEAD}
LEFT = {
    "bvlc_alexnet": {"Conv": 5, "Lrn": 2, "Pool": 3, **HEAD, "Gemm": 3},
    # Batch normalisation before a Conv, with a ReLU between, cannot melt into its filters.
    "densenet121": {"Conv": 121, "ScaleShift": 62, "Pool": 4, "GlobalPool": 1},
    "inception_v1": {"Conv": 39, "Slice": 27, "Lrn": 2, "Pool": 13, **POOLED},
    "inception_v2": {"Conv": 51, "Slice": 28, "Pool": 12, **POOLED},
    "resnet50": {"Conv": 53, "Pool": 1, **POOLED},
    "shufflenet": {"Conv": 49, "ChannelShuffle": 16, "Pool": 4, **POOLED},
    "squeezenet": {"Conv": 26, "Pool": 3, "GlobalPool": 1, "Reshape": 2, "Softmax": 1},
    "vgg19": {"Conv": 16, "Pool": 5, **HEAD, "Gemm": 3},
    "zfnet512": {"Conv": 5, "Lrn": 2, "Pool": 3, **HEAD, "Gemm": 3},
}
# The nodes that compute: what is a part of memory, or lies in its order already, moves nothing.
MOST_LAUNCHES = {"squeezenet": 32, "vgg19": 26, "resnet50": 58, "inception_v1": 58}
PROJECTED = {"resnet50": 4}
"""The number of convolutions saved at a precision of tensor cores."""
PROLOGUES = {"densenet121": 61}  # the last ScaleShift is before a pool
"""The number of ScaleShifts saved in float32, where a 1×1 Conv has them as its prologue."""


@dataclass
class Network:
    name: str
    graph: Graph
    result: RewriteResult


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=[pytest.mark.slow] * (name not in (*QUICK, "resnet50")))
        for name in LEFT
    ],
)
def network(request: pytest.FixtureRequest) -> Network:
    """Load the networks once for all tests, which run network by network."""
    graph = load_proto(request.param, light_network(request.param)).graph
    return Network(request.param, graph, rewrite(graph))


def is_launch(node: Node) -> bool:
    return not isinstance(node, Slice) and not (isinstance(node, Reshape) and node.channels_last)


def test_the_table_names_every_network() -> None:
    assert set(LEFT) == set(LIGHT_NETWORKS)


def test_what_is_left_of_a_network(network: Network) -> None:
    nodes = network.result.graph.nodes
    assert Counter(type(node).__name__ for node in nodes) == LEFT[network.name]
    assert sum(map(is_launch, nodes)) <= MOST_LAUNCHES.get(network.name, len(nodes))
    assert {refused.rule for refused in network.result.refused} <= {"fold_scale_shift_ahead"}


@pytest.mark.parametrize("precision", [Precision.TF32, Precision.FP16], ids=lambda p: p.value)
def test_what_is_left_of_a_network_on_tensor_cores(network: Network, precision: Precision) -> None:
    result = rewrite(at_precision(network.result.graph, precision), RULES_AT_A_PRECISION)
    convolutions = sum(isinstance(node, Conv) for node in result.graph.nodes)
    assert convolutions == LEFT[network.name]["Conv"] - PROJECTED.get(network.name, 0)


def test_what_is_left_of_a_network_in_float32(network: Network) -> None:
    result = rewrite(network.result.graph, RULES_AT_A_PRECISION)
    left = Counter(type(node).__name__ for node in result.graph.nodes)
    left["ScaleShift"] += PROLOGUES.get(network.name, 0)
    assert +left == LEFT[network.name]
    if result.applied:
        images = {x: np.ones((1, *result.graph.shape(x))) for x in result.graph.inputs}
        before, after = (
            run_reference(graph, images, np.float32)
            for graph in (network.result.graph, result.graph)
        )
        assert all(np.array_equal(before[y], after[y]) for y in before)


def test_a_rewritten_network_gives_the_same_scores(network: Network) -> None:
    rng = np.random.default_rng(0)
    shapes = {x: network.graph.shape(x) for x in network.graph.inputs}
    images = {x: rng.normal(0, 1, (1, *shape)) for x, shape in shapes.items()}
    expected = run_reference(network.graph, images, np.float32)
    actual = run_reference(network.result.graph, images, np.float32)
    for y in network.graph.outputs:
        # Folded weights are rounded once more, and a hundred layers of float32 round on the way.
        largest = np.abs(expected[y]).max()
        np.testing.assert_allclose(actual[y], expected[y], rtol=0, atol=2e-5 * largest)
