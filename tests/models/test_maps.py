"""Class activation maps: their means equal the scores, for each network that has them."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from benchmarks.families.check import IMAGE, PLAIN
from benchmarks.families.export import CLASSES
from benchmarks.networks.light import classifier as light_classifier
from benchmarks.networks.light import light_network
from cusim.build import FAST
from cusim.device import CusimDevice
from kernels.device.device import Device
from kernels.device.gpus import H200
from kernels.problems.activation import RELU, Activation, ActivationKind
from kernels.problems.binary_operation import BinaryOp
from kernels.problems.pool import PoolKind
from kernels.problems.precision import Precision
from kernels.problems.reduction import ReduceKind
from kernels.tuning.heuristic import heuristic
from models.classifier import Classifier, load_classifier
from models.digits import MODEL_PATH
from models.engines.engine import Results
from models.engines.onnxruntime_engine import OnnxRuntimeEngine, SessionModel
from models.engines.tolerance import relative_error
from models.graph import Gemm, Graph, Reduce, Softmax
from models.maps import find_maps
from models.onnx_loader import load_proto
from models.plan import build_plan
from models.preprocessing import normalised
from models.served import Absent, Maps
from tests.models.test_inner import FOLDER, averaged, loaded
from tests.support.models.engines import classifier_of, opened, pixels
from tests.support.models.graphs import GraphBuilder
from tests.support.models.reference import run_reference

_SOFT = Activation(ActivationKind.TANH)


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    cusim = CusimDevice(FAST)
    yield cusim
    cusim.close()


def begun() -> tuple[GraphBuilder, str]:
    b = GraphBuilder(0, x=(3, 6, 6))
    return b, b.activate("features", b.conv("conv", "x", 12, 3), RELU)


def pooled_then_gemm(*, softmax: bool = False, pool: PoolKind = PoolKind.AVERAGE) -> Graph:
    b, y = begun()
    y = b.reshape("flat", b.pool("pooled", y, pool, 6), (12,))
    y = b.gemm("logits", y, 5)
    return b.build(b.add(Softmax, "scores", (5,), x=y, axis=0) if softmax else y)


def mean_then_product_and_sum() -> Graph:
    """Return a network as TensorFlow exports it: a mean, a product, and a sum with the bias."""
    b, y = begun()
    y = b.add(Reduce, "mean", (12, 1, 1), x=y, kind=ReduceKind.MEAN, axes=(1, 2))
    y = b.gemm("product", b.reshape("flat", y, (12,)), 5, bias=False)
    bias = b.noise("bias", (5,))
    return b.build(b.binary("scores", BinaryOp.ADD, y, bias))


def pooled_then_conv() -> Graph:
    b, y = begun()
    return b.build(b.reshape("scores", b.conv("head", averaged(b, "pooled", y), 5, 1), (5,)))


def scored_then_pooled(activation: Activation | None = RELU) -> Graph:
    """Return SqueezeNet's end."""
    b, y = begun()
    y = b.conv("scored", y, 5, 1)
    if activation:
        y = b.activate("active", y, activation)
    return b.build(b.reshape("scores", averaged(b, "pooled", y), (5,)))


FORMS: dict[str, Callable[[], Graph]] = {
    "gemm": pooled_then_gemm,
    "softmax": lambda: pooled_then_gemm(softmax=True),
    "mean": mean_then_product_and_sum,
    "conv": pooled_then_conv,
    "positions": lambda: scored_then_pooled(None),
    "rectified": scored_then_pooled,
}


def with_maps(graph: Graph) -> Classifier:
    return replace(classifier_of(graph), maps=find_maps(loaded(graph)))


def of_maps(maps: Maps, results: Results) -> NDArray[np.float32]:
    """Return the scores according to an engine's maps, one row per image."""
    every = range(len(maps.weight))
    rows = [maps.of(each, every) for each in results.inner[maps.features.name]]
    return np.stack([row.mean(axis=(1, 2)) + maps.beside for row in rows])


def logits_of(classifier: Classifier, results: Results) -> NDArray[np.float32]:
    """Return the scores up to a constant, which a softmax removes."""
    last = classifier.network.graph.nodes[-1]
    return np.log(results.scores) if isinstance(last, Softmax) else results.scores


def centred(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    centred: NDArray[np.float32] = rows - rows.mean(axis=1, keepdims=True)
    return centred


@pytest.mark.parametrize("form", FORMS)
def test_the_mean_of_a_map_and_what_remains_are_the_score(form: str) -> None:
    """Compute with the reference, in float64."""
    classifier = with_maps(FORMS[form]())
    maps, graph = classifier.maps, classifier.network.graph
    assert isinstance(maps, Maps)
    assert maps.features.shape == (12, 6, 6)
    x = {graph.inputs[0]: normalised(pixels(classifier, 2), classifier.preprocessing)}
    values = run_reference(graph, x, all_values=True)
    scores = np.asarray(values["logits" if form == "softmax" else graph.outputs[0]])
    found = of_maps(maps, Results(scores, inner={maps.features.name: values[maps.features.name]}))
    np.testing.assert_allclose(found, scores, rtol=1e-5, atol=1e-5)
    (one,) = maps.of(np.asarray(values[maps.features.name])[1], [3])
    assert one.shape == (6, 6)
    np.testing.assert_allclose(one.mean() + maps.beside[3], scores[1, 3], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16])
@pytest.mark.parametrize("form", ["softmax", "mean", "rectified"])
def test_the_kernels_keep_what_maps_are_made_of(
    form: str, precision: Precision, device: Device
) -> None:
    classifier = replace(with_maps(FORMS[form]()), precision=precision)
    maps = classifier.maps
    assert isinstance(maps, Maps)
    engine = opened(classifier, device, max_batch=2)
    results = engine.run(pixels(classifier, 2), [maps.features.name])
    found, expected = of_maps(maps, results), logits_of(classifier, results)
    allowed = 1e-5 if precision is Precision.FP32 else 4e-3
    assert relative_error(centred(found), centred(expected)) < allowed
    engine.close()


def widened() -> Graph:
    b, y = begun()
    y = b.gemm("wide", b.reshape("flat", averaged(b, "pooled", y), (12,)), 8)
    return b.build(b.gemm("scores", y, 5))


def activated() -> Graph:
    b, y = begun()
    y = b.activate("active", averaged(b, "pooled", y), RELU)
    return b.build(b.gemm("scores", b.reshape("flat", y, (12,)), 5))


def flattened() -> Graph:
    b, y = begun()
    return b.build(b.gemm("scores", b.reshape("flat", y, (432,)), 5))


def wide_window() -> Graph:
    """The scores of positions overlap, because the filter is 3×3."""
    b, y = begun()
    return b.build(b.reshape("scores", averaged(b, "pooled", b.conv("head", y, 5, 3)), (5,)))


def of_clips() -> Graph:
    b = GraphBuilder(0, x=(3, 4, 6, 6))
    y = averaged(b, "pooled", b.conv("conv", "x", 12, 3))
    return b.build(b.gemm("scores", b.reshape("flat", y, (12,)), 5))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: pooled_then_gemm(pool=PoolKind.MAX), "not a linear function of averages"),
        (lambda: scored_then_pooled(_SOFT), "not a linear function of averages"),
        (widened, "not a linear function of averages"),
        (activated, "not a linear function of averages"),
        (flattened, "not a linear function of averages"),
        (wide_window, "not a linear function of averages"),
        (of_clips, "the shape 12×4×6×6; maps need several positions"),
    ],
)
def test_a_network_of_another_form_says_why_it_has_none(
    make: Callable[[], Graph], says: str
) -> None:
    found = find_maps(loaded(make()))
    assert isinstance(found, Absent)
    assert says in found.reason


def test_the_built_in_model_and_8_bit_models_have_none() -> None:
    classifier = load_classifier(MODEL_PATH)
    assert isinstance(classifier.maps, Absent)
    assert isinstance(find_maps(replace(loaded(pooled_then_gemm()), quantized=True)), Absent)
    b = GraphBuilder(0, x=(3, 1, 1))
    alone = b.build(b.gemm("scores", b.reshape("flat", averaged(b, "pooled", "x"), (3,)), 5))
    assert isinstance(find_maps(loaded(alone)), Absent)
    assert isinstance(alone.nodes[-1], Gemm)


@pytest.mark.parametrize(("name", "more"), [("inception_v1", 1), ("shufflenet", 0)])
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16])
def test_keeping_them_costs_a_launch_where_siblings_would_write_beside_them(
    name: str, more: int, precision: Precision
) -> None:
    """It also costs no memory. GoogLeNet's last Concat is kept, so its parts cannot be merged with
    others."""
    without = replace(light_classifier(name, light_network(name)), precision=precision)
    kept = replace(without, maps=find_maps(without.network))
    assert isinstance(kept.maps, Maps)
    plans = [
        build_plan(each.rewritten.graph, each.preprocessing, 2, heuristic(H200))
        for each in (without, kept)
    ]
    assert len(plans[1].kept) == 1
    assert len(plans[1].steps) == len(plans[0].steps) + more
    assert plans[0].arena_bytes == plans[1].arena_bytes


def test_onnxruntime_gives_what_maps_are_made_of() -> None:
    name = "squeezenet"
    network = light_classifier(name, light_network(name))
    classifier = replace(network, maps=find_maps(network.network))
    maps = classifier.maps
    assert isinstance(maps, Maps)
    engine = OnnxRuntimeEngine(SessionModel.of(classifier), max_batch=1, threads=1).warm_up()
    results = engine.run(pixels(classifier, 1), [maps.features.name])
    found = centred(of_maps(maps, results))
    assert relative_error(found, centred(np.log(results.scores))) < 1e-4
    engine.close()


@pytest.mark.slow
def test_families_with_maps_have_the_scores_that_these_say() -> None:
    """Test every exported network of timm that qualifies."""
    files = sorted(FOLDER.glob("*.torchscript.dynamic.onnx"))
    if not files:
        pytest.skip(f"needs {FOLDER}, which `python -m benchmarks.families export` fills")
    qualified = []
    for file in files:
        name = file.name.partition(".")[0]
        network = load_proto(name, onnx.load(file), IMAGE)
        maps = find_maps(network)
        if isinstance(maps, Absent):
            continue
        classifier = Classifier(name, network, PLAIN, CLASSES, maps=maps)
        engine = OnnxRuntimeEngine(SessionModel.of(classifier), max_batch=2, threads=1).warm_up()
        results = engine.run(pixels(classifier, 2), [maps.features.name])
        assert relative_error(of_maps(maps, results), results.scores) < 1e-4, name
        engine.close()
        qualified.append(name)
    assert {"densenet121", "efficientnet_b0", "resnetblur18"} <= set(qualified)
