"""Networks at every precision: scores, plans, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.device.device import Device
from kernels.problems.activation import RELU
from kernels.problems.binary_operation import BinaryOp
from kernels.problems.pool import PoolKind
from kernels.problems.precision import FLOAT, HALF, Precision
from kernels.problems.reduction import ReduceKind
from models import (
    BUILT_IN_MODEL,
    DeviceKind,
    EngineError,
    UnsupportedModelError,
    load_classifier,
    open_engine,
)
from models.classifier import Classifier
from models.engines.open_engine import check_architecture
from models.engines.tolerance import relative_error
from models.graph import Conv, Expand, Graph, Normalise, Reduce, Resample
from models.plan import build_plan
from models.precision import at_precision
from service.images.decode import ImageLimits, prepare_image
from tests.cusim.device import CusimDevice
from tests.support.models.engines import (
    H200_CHOICE,
    classifier_of,
    network_of,
    network_tolerance,
    opened,
    pixels,
    reference_scores,
    with_one_output,
)
from tests.support.models.graphs import GraphBuilder
from tests.support.models.plans import check_operands
from tests.support.models.random_graphs import Draw
from tests.support.networks import LIGHT_NETWORKS, SHARED, SQUEEZENET, light_network, needs_shared

LIMITS = ImageLimits(20_000_000, 50_000_000)
REDUCED = pytest.mark.parametrize(
    "precision", [each for each in Precision if each is not Precision.FP32], ids=lambda p: p.value
)


@pytest.fixture(scope="module")
def digits() -> Classifier:
    return load_classifier(BUILT_IN_MODEL)


def _error(classifier: Classifier, device: Device, n: int) -> float:
    images = pixels(classifier, n)
    engine = opened(classifier, device, max_batch=n)
    error = relative_error(engine.run(images), reference_scores(classifier, images))
    engine.close()
    return error


@REDUCED
def test_digits_are_within_the_tolerance(
    device: Device, digits: Classifier, precision: Precision
) -> None:
    at = replace(digits, precision=precision)
    assert _error(at, device, 3) <= network_tolerance(at.rewritten.graph)


@REDUCED
def test_squeezenet_is_within_the_tolerance(device: Device, precision: Precision) -> None:
    at = replace(network_of("squeezenet", light_network("squeezenet")), precision=precision)
    assert _error(at, device, 1) <= network_tolerance(at.rewritten.graph)


@pytest.mark.slow
@REDUCED
@pytest.mark.parametrize("name", LIGHT_NETWORKS)
def test_every_network_is_within_the_tolerance(
    device: Device, name: str, precision: Precision
) -> None:
    at = replace(network_of(name, light_network(name)), precision=precision)
    assert _error(at, device, 1) <= network_tolerance(at.rewritten.graph)


@REDUCED
@pytest.mark.parametrize("name", LIGHT_NETWORKS)
def test_a_plan_stores_as_its_precision_says(name: str, precision: Precision) -> None:
    classifier = network_of(name, light_network(name))
    graph = classifier.rewritten.graph
    strict = build_plan(graph, classifier.preprocessing, 2, H200_CHOICE)
    plan = build_plan(at_precision(graph, precision), classifier.preprocessing, 2, H200_CHOICE)
    check_operands(plan)
    if precision is Precision.FP16:
        assert len(plan.steps) <= len(strict.steps) + 1  # scores, where no linear layer is last
        assert plan.arena_bytes < 0.75 * strict.arena_bytes


@REDUCED
def test_every_convolution_has_the_precision(digits: Classifier, precision: Precision) -> None:
    graph = replace(digits, precision=precision).rewritten.graph
    convs = [node for node in graph.nodes if isinstance(node, Conv)]
    assert {node.problem.precision for node in convs} == {precision}
    assert {graph.values[node.output].stored for node in convs} == {precision.stored}
    assert graph.values[graph.outputs[0]].stored == FLOAT


def _without_linear() -> Graph:
    b = GraphBuilder(0, x=(3, 5, 5))
    pooled = b.pool("pooled", b.conv("c", "x", 4, 3), PoolKind.MAX, 5)
    return b.build(b.reshape("flat", pooled, (4,)))


def test_scores_of_a_network_without_a_linear_layer_are_converted(device: Device) -> None:
    graph = _without_linear()
    classifier = replace(classifier_of(graph), precision=Precision.FP16)
    assert classifier.rewritten.graph.values["flat"].stored == HALF
    assert _error(classifier, device, 2) <= network_tolerance(classifier.rewritten.graph)


def _normalise(b: GraphBuilder, y: str, x: str, axes: tuple[int, ...]) -> str:
    shape = b.shapes[x]
    channel = (shape[0], *(1 for _ in shape[1:]))
    scale, shift = (b.noise(f"{y}.{role}", channel) for role in ("g", "b"))
    return b.add(Normalise, y, shape, x=x, scale=scale, shift=shift, axes=axes, epsilon=0.1)


def _reduce(b: GraphBuilder, y: str, x: str, axis: int, kind: ReduceKind = ReduceKind.MEAN) -> str:
    shape = list(b.shapes[x])
    shape[axis] = 1
    return b.add(Reduce, y, tuple(shape), x=x, kind=kind, axes=(axis,))


def _of_every_kind() -> GraphBuilder:
    """A convolution, then what reads and writes any strides, to a value of 8×3×3."""
    b = GraphBuilder(0, x=(3, 6, 6))
    layer = _normalise(b, "normalised", b.conv("conv", "x", 8, 3, stride=2), (0,))
    rows = _reduce(b, "rows", _reduce(b, "largest", layer, 1, ReduceKind.MAX), 2)
    every = b.add(Expand, "every", b.shapes[layer], x=rows)
    table = [[[at, 0.5], [at + 1, 0.5]] for at in (1, 0, 1)]
    taps = tuple(b.weight(f"taps.{axis}", table) for axis in "hw")
    b.add(Resample, "sampled", b.shapes[layer], x=every, taps=taps)
    b.binary("sum", BinaryOp.ADD, "sampled", layer)
    return b


def test_operations_on_halves_are_within_the_tolerance(device: Device) -> None:
    b = _of_every_kind()
    graph = b.build(b.gemm("scores", b.reshape("flat", "sum", (72,)), 10))
    classifier = replace(classifier_of(graph), precision=Precision.FP16)
    at = classifier.rewritten.graph
    assert {at.values[node.output].stored for node in at.nodes[:-1]} == {HALF}
    assert _error(classifier, device, 2) <= network_tolerance(at)


def test_what_follows_the_last_linear_layer_is_float(device: Device) -> None:
    b = GraphBuilder(0, x=(3, 6, 6))
    tokens = b.transpose("tokens", b.conv("conv", "x", 8, 3, activation=RELU), 1, 2, 0)
    scores = b.transpose("back", b.gemm("scores", tokens, 10), 2, 0, 1)
    graph = b.build(_reduce(b, "mean", _reduce(b, "rows", _normalise(b, "n", scores, (0,)), 1), 2))
    at = at_precision(graph, Precision.FP16)
    stored = {name for name, value in at.values.items() if value.stored == FLOAT}
    assert stored == {"scores", "back", "n", "rows", "mean"}
    classifier = replace(classifier_of(graph), precision=Precision.FP16)
    assert _error(classifier, device, 2) <= network_tolerance(classifier.rewritten.graph)


def test_a_convolution_after_the_last_linear_layer_keeps_it_half() -> None:
    b = GraphBuilder(0, x=(4, 4, 8))
    image = b.transpose("image", b.gemm("linear", "x", 8), 2, 0, 1)
    at = at_precision(b.build(b.conv("conv", image, 4)), Precision.FP16)
    assert {value.stored for value in at.values.values()} == {HALF}


@settings(max_examples=60)
@given(st.data())
def test_whatever_graph_is_drawn_its_kernels_take_halves_as_halves(data: st.DataObject) -> None:
    classifier = classifier_of(with_one_output(Draw(data).graph()))
    graph = at_precision(classifier.rewritten.graph, Precision.FP16)
    check_operands(build_plan(graph, classifier.preprocessing, 2, H200_CHOICE))


def test_a_number_that_is_too_large_for_float16_is_refused_where_halves_are_added() -> None:
    b = GraphBuilder(0, x=(3, 5, 5))
    graph = b.build(b.binary("sum", BinaryOp.ADD, "x", 1e6))
    at_precision(graph, Precision.TF32)
    with pytest.raises(UnsupportedModelError, match=r"binary_sum has a weight of 1e\+06"):
        at_precision(graph, Precision.FP16)


def test_a_weight_that_is_too_large_for_float16_is_refused_by_its_layer() -> None:
    graph = _without_linear()
    (conv,) = (node for node in graph.nodes if isinstance(node, Conv))
    weight = np.array(graph.weights[conv.weight])
    weight.flat[3] = 7e4
    graph = replace(graph, weights={**graph.weights, conv.weight: weight})
    at_precision(graph, Precision.TF32X3)
    with pytest.raises(UnsupportedModelError, match=rf"{conv.name} has a weight of 7e\+04"):
        at_precision(graph, Precision.FP16)


def test_tf32_is_refused_where_tensor_cores_lack_it() -> None:
    turing = CusimDevice()
    turing.architecture = "75"
    check_architecture(turing, Precision.FP16)
    with pytest.raises(EngineError, match=r"\(sm_75\) has no tensor cores for tf32; .*needs sm_80"):
        check_architecture(turing, Precision.TF32)
    turing.close()


@needs_shared
@pytest.mark.slow
@REDUCED
def test_squeezenet_names_photographs_as_at_float32(precision: Precision) -> None:
    classifier = load_classifier(SQUEEZENET, overrides={"preset": "caffe"})
    files = sorted((SHARED / "data/images").glob("*.JPEG"))[::10]
    images = np.stack(
        [prepare_image(f.read_bytes(), classifier.preprocessing, LIMITS).run() for f in files]
    )
    assert len(images) >= 20
    cusim = CusimDevice()
    engine = opened(replace(classifier, precision=precision), cusim)
    expected = open_engine(classifier, device=DeviceKind.CPU, max_batch=1)
    for image in images:
        ours, theirs = engine.run(image[np.newaxis]), expected.run(image[np.newaxis])
        assert ours.argmax() == theirs.argmax()
    engine.close()
    expected.close()
    cusim.close()
