"""Networks at every precision: scores, plans, and refusals."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from math import prod
from pathlib import Path
from zlib import crc32

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto

from cusim.build import FAST
from cusim.device import CusimDevice
from kernels.convolution.algorithms import ConvChoice
from kernels.convolution.tensor_gemm import TensorConv
from kernels.device.device import Device
from kernels.problems.activation import RELU
from kernels.problems.binary_operation import BinaryOp
from kernels.problems.conv import ConvProblem
from kernels.problems.pool import PoolKind
from kernels.problems.precision import FLOAT, HALF, Precision
from models import (
    BUILT_IN_MODEL,
    DeviceKind,
    EngineError,
    PreprocessingError,
    load_classifier,
    open_engine,
)
from models.classifier import Classifier
from models.engines.cuda_engine import CudaEngine
from models.engines.open_engine import check_architecture
from models.engines.tolerance import relative_error
from models.graph import Conv, Graph, Identity
from models.plan import build_plan
from models.precision import at_precision, beyond_half, kept_in_float
from models.preprocessing import normalised
from models.rewrite import rewrite
from service.images.prepare import ImageLimits, prepare_image
from tests.support.cases.tensor_gemm import TENSOR, WARPGROUPS
from tests.support.cases.tma_gemm import TMA
from tests.support.kernels.arrays import FLOATING
from tests.support.models.engines import (
    H200_CHOICE,
    classifier_of,
    network_of,
    network_tolerance,
    opened,
    pixels,
    reference_scores,
)
from tests.support.models.graphs import GraphBuilder
from tests.support.models.onnx_chains import model, node, noise
from tests.support.models.plans import check_operands
from tests.support.models.reference import run_reference
from tests.support.networks import (
    EACH_NETWORK,
    LIGHT_NETWORKS,
    SHARED,
    SQUEEZENET,
    light_network,
    needs_shared,
)

LIMITS = ImageLimits(20_000_000, 50_000_000)
REDUCED = pytest.mark.parametrize(
    "precision", [each for each in FLOATING if each is not Precision.FP32], ids=lambda p: p.value
)


@pytest.fixture(scope="module")
def digits() -> Classifier:
    return load_classifier(BUILT_IN_MODEL)


def _error(classifier: Classifier, device: Device, n: int) -> float:
    images = pixels(classifier, n)
    engine = opened(classifier, device, max_batch=n)
    error = relative_error(engine.run(images).scores, reference_scores(classifier, images))
    engine.close()
    return error


@REDUCED
def test_digits_are_within_the_tolerance(
    device: Device, digits: Classifier, precision: Precision
) -> None:
    at = replace(digits, precision=precision)
    assert _error(at, device, 3) <= network_tolerance(at.rewritten.graph)


def test_squeezenet_is_within_the_tolerance(device: Device) -> None:
    squeezenet = network_of("squeezenet", light_network("squeezenet"))
    at = replace(squeezenet, precision=Precision.FP16)
    assert _error(at, device, 1) <= network_tolerance(at.rewritten.graph)


@pytest.mark.slow
@REDUCED
@pytest.mark.parametrize("name", LIGHT_NETWORKS)
def test_every_network_is_within_the_tolerance(
    device: Device, name: str, precision: Precision
) -> None:
    at = replace(network_of(name, light_network(name)), precision=precision)
    assert _error(at, device, 1) <= network_tolerance(at.rewritten.graph)


@pytest.mark.slow
@pytest.mark.parametrize("name", [each for each in LIGHT_NETWORKS if each != "vgg19"])
def test_over_whole_networks_3xtf32_errs_at_most_thrice_as_much_as_float32(
    device: Device, name: str
) -> None:
    """A bias in each layer would accumulate errors; VGG-19 takes too long on the simulator."""
    network = network_of(name, light_network(name))
    images = pixels(network, 1)
    truth = reference_scores(network, images)
    errors = {}
    for precision in (Precision.FP32, Precision.TF32X3):
        engine = opened(replace(network, precision=precision), device)
        differences = (engine.run(images).scores - truth) / np.abs(truth).max()
        errors[precision] = np.sqrt(np.square(differences).mean())
        engine.close()
    times = errors[Precision.TF32X3] / errors[Precision.FP32]
    print(f"{name}: 3xtf32 errs {times:.2f} times as much as fp32")
    assert times < 3


@REDUCED
@EACH_NETWORK
def test_a_plan_stores_as_its_precision_says(name: str, precision: Precision) -> None:
    classifier = network_of(name, light_network(name))
    graph = rewrite(classifier.network.graph).graph
    strict = build_plan(graph, classifier.preprocessing, 2, H200_CHOICE)
    at = at_precision(graph, precision)
    plan = build_plan(at, classifier.preprocessing, 2, H200_CHOICE)
    check_operands(plan)
    if precision is Precision.FP16:
        # No launches but each node's, and for the scores where a Conv computes them.
        nodes, strict_nodes = ({step.name for step in each.steps} for each in (plan, strict))
        assert len(nodes) <= len(strict_nodes) + 1
        # The arena also has what launches of one convolution hand on, which the plans choose apart.
        assert _bytes(at) < 0.75 * _bytes(graph)


def _bytes(graph: Graph) -> int:
    """Compare all values of one image."""
    values = graph.values.values()
    return sum(prod(value.shape) * value.stored.itemsize for value in values)


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


def _with_large_weights(*, apart: bool) -> Graph:
    """Build two consecutive convolutions beyond float16, the second into a concat; or only the
    second."""
    b = GraphBuilder(0, x=(3, 6, 6))
    first = b.conv("first", b.conv("tiny", "x", 8), 8)
    second = b.conv("second", first, 8, 1, residual="tiny", activation=RELU)
    joined = b.concat("joined", b.conv("other", first, 8), second)
    graph = b.build(b.gemm("scores", b.reshape("flat", joined, (16 * 36,)), 5))
    weights = {name: np.array(weight) for name, weight in graph.weights.items()}
    for name in ("tiny.w", "tiny.b"):
        weights[name] *= 1e-3
    for name in ("first.w", "second.w")[apart:]:
        weights[name] *= 10
        weights[name][3, 2, 0, 0] = -7e4
    return replace(graph, weights=weights)


@pytest.mark.parametrize("apart", [False, True])
def test_a_layer_with_a_weight_beyond_float16_stays_in_float32(
    device: Device, *, apart: bool
) -> None:
    classifier = replace(classifier_of(_with_large_weights(apart=apart)), precision=Precision.FP16)
    graph = classifier.rewritten.graph
    convs = {node.name: node for node in graph.nodes if isinstance(node, Conv)}
    large = {"conv_first", "conv_second"} - ({"conv_first"} if apart else set())
    for name, conv in convs.items():
        assert conv.problem.precision is (Precision.FP32 if name in large else Precision.FP16)
        assert graph.values[conv.x].stored == (FLOAT if name in large else HALF)
    kept = {r.node: r.reason for r in classifier.rewritten.refused if r.rule == "fp16"}
    assert kept["conv_second"] == "it has a weight of 7e+04, but the largest float16 is 65504"
    assert kept["gemm_scores"] == "scores are float32"
    # Converted: x and residual of the kept, the output for halves; nothing between the kept.
    conversions = [node for node in graph.nodes if isinstance(node, Identity)]
    assert len(conversions) == 3
    assert _error(classifier, device, 2) <= network_tolerance(graph)


def test_a_conv_whose_weight_winograd_takes_past_float16_stays_in_float32() -> None:
    b = GraphBuilder(x=(4, 5, 5))
    graph = b.build(b.conv("y", "x"))
    weight = np.zeros_like(graph.weights["y.w"])
    for size, reasons in (
        (7278, {}),
        (
            7300,
            {
                "conv_y": "it has a weight of 7.3e+03; with weights above 7278, Winograd's"
                " transform may exceed float16"
            },
        ),
    ):
        weight[3, 2, 0, 1] = -size
        assert beyond_half(replace(graph, weights={**graph.weights, "y.w": weight})) == reasons


@pytest.mark.parametrize("op", list(BinaryOp))
def test_a_constant_beyond_float16_stays_in_float32(device: Device, op: BinaryOp) -> None:
    b = GraphBuilder(0, x=(4, 5, 5))
    y = b.binary("y", op, b.conv("c", "x", 4), 1e5)
    back = b.binary("back", BinaryOp.MUL if op is BinaryOp.DIV else BinaryOp.DIV, y, 1e5)
    graph = b.build(b.gemm("scores", b.reshape("flat", back, (100,)), 5))
    assert set(beyond_half(graph)) == {"binary_y", "binary_back"}
    at = at_precision(graph, Precision.FP16)
    assert at.values["y/float32"].stored == FLOAT
    assert "y" not in {node.output for node in at.nodes}  # no half of it is needed
    check_operands(build_plan(at, classifier_of(graph).preprocessing, 2, H200_CHOICE))


def test_a_constant_that_would_be_0_in_float16_stays_in_float32(device: Device) -> None:
    b = GraphBuilder(0, x=(4, 5, 5))
    tiny = b.binary("tiny", BinaryOp.MUL, b.conv("c", "x", 4), 2.9e-8)
    small = b.binary("small", BinaryOp.MUL, b.conv("d", "x", 4), 3e-8)  # becomes 6e-8
    back = b.binary("back", BinaryOp.DIV, tiny, 2.9e-8)
    y = b.binary("y", BinaryOp.ADD, back, small)
    graph = b.build(b.gemm("scores", b.reshape("flat", y, (100,)), 5))
    reason = "it has a constant of 2.9e-08, which float16 rounds to 0"
    assert beyond_half(graph) == {"binary_tiny": reason, "binary_back": reason}
    classifier = replace(classifier_of(graph), precision=Precision.FP16)
    assert _error(classifier, device, 2) <= network_tolerance(classifier.rewritten.graph)


def test_other_precisions_keep_nothing() -> None:
    graph = _with_large_weights(apart=False)
    assert kept_in_float(graph, Precision.TF32X3) == {}
    assert all(
        value.stored == FLOAT for value in at_precision(graph, Precision.TF32).values.values()
    )


def test_tf32_is_refused_where_tensor_cores_lack_it() -> None:
    turing = CusimDevice()
    turing.architecture = "75"
    check_architecture(turing, Precision.FP16)
    with pytest.raises(
        EngineError, match=r"\(sm_75\) has no tensor cores for tf32; GPUs have them from sm_80"
    ):
        check_architecture(turing, Precision.TF32)
    turing.close()


def _by(algorithm: TensorConv) -> Callable[[ConvProblem], ConvChoice]:
    """Use one algorithm in any of its configurations where possible, and otherwise the choice for
    an H200."""

    def choose(problem: ConvProblem) -> ConvChoice:
        if algorithm.supports(problem) is not None:
            return H200_CHOICE(problem)
        configs = algorithm.configs(problem)
        return ConvChoice(algorithm, configs[crc32(str(problem).encode()) % len(configs)])

    return choose


_ALGORITHMS = pytest.mark.parametrize(
    ("algorithm", "precision"),
    [
        pytest.param(algorithm, precision, id=f"{algorithm.name} {precision.value}")
        for algorithm in (TENSOR, WARPGROUPS, TMA)
        for precision in (Precision.TF32, Precision.TF32X3, Precision.FP16)
    ],
)


@_ALGORITHMS
def test_an_engine_errs_as_the_rounding_of_its_precision_says(
    device: Device, digits: Classifier, algorithm: TensorConv, precision: Precision
) -> None:
    at = replace(digits, precision=precision)
    graph, images = at.rewritten.graph, pixels(at, 3)
    engine = CudaEngine(at, device, max_batch=3, choose=_by(algorithm))
    engine.warm_up()
    scores = engine.run(images).scores
    engine.close()
    x = normalised(images, at.preprocessing)
    rounded = run_reference(graph, {graph.inputs[0]: x}, np.float32)[graph.outputs[0]]
    # Sums in another order may round a value to its other neighbour.
    assert relative_error(scores, rounded) <= network_tolerance(graph) / 8


_ON_HOPPER = {
    "by wgmma": _by(WARPGROUPS),
    "by tensor copies": _by(TMA),
    "as on an H200": H200_CHOICE,
}


@REDUCED
@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        pytest.param(*each, marks=[pytest.mark.slow] * (each != ("squeezenet", "as on an H200")))
        for each in product(LIGHT_NETWORKS, _ON_HOPPER)
    ],
)
def test_every_network_is_within_the_tolerance_by_hoppers_kernels(
    device: Device, name: str, chosen: str, precision: Precision
) -> None:
    at = replace(network_of(name, light_network(name)), precision=precision)
    graph, images = at.rewritten.graph, pixels(at, 1)
    engine = CudaEngine(at, device, max_batch=1, choose=_ON_HOPPER[chosen])
    engine.warm_up()
    error = relative_error(engine.run(images).scores, reference_scores(at, images))
    engine.close()
    assert error <= network_tolerance(graph)


def _photographs(classifier: Classifier, step: int) -> NDArray[np.uint8]:
    """Return every step-th of the shared 200 photographs, decoded."""
    files = sorted((SHARED / "data/images").glob("*.JPEG"))[::step]
    assert len(files) == 200 // step
    return np.stack(
        [prepare_image(f.read_bytes(), classifier.preprocessing, LIMITS).run() for f in files]
    )


@needs_shared
@pytest.mark.slow
@REDUCED
def test_squeezenet_names_200_photographs_as_at_float32(precision: Precision) -> None:
    classifier = load_classifier(SQUEEZENET, overrides={"preset": "caffe"})
    graph = replace(classifier, precision=precision).rewritten.graph
    expected = open_engine(classifier, device=DeviceKind.CPU, max_batch=1, threads=1)
    agreed = 0
    for image in _photographs(classifier, 1):
        x = normalised(image[np.newaxis], classifier.preprocessing)
        ours = run_reference(graph, {graph.inputs[0]: x}, np.float32)[graph.outputs[0]]
        agreed += int(ours.argmax() == expected.run(image[np.newaxis]).scores.argmax())
    expected.close()
    assert agreed >= (200 if precision is Precision.TF32X3 else 198)


@needs_shared
@pytest.mark.slow
@REDUCED
def test_squeezenet_names_photographs_as_at_float32(precision: Precision) -> None:
    classifier = load_classifier(SQUEEZENET, overrides={"preset": "caffe"})
    images = _photographs(classifier, 10)
    cusim = CusimDevice(FAST)
    engine = opened(replace(classifier, precision=precision), cusim)
    expected = open_engine(classifier, device=DeviceKind.CPU, max_batch=1)
    for image in images:
        ours, theirs = engine.run(image[np.newaxis]).scores, expected.run(image[np.newaxis]).scores
        assert ours.argmax() == theirs.argmax()
    engine.close()
    expected.close()
    cusim.close()


def test_the_model_names_its_precision_and_a_flag_overrides_it(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    shutil.copy(BUILT_IN_MODEL, file)
    assert load_classifier(file).precision is Precision.FP32
    (tmp_path / "model.toml").write_text('preset = "digits"\nprecision = "tf32"\n')
    assert load_classifier(file).precision is Precision.TF32
    assert load_classifier(file, overrides={"preset": "digits"}).precision is Precision.TF32
    for precision in FLOATING:
        overrides = {"precision": precision.value}
        assert load_classifier(file, overrides=overrides).precision is precision
    (tmp_path / "model.toml").write_text('precision = "int4"\n')
    with pytest.raises(PreprocessingError, match=r"precision = 'int4' is not .* one of \"fp32\""):
        load_classifier(file)


def test_a_model_of_halves_runs_on_halves_and_without_casts(device: Device, tmp_path: Path) -> None:
    weights = {"w": noise(8, 3, 3, 3).astype(np.float16), "v": noise(4, 8 * 36).astype(np.float16)}
    nodes = [
        node("Cast", "x", "h", to=TensorProto.FLOAT16),
        node("Conv", "h w", "c", pads=[1, 1, 1, 1]),
        node("Cast", "c", "f", to=TensorProto.FLOAT),
        node("Relu", "f", "r"),
        node("Cast", "r", "g", to=TensorProto.FLOAT16),
        node("Flatten", "g", "flat"),
        node("Gemm", "flat v", "s", transB=1),
        node("Cast", "s", to=TensorProto.FLOAT),
    ]
    path = tmp_path / "halves.onnx"
    onnx.save(model(nodes, weights, shape=(1, 3, 6, 6)), path)
    flags = {"preset": "imagenet"}
    classifier = load_classifier(path, overrides=flags)
    assert classifier.precision is Precision.FP16
    graph = classifier.rewritten.graph
    assert [type(each).__name__ for each in graph.nodes] == ["Conv", "Reshape", "Gemm"]
    assert graph.values[graph.inputs[0]].stored == HALF
    assert _error(classifier, device, 2) <= network_tolerance(graph)
    plan = build_plan(graph, classifier.preprocessing, 1, H200_CHOICE)
    made = {key: make() for key, make in plan.weights.items() if "16" in key}
    assert len(made) == 2
    assert {array.dtype for array in made.values()} == {HALF.dtype}
    strict = load_classifier(path, overrides={**flags, "precision": "fp32"})
    assert strict.precision is Precision.FP32


@needs_shared
def test_squeezenet_of_halves_runs_in_fp16() -> None:
    path = SHARED / "data/squeezenet1.1-fp16.onnx"
    classifier = load_classifier(path, overrides={"preset": "caffe"})
    assert classifier.precision is Precision.FP16
