"""Networks whose convolutions take several launches: the engine runs them like any other."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cusim.device import CusimDevice, Order
from kernels.convolution.algorithms import ConvChoice
from kernels.device.gpus import H200
from kernels.problems.activation import RELU
from kernels.problems.binary_operation import BinaryOp
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import Precision
from kernels.tuning.heuristic import heuristic
from models.classifier import Classifier
from models.engines.cuda_engine import CudaEngine
from models.engines.tolerance import network_tolerance, relative_error
from models.graph import Graph
from models.plan import Region, build_plan
from models.rewrite import rewrite
from tests.support.cases.winograd_nonfused import F2, F2_3D, F4
from tests.support.kernels.arrays import FLOATING
from tests.support.models.engines import (
    classifier_of,
    pixels,
    preprocessing_of,
    reference_scores,
    with_one_output,
)
from tests.support.models.graphs import GraphBuilder
from tests.support.models.plans import lower_bound
from tests.support.models.random_graphs import Draw

Choose = Callable[[ConvProblem], ConvChoice]


def nonfused(problem: ConvProblem) -> ConvChoice:
    """Choose non-fused Winograd wherever possible, F(4, 3) if there are several, in chunks that end
    in the middle of an image.

    Choose one of its last configurations, whose products are split if any are.
    """
    for algorithm in (F4, F2_3D):
        if algorithm.supports(problem) is None:
            total = problem.n * prod(-(-p // algorithm.m) for p in problem.window.output)
            config = algorithm.configs(problem)[-1]
            gemm = replace(config.gemm, split=2)
            return ConvChoice(algorithm, replace(config, gemm=gemm, chunk=-(-total * 2 // 3)))
    return heuristic(H200)(problem)


def residual_network() -> Graph:
    """Return a network with concatenated parts, a sum in place of its residual and a slice, all
    from convolutions of 3×3."""
    b = GraphBuilder(0, x=(3, 9, 10))
    stem = b.conv("stem", "x", 12, activation=RELU)
    parts = b.concat("parts", b.conv("left", stem, 7), b.conv("right", stem, 9))
    main = b.conv("main", b.conv("inner", parts, 20, activation=RELU), 16)
    total = b.binary("sum", BinaryOp.ADD, main, parts)
    return b.build(b.reshape("flat", b.conv("end", b.slice("half", total, 5, 14), 4), (360,)))


def clips() -> Graph:
    b = GraphBuilder(0, x=(3, 4, 6, 5))
    y = b.conv("second", b.conv("first", "x", 8, activation=RELU), 6)
    return b.build(b.reshape("flat", y, (6 * 120,)))


@pytest.fixture(scope="module")
def device() -> Iterator[CusimDevice]:
    device = CusimDevice(order=Order.RANDOM)
    yield device
    device.close()


def opened(classifier: Classifier, device: CusimDevice, max_batch: int) -> CudaEngine:
    engine = CudaEngine(classifier, device, max_batch=max_batch, choose=nonfused)
    engine.warm_up()
    return engine


def assert_right(engine: CudaEngine, classifier: Classifier, n: int, seed: int = 0) -> None:
    images = pixels(classifier, n, seed)
    expected = reference_scores(classifier, images)
    bound = 1e-4 * np.abs(expected).max()
    np.testing.assert_allclose(engine.run(images).scores, expected, rtol=1e-4, atol=bound)


@pytest.mark.parametrize("graph", [residual_network(), clips()], ids=["2-D", "3-D"])
def test_the_captured_graphs_of_every_n_compute_the_network(
    device: CusimDevice, graph: Graph
) -> None:
    classifier = classifier_of(graph)
    engine = opened(classifier, device, max_batch=3)
    names = [step.launch.instantiation.kernel for step in engine.plans[3].steps]
    convolutions = len([node for node in graph.nodes if node.name.startswith("conv_")])
    assert names.count("winograd_inverse") == 2 * convolutions  # of two chunks each
    assert engine.plans[3].counter_bytes > 0
    for n in (1, 2, 3):
        for seed in (0, 1):
            assert_right(engine, classifier, n, seed)
    engine.close()


@pytest.mark.parametrize(
    "precision",
    # TF32's products are those of 3xTF32, but their bound is wider.
    [Precision.FP32, pytest.param(Precision.TF32, marks=pytest.mark.slow), *FLOATING[2:]],
    ids=lambda each: each.value,
)
@pytest.mark.parametrize("graph", [residual_network(), clips()], ids=["2-D", "3-D"])
def test_a_network_is_within_the_tolerance_of_its_precision(
    device: CusimDevice, graph: Graph, precision: Precision
) -> None:
    classifier = replace(classifier_of(graph), precision=precision)
    engine = opened(classifier, device, max_batch=2)
    images = pixels(classifier, 2)
    error = relative_error(engine.run(images).scores, reference_scores(classifier, images))
    assert 0 < error <= network_tolerance(classifier.rewritten.graph, nonfused)
    products = {
        dict(step.launch.instantiation.arguments)["precision"]
        for step in engine.plans[2].steps
        if step.launch.instantiation.kernel == "conv_tensor"
    }
    assert products == ({"Precision::TF32X3"} if precision is not Precision.FP32 else set())
    engine.close()


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_whatever_graph_is_drawn_the_engine_computes_it(
    device: CusimDevice, data: st.DataObject
) -> None:
    classifier = classifier_of(with_one_output(Draw(data).graph()))
    n = data.draw(st.integers(1, 3), "n")
    images = pixels(classifier, n)
    if np.abs(reference_scores(classifier, images)).max() >= 1e6:
        return  # products of products soon leave what float32 resolves
    engine = opened(classifier, device, n)
    assert_right(engine, classifier, n)
    engine.close()


def test_launches_share_what_lies_between_them_and_other_nodes_take_its_place() -> None:
    graph = rewrite(residual_network()).graph
    plan = build_plan(graph, preprocessing_of((3, 9, 10)), 2, nonfused)
    steps = [step for step in plan.steps if step.name == "conv_inner"]
    assert [step.launch.instantiation.kernel for step in steps] == [
        "winograd_data",
        "conv_direct",
        "winograd_inverse",
    ] * 2
    for step in steps[1:]:
        for name, at in step.operands.items():
            assert steps[0].operands.get(name, at) == at  # x, data
            assert steps[1].operands.get(name, at) == at  # products, weight
    assert steps[1].operands["workspace"].region is Region.ARENA
    assert steps[1].operands["counters"].region is Region.COUNTERS
    assert [step.cost.flops > 0 for step in steps] == [True] + [False] * 5
    assert plan.arena_bytes < 0.5 * sum(life.nbytes for life in plan.buffers)
    assert plan.arena_bytes <= 1.15 * lower_bound(plan.buffers)


def test_a_network_may_mix_sizes_of_tiles() -> None:
    every = (F2, F4)
    taken: list[str] = []

    def alternating(problem: ConvProblem) -> ConvChoice:
        algorithm = every[len(taken) % 2]
        if algorithm.supports(problem) is not None:
            return heuristic(H200)(problem)
        configs = algorithm.configs(problem)
        config = configs[len(taken) * 5 % len(configs)]
        taken.append(algorithm.name)
        return ConvChoice(algorithm, config)

    graph = residual_network()
    classifier = classifier_of(graph)
    cusim = CusimDevice()
    engine = CudaEngine(classifier, cusim, max_batch=2, choose=alternating)
    engine.warm_up()
    assert len(set(taken)) == 2
    for n in (1, 2):
        assert_right(engine, classifier, n)
    engine.close()
    cusim.close()
