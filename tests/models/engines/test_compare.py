"""When a model is opened, the served scores are compared with ONNX Runtime on the original file."""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from models import (
    BUILT_IN_MODEL,
    Classifier,
    DeviceChoice,
    DeviceKind,
    UnsupportedModelError,
    as_given,
    load_classifier,
    open_engine,
    try_on_cpu,
)
from models.as_given import AsGiven
from models.onnx_loader import normalise
from tests.support.models.onnx_chains import node, noise

SIZE = 16


def network(batch: int | str = "N", opset: int = 9) -> onnx.ModelProto:
    """Return a network with an Upsample of an old opset, as torch wrote it, and an unused node."""
    nodes = [
        node("Conv", "x w", "c", strides=[4, 4]),
        node("Upsample", "c s", "u", mode="linear"),
        node("Relu", "u", "r"),
        node("Exp", "x", "unread"),
        node("GlobalMaxPool", "r", "g"),
        node("Flatten", "g", "f"),
        node("MatMul", "f h"),
    ]
    weights = {
        "w": noise(8, 3, 4, 4),
        "s": np.array([1, 1, 1.5, 1.5], np.float32),
        "h": noise(8, 5) * 9,
    }
    graph = helper.make_graph(
        nodes,
        "old",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, SIZE, SIZE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 5])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=4)


def network_on_integers() -> onnx.ModelProto:
    """Return the same network with a QLinearConv with one scale per channel, as quantizers of opset
    10 wrote it."""
    proto = network(1, 10)
    nodes = [
        node("QuantizeLinear", "x sx zx", "qx"),
        node("QLinearConv", "qx sx zx qw sw zw sc zx b", "qc", strides=[4, 4]),
        node("DequantizeLinear", "qc sc zx", "c"),
        node("Resize", "c s", "u", mode="linear"),
        *proto.graph.node[2:],
    ]
    weights: dict[str, NDArray[Any]] = {
        "sx": np.array(0.02, np.float32),
        "zx": np.array(120, np.uint8),
        # Small ones, whose sums saturate on no processor.
        "qw": (noise(8, 3, 4, 4) * 40).clip(-60, 60).astype(np.int8),
        "sw": np.linspace(0.005, 0.02, 8, dtype=np.float32),
        "zw": np.zeros(8, np.int8),
        "sc": np.array(0.06, np.float32),
        "b": np.arange(-4, 4, dtype=np.int32) * 100,
    }
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    proto.graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in weights.items())
    return proto


def loaded(tmp_path: Path, proto: onnx.ModelProto, **more: Any) -> Classifier:
    path = tmp_path / "old.onnx"
    path.write_bytes(proto.SerializeToString())
    return load_classifier(path, overrides={"preset": "imagenet", "resize": SIZE}, **more)


@pytest.fixture
def broken_conversion(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Convoy use onnx's converter for Upsample."""

    def trusting(model: ir.Model, opset: int) -> None:
        del model, opset

    monkeypatch.setattr(normalise, "keep_old_sampling", trusting)


@pytest.mark.parametrize("batch", ["N", 1, 2])
def test_the_scores_of_the_file_are_those_served(tmp_path: Path, batch: int | str) -> None:
    photographs = np.random.default_rng(5).integers(0, 256, (2, SIZE, SIZE, 3)).astype(np.uint8)
    classifier = loaded(tmp_path, network(batch), photographs=lambda _: photographs)
    given = classifier.given
    assert given is not None
    expected = given.scores()
    assert isinstance(expected, np.ndarray)
    assert expected.shape == (3, 5)
    engine = open_engine(classifier, device=DeviceKind.CPU, max_batch=2)
    np.testing.assert_allclose(engine.run(photographs).scores, expected[:2], rtol=1e-4, atol=1e-4)
    engine.close()


def test_operators_on_integers_are_compared_as_onnx_defines_them(tmp_path: Path) -> None:
    proto = network_on_integers()
    own = onnxruntime.InferenceSession(proto.SerializeToString())
    classifier = loaded(tmp_path, proto)
    assert classifier.network.quantized
    assert classifier.given is not None
    expected = classifier.given.scores()
    assert isinstance(expected, np.ndarray)
    (scores,) = own.run(None, {"x": classifier.given.tensors})
    # ONNX Runtime's kernel on integers may round one number of many to the step beside.
    np.testing.assert_allclose(expected, scores, atol=np.abs(scores).max() / 50)
    open_engine(classifier, device=DeviceKind.CPU, max_batch=1).close()


def test_a_difference_in_a_file_on_integers_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def negate(model: ir.Model) -> None:
        value = model.graph.initializers["h"]
        assert value.const_value is not None
        value.const_value = ir.Tensor(-value.const_value.numpy(), name="h")

    monkeypatch.setattr(normalise, "flush", negate)
    classifier = loaded(tmp_path, network_on_integers())
    with pytest.raises(UnsupportedModelError, match=r"scores differ .* by 2\.0e\+00 of the"):
        open_engine(classifier, device=DeviceKind.CPU, max_batch=1)


@pytest.mark.usefixtures("broken_conversion")
@pytest.mark.parametrize(
    "opener",
    [
        partial(open_engine, device=DeviceKind.CPU, max_batch=2),
        partial(try_on_cpu, choices=[DeviceChoice(DeviceKind.CPU)], max_batch=1, threads=1),
    ],
    ids=["serve", "try"],
)
def test_a_conversion_that_changes_scores_is_refused_with_its_operator(
    tmp_path: Path, opener: Callable[[Classifier], object]
) -> None:
    classifier = loaded(tmp_path, network())
    with pytest.raises(UnsupportedModelError, match=r"The cause is Upsample Upsample_u: "):
        opener(classifier)


@pytest.mark.usefixtures("broken_conversion")
def test_the_difference_is_refused_where_the_file_has_gone(tmp_path: Path) -> None:
    classifier = loaded(tmp_path, network())
    (tmp_path / "old.onnx").unlink()
    with pytest.raises(UnsupportedModelError, match=r"could not be found: .* does not exist"):
        open_engine(classifier, device=DeviceKind.CPU, max_batch=1)


def test_scores_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    proto = network()
    proto.graph.node[-1].output[0] = "logits"
    proto.graph.node.append(node("Sqrt", "logits"))
    classifier = loaded(tmp_path, proto)
    with pytest.raises(
        UnsupportedModelError, match="its scores for 1 of 1 test images are not finite"
    ):
        open_engine(classifier, device=DeviceKind.CPU, max_batch=1)


def test_a_file_that_onnx_runtime_cannot_open_is_served_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_new(data: bytes, threads: int, *, exact: bool = False) -> NoReturn:
        del data, threads, exact
        raise RuntimeError("Opset 99 is under development")

    classifier = loaded(tmp_path, network())
    monkeypatch.setattr(as_given, "open_session", too_new)
    with caplog.at_level(logging.INFO, "convoy"):
        engine = open_engine(classifier, device=DeviceKind.CPU, max_batch=1)
    engine.close()
    assert (
        "not compared with ONNX Runtime's scores for the file: ONNX Runtime cannot open the file"
        in caplog.text
    )
    assert "Opset 99 is under development" in caplog.text


def test_a_higher_number_of_the_ir_does_not_keep_the_file_from_being_compared(
    tmp_path: Path,
) -> None:
    proto = network()
    proto.ir_version = onnx.IR_VERSION
    given = loaded(tmp_path, proto).given
    assert given is not None
    assert isinstance(given.scores(), np.ndarray)


def test_scores_that_differ_though_no_result_inside_does_are_refused() -> None:
    classifier = load_classifier(BUILT_IN_MODEL)
    given = classifier.given
    assert given is not None
    expected = given.scores()
    assert isinstance(expected, np.ndarray)
    wrong = replace(classifier, given=AsGiven(given.tensors, lambda _: expected * np.float32(1.01)))
    with pytest.raises(UnsupportedModelError, match="All intermediate results that exist"):
        open_engine(wrong, device=DeviceKind.CPU, max_batch=1)


LARGE = 3e3  # so that rounding a logit to float32 moves it by some 0.0003


def sensitive() -> onnx.ModelProto:
    """Return a network whose logits are large and nearly alike, before a softmax.

    ONNX Runtime's optimisations fold the BatchNormalization into the convolution, which rounds
    differently.
    """
    channels = 64
    rng = np.random.default_rng(3)
    row = rng.normal(size=(channels, 1))
    near = np.repeat(row, 4, axis=1) * LARGE + rng.normal(size=(channels, 4)) / 30
    weights = {
        "w": noise(channels, 3, 4, 4),
        **{name: rng.uniform(0.5, 1.5, channels).astype(np.float32) for name in "abmv"},
        "h": near.astype(np.float32),
    }
    nodes = [
        node("Conv", "x w", "c", strides=[4, 4]),
        node("BatchNormalization", "c a b m v", "n"),
        node("Relu", "n", "r"),
        node("GlobalAveragePool", "r", "g"),
        node("Flatten", "g", "f"),
        node("MatMul", "f h", "z"),
        node("Softmax", "z", axis=-1),
    ]
    graph = helper.make_graph(
        nodes,
        "sensitive",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, SIZE, SIZE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def opened_with(classifier: Classifier, factor: float) -> float:
    """Open an engine whose scores differ from the file's by a share of the largest score; return
    the difference between the file's two own ways."""
    given = classifier.given
    assert given is not None
    expected = given.scores()
    assert isinstance(expected, np.ndarray)
    most = expected.max(axis=1, keepdims=True)
    other = (expected + np.float32(factor) * most).astype(np.float32)
    moved = replace(classifier, given=AsGiven(given.tensors, lambda _: other))
    try:
        open_engine(moved, device=DeviceKind.CPU, max_batch=1).close()
    finally:
        assert moved.given is not None
        found = moved.given.own_difference
    return found


def test_what_the_files_own_two_ways_differ_by_is_allowed_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    classifier = loaded(tmp_path, sensitive())
    own = opened_with(classifier, 2e-3)
    assert own > 1e-3
    assert "amplifies rounding errors" in caplog.text
    assert f"ONNX Runtime's own optimisations change its scores by {own:.1e}" in caplog.text


def test_what_is_beyond_the_files_own_difference_is_refused_with_it(tmp_path: Path) -> None:
    with pytest.raises(
        UnsupportedModelError, match=r"change its scores by \S+\); at most \S+ is allowed"
    ):
        opened_with(loaded(tmp_path, sensitive()), 0.3)


def test_a_network_that_rounds_as_others_has_no_such_allowance(tmp_path: Path) -> None:
    classifier = loaded(tmp_path, network())
    with pytest.raises(
        UnsupportedModelError, match=r"its scores by \S+e-0[678]\); at most 1\.0e-03 is"
    ):
        opened_with(classifier, 5e-3)


def test_zeros_around_an_image_count_among_a_windows_largest(tmp_path: Path) -> None:
    """ONNX Runtime ignores the zeros if it fuses the two nodes, as in Keras' ResNet50V2."""
    proto = network()
    nodes = [
        node("Conv", "x w", "c", strides=[4, 4]),
        node("Abs", "c", "a"),
        node("Neg", "a", "n"),
        node("Pad", "n p", "q"),
        node("MaxPool", "q", "g", kernel_shape=[3, 3], strides=[2, 2]),
        node("GlobalAveragePool", "g", "m"),
        node("Flatten", "m", "f"),
        node("MatMul", "f h"),
    ]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    pads = numpy_helper.from_array(np.array([0, 0, 1, 1, 0, 0, 1, 1]), "p")
    proto.graph.initializer.append(pads)
    proto.opset_import[0].version, proto.ir_version = 17, 8
    open_engine(loaded(tmp_path, proto), device=DeviceKind.CPU, max_batch=1).close()
