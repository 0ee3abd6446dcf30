"""Embeddings: the chosen value, and both engines' results compared with the file cut at that
value."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx.utils import Extractor

from benchmarks.families.check import IMAGE, PLAIN
from benchmarks.families.export import CLASSES
from benchmarks.networks.light import classifier as light_classifier
from benchmarks.networks.light import light_network
from cusim.build import FAST
from cusim.device import CusimDevice
from kernels.device.device import Device
from kernels.device.gpus import H200
from kernels.problems.binary_operation import BinaryOp
from kernels.problems.pool import PoolKind
from kernels.problems.precision import Precision
from kernels.tuning.heuristic import heuristic
from models.classifier import Classifier, load_classifier
from models.digits import MODEL_PATH
from models.engines.engine import Images
from models.engines.onnxruntime_engine import OnnxRuntimeEngine, SessionModel
from models.engines.tolerance import relative_error
from models.errors import UnsupportedModelError
from models.graph import GlobalPool, Graph
from models.inner import find_embedding
from models.onnx_loader import LoadedModel, load_proto
from models.plan import build_plan
from models.preprocessing import normalised
from models.served import Absent, Inner, as_vectors
from tests.support import ROOT
from tests.support.models.engines import classifier_of, opened, pixels
from tests.support.models.graphs import GraphBuilder
from tests.support.models.reference import run_reference
from tests.support.onnx_models import onnxruntime_session

FOLDER = ROOT / ".cache" / "families"

TEN = (
    "cs3darknet_focus_s",
    "densenet121",
    "dla46_c",
    "efficientnet_b0",
    "hgnetv2_b0",
    "legacy_seresnet18",
    "mobilenetv2_050",
    "mobilenetv3_small_050",
    "regnety_002",
    "resnetblur18",
)


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    cusim = CusimDevice(FAST)
    yield cusim
    cusim.close()


def loaded(graph: Graph) -> LoadedModel:
    """Return a typed graph with an ONNX form that has the same names of values and computes
    nothing."""
    nodes = [onnx.helper.make_node("Any", [], [node.output]) for node in graph.nodes]
    proto = onnx.ModelProto(graph=onnx.GraphProto(node=nodes))
    return LoadedModel(graph.name, graph, proto)


def embeds(graph: Graph) -> Classifier:
    network = loaded(graph)
    return replace(classifier_of(graph), embedding=find_embedding(network))


def averaged(b: GraphBuilder, output: str, x: str) -> str:
    return b.add(GlobalPool, output, (b.shapes[x][0], 1, 1), x=x, kind=PoolKind.AVERAGE)


def with_gemm() -> Graph:
    b = GraphBuilder(0, x=(3, 6, 6))
    y = averaged(b, "pooled", b.conv("conv", "x", 12, 3))
    return b.build(b.gemm("scores", b.reshape("flat", y, (12,)), 5))


def with_conv_of_positions() -> Graph:
    """Return SqueezeNet's end: scores at each position, which are averaged."""
    b = GraphBuilder(0, x=(3, 6, 6))
    y = b.conv("scored", b.conv("conv", "x", 12, 3), 5, 1)
    return b.build(b.reshape("scores", averaged(b, "pooled", y), (5,)))


def flattened() -> Graph:
    """Return a Gemm of C×H×W, whose columns a rule permutes."""
    b = GraphBuilder(0, x=(3, 6, 6))
    return b.build(b.gemm("scores", b.reshape("flat", b.conv("conv", "x", 5, 3), (180,)), 5))


FORMS = {
    "gemm": (with_gemm, Inner("flat", (12,))),
    "positions": (with_conv_of_positions, Inner("conv", (12, 6, 6))),
    "flattened": (flattened, Inner("flat", (180,))),
}


def expected_values(classifier: Classifier, inner: Inner, images: Images) -> NDArray[np.float64]:
    """Compute the value with the reference, from the graph as loaded."""
    graph = classifier.network.graph
    x = {graph.inputs[0]: normalised(images, classifier.preprocessing)}
    values = run_reference(graph, x, all_values=True)
    return np.asarray(values[inner.name], np.float64)


@pytest.mark.parametrize("form", FORMS)
def test_the_embedding_is_what_the_last_linear_layer_reads(form: str) -> None:
    make, inner = FORMS[form]
    assert find_embedding(loaded(make())) == inner


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16])
@pytest.mark.parametrize("form", FORMS)
def test_the_kernels_keep_it_beside_the_scores(
    form: str, precision: Precision, device: Device
) -> None:
    """This includes batches of both pixels and tensors, and the scores equal those of a plan
    without the value."""
    classifier = replace(embeds(FORMS[form][0]()), precision=precision)
    inner = FORMS[form][1]
    images = pixels(classifier, 3)
    tensors = normalised(images, classifier.preprocessing)
    expected = expected_values(classifier, inner, images)
    engine = opened(classifier, device, max_batch=3)
    alone = opened(replace(classifier, embedding=Absent("")), device, max_batch=3)
    allowed = 1e-5 if precision is Precision.FP32 else 4e-3
    for batch in (images, [tensors[0], images[1], tensors[2]]):
        results = engine.run(batch, [inner.name])
        assert results.inner[inner.name].shape == (3, *inner.shape)
        assert relative_error(results.inner[inner.name], expected) < allowed
        assert (results.scores == alone.run(batch).scores).all()
    assert not engine.run(images).inner
    engine.close()
    alone.close()


def test_what_is_kept_is_not_written_over_by_steps_that_follow() -> None:
    """Without the request, the plan would overwrite the embedding after its Gemm."""
    b = GraphBuilder(0, x=(3, 6, 6))
    y = b.reshape("flat", b.conv("conv", "x", 5, 3), (180,))
    for number in range(4):
        y = b.gemm(f"more{number}", y, 180)
    network = loaded(b.build(b.gemm("scores", y, 5)))
    kept = replace(classifier_of(network.graph), embedding=find_embedding(network, "flat"))
    for classifier in (kept, replace(kept, embedding=Absent(""))):
        plan = build_plan(classifier.rewritten.graph, classifier.preprocessing, 2, heuristic(H200))
        spans = {
            life.name: (plan.offsets[life.name], plan.offsets[life.name] + life.nbytes)
            for life in plan.buffers
        }
        begin, end = spans.pop("conv")
        meets = any(low < end and begin < high for low, high in spans.values())
        assert meets is (classifier is not kept)


@pytest.mark.parametrize("name", ["inception_v1", "squeezenet"])
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16])
def test_keeping_it_costs_no_launch_and_no_memory(name: str, precision: Precision) -> None:
    without = replace(light_classifier(name, light_network(name)), precision=precision)
    kept = replace(without, embedding=find_embedding(without.network))
    plans = [
        build_plan(each.rewritten.graph, each.preprocessing, 2, heuristic(H200))
        for each in (without, kept)
    ]
    assert len(plans[1].kept) == 1
    assert [step.launch for step in plans[0].steps] == [step.launch for step in plans[1].steps]
    assert plans[0].arena_bytes == plans[1].arena_bytes


def test_where_no_layer_makes_the_scores_the_reason_is_said_and_a_node_may_be_named() -> None:
    b = GraphBuilder(0, x=(3, 6, 6))
    left, right = b.conv("left", "x", 5, 3), b.conv("right", "x", 5, 3)
    both = b.binary("both", BinaryOp.ADD, left, right)
    network = loaded(b.build(averaged(b, "scores", both)))
    absent = find_embedding(network)
    assert isinstance(absent, Absent)
    assert "no linear layer" in absent.reason
    assert find_embedding(network, "both") == Inner("both", (5, 6, 6))
    with pytest.raises(UnsupportedModelError, match=r"no node of that name; .*conv_left"):
        find_embedding(network, "bath")
    assert isinstance(find_embedding(loaded(with_gemm()), "none"), Absent)
    with pytest.raises(UnsupportedModelError, match="the output of this node is the scores"):
        find_embedding(loaded(with_gemm()), "scores")
    with pytest.raises(UnsupportedModelError, match="no node of the file has the output"):
        find_embedding(LoadedModel("", with_gemm(), onnx.ModelProto()), "conv")
    with pytest.raises(UnsupportedModelError, match="no node of that name"):
        find_embedding(loaded(with_gemm()), "x")  # the image


@pytest.mark.parametrize(
    ("shape", "size"), [((8,), 8), ((8, 1, 1), 8), ((8, 3, 2), 8), ((5, 8), 8), ((8, 1), 8)]
)
def test_positions_are_averaged_to_a_vector(shape: tuple[int, ...], size: int) -> None:
    value = np.random.default_rng(0).random((2, *shape), np.float32)
    vectors = as_vectors(value)
    assert vectors.shape == (2, size) == (2, Inner("x", shape).size)
    of_image = value[1].reshape(shape)
    mean = of_image.mean(axis=0) if shape == (5, 8) else of_image.reshape(8, -1).mean(axis=1)
    np.testing.assert_allclose(vectors[1], mean, rtol=1e-6)


# --- against ONNX Runtime on the graph cut there --------------------------------------------------


def cut(classifier: Classifier, path: Path, images: Images) -> NDArray[np.float32]:
    """Compute the embedding with ONNX Runtime alone, from the file cut at its node."""
    assert isinstance(classifier.embedding, Inner)
    proto = onnx.shape_inference.infer_shapes(onnx.load(path))
    image = proto.graph.input[0].name
    part = Extractor(proto).extract_model([image], [classifier.embedding.name])
    session = onnxruntime_session(part)
    x = normalised(images, classifier.preprocessing)
    values = [session.run(None, {image: each[np.newaxis]})[0] for each in x]
    return np.concatenate(values).reshape(len(images), *classifier.embedding.shape)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_built_in_model_gives_what_its_file_cut_there_gives(threads: int) -> None:
    classifier = load_classifier(MODEL_PATH)
    images = pixels(classifier, 5)
    expected = cut(classifier, MODEL_PATH, images)
    name = classifier.embedding.name  # type: ignore[union-attr]
    engine = OnnxRuntimeEngine(SessionModel.of(classifier), max_batch=5, threads=threads).warm_up()
    tensors = normalised(images, classifier.preprocessing)
    for batch in (images, list(images), [images[0], *tensors[1:4], images[4]]):
        results = engine.run(batch, [name])
        np.testing.assert_allclose(results.inner[name], expected, atol=1e-4)
        assert (results.scores.argmax(1) == engine.run(images).scores.argmax(1)).all()
    engine.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", TEN)
def test_a_family_gives_what_its_file_cut_there_gives(name: str, device: Device) -> None:
    """Run both ONNX Runtime and the kernels in fp32."""
    file = FOLDER / f"{name}.torchscript.dynamic.onnx"
    if not file.is_file():
        pytest.skip(f"needs {file}, which `python -m benchmarks.families export` writes")
    network = load_proto(name, onnx.load(file), IMAGE)
    classifier = Classifier(name, network, PLAIN, CLASSES, embedding=find_embedding(network))
    images = pixels(classifier, 2)
    expected = as_vectors(cut(classifier, file, images))
    inner = classifier.embedding.name  # type: ignore[union-attr]
    for engine in (
        OnnxRuntimeEngine(SessionModel.of(classifier), max_batch=2, threads=1).warm_up(),
        opened(classifier, device, max_batch=2),
    ):
        found = as_vectors(engine.run(images, [inner]).inner[inner])
        assert relative_error(found, expected) < 1e-4
        engine.close()
