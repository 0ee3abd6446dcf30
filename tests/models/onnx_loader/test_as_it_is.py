"""ONNX Runtime serves models unchanged if typed nodes cannot express them."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from models import DeviceKind, UnsupportedModelError, load_classifier, open_engine
from models.engines.original import Original
from models.engines.tolerance import relative_error
from models.errors import NoKernelsError
from models.onnx_loader import Opaque, load_proto
from models.preprocessing import normalised
from tests.support.models.attention import CLASSES, SIZE, attention
from tests.support.models.onnx_chains import node, noise
from tests.support.onnx_models import run_onnxruntime

SAYS = r"Tile: the operator is not supported \(in Tile_passed; 1 node\)"


def unknown(batch: int | str = 1, element: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """Return a network with an operator that typed nodes cannot express."""
    return attention(batch, element, unknown=True)


def saved(tmp_path: Path, proto: onnx.ModelProto) -> Path:
    path = tmp_path / "vit.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


# Of 16 operators that each round to half precision, where another N may sum in another order.
ERRORS: dict[int, float] = {TensorProto.FLOAT: 1e-5, TensorProto.FLOAT16: 16 * 2.0**-11}


@pytest.mark.parametrize("element", [TensorProto.FLOAT, TensorProto.FLOAT16], ids=["32", "16"])
@pytest.mark.parametrize("batch", [1, "N", -1])
def test_it_is_served_on_the_cpu_at_every_n_and_a_line_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, batch: int | str, element: int
) -> None:
    path = saved(tmp_path, unknown(batch, element))
    classifier = load_classifier(path, overrides={"preset": "imagenet", "resize": SIZE})
    with caplog.at_level(logging.WARNING, "convoy"):
        engine = open_engine(classifier, device=DeviceKind.AUTO, max_batch=3)
    assert "vit: Convoy's kernels cannot run this model" in caplog.text
    assert engine.fallback_reason == "Convoy's kernels cannot run this model"
    images = np.random.default_rng(0).integers(0, 256, (3, SIZE, SIZE, 3)).astype(np.uint8)
    expected = np.stack([Original(path, classifier).run(image) for image in images])
    for n in (1, 2, 3):
        assert relative_error(engine.run(images[:n]).scores, expected[:n]) < ERRORS[element]
    engine.close()


def test_a_gpu_refuses_it_with_a_line_a_reason(tmp_path: Path) -> None:
    classifier = load_classifier(saved(tmp_path, unknown()), overrides={"preset": "imagenet"})
    assert [type(each) for each in classifier.network.graph.nodes] == [Opaque]
    with pytest.raises(NoKernelsError, match=SAYS) as caught:
        open_engine(classifier, device=DeviceKind.CUDA, max_batch=1)
    operators = [line.split(":")[0].strip() for line in str(caught.value).splitlines()[1:-1]]
    assert len(operators) == len(set(operators))
    with pytest.raises(NoKernelsError, match=SAYS):
        _ = classifier.rewritten


def test_its_softmax_is_seen(tmp_path: Path) -> None:
    path = saved(tmp_path, attention(head="Softmax", unknown=True))
    classifier = load_classifier(path, overrides={"preset": "imagenet"})
    assert classifier.preprocessing.output.value == "probabilities"


def test_only_a_classifier_is_loaded_as_it_is() -> None:
    with pytest.raises(NoKernelsError, match=SAYS):
        load_proto("vit", unknown())


def test_a_file_of_onnx_runtimes_optimizer_is_refused_with_a_remedy(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[N,3,8,8] x) => (float[N,3] y)
        <float[3,3,1,1] w = {1, 0, 0, 0, 1, 0, 0, 0, 1}>
        { c = com.microsoft.FusedConv<activation = "Relu">(x, w)
          p = GlobalAveragePool(c) y = Flatten(p) }"""
    )
    says = r"does not define FusedConv .* Give the file from which ONNX Runtime's optimizer"
    with pytest.raises(UnsupportedModelError, match=says) as refused:
        load_classifier(saved(tmp_path, proto), overrides={"preset": "raw"})
    assert "cannot run the model: the shape of its scores" in str(refused.value)


def test_a_larger_fixed_batch_is_refused(tmp_path: Path) -> None:
    proto = unknown("N")
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4
    with pytest.raises(UnsupportedModelError, match="its batch size is fixed at 4"):
        load_classifier(saved(tmp_path, proto), overrides={"preset": "imagenet"})


@pytest.mark.parametrize("batch", [1, "N"])
def test_a_quantized_model_runs_on_the_cpu(tmp_path: Path, batch: int | str) -> None:
    """Return the scores of pixels that are rounded to steps of 1/16."""
    w = noise(CLASSES, 3, 1, 1)
    graph = helper.make_graph(
        [
            node("QuantizeLinear", "x step zero", "q"),
            node("DequantizeLinear", "q step zero", "d"),
            node("Conv", "d w", "c"),
            node("GlobalAveragePool", "c", "m"),
            node("Flatten", "m", "y"),
        ],
        "quantized",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (batch, 3, SIZE, SIZE))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (batch, CLASSES))],
        [
            numpy_helper.from_array(np.array(1 / 16, np.float32), "step"),
            numpy_helper.from_array(np.array(0, np.int8), "zero"),
            numpy_helper.from_array(w, "w"),
        ],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    path = saved(tmp_path, proto)
    classifier = load_classifier(path, overrides={"preset": "imagenet", "resize": SIZE})
    assert not classifier.network.no_kernels
    engine = open_engine(classifier, device=DeviceKind.CPU, max_batch=3)
    engine.warm_up()
    pixels = np.random.default_rng(0).integers(0, 256, (3, SIZE, SIZE, 3), np.uint8)
    x = normalised(pixels, classifier.preprocessing)
    steps = np.round(x * 16).clip(-128, 127) / 16
    expected = steps.mean((2, 3)) @ w[:, :, 0, 0].T
    scores = np.concatenate([engine.run(pixels[i : i + 1]).scores for i in range(3)])
    assert relative_error(scores, expected) < 1e-5
    engine.close()


@pytest.mark.parametrize("opset", [20, 26, 28])
def test_numbers_above_onnx_runtimes_are_lowered(tmp_path: Path, opset: int) -> None:
    """Save a model with onnx's newest IR version and opset, which onnx writes by default."""
    proto = unknown()
    proto.opset_import[0].version = opset
    proto.ir_version = onnx.IR_VERSION
    older = unknown()
    older.graph.CopyFrom(proto.graph)
    classifier = load_classifier(saved(tmp_path, proto), overrides={"preset": "imagenet"})
    assert classifier.network.no_kernels
    engine = open_engine(classifier, device=DeviceKind.CPU, max_batch=1)
    image = np.random.default_rng(0).integers(0, 256, (1, SIZE, SIZE, 3)).astype(np.uint8)
    x = normalised(image, classifier.preprocessing)
    np.testing.assert_allclose(
        engine.run(image).scores, run_onnxruntime(older, {"x": x})["y"], rtol=1e-4, atol=1e-5
    )
    engine.close()


NOT_LARGER = {"keep_aspect_ratio_policy": "not_larger"}
BELOW = {"kernel_shape": [1, 1], "auto_pad": "SAME_UPPER"}
POOL = {"kernel_shape": [2, 2], "auto_pad": "SAME_UPPER"}


@pytest.mark.parametrize(
    ("op", "attributes", "says"),
    [
        ("Resize", {**NOT_LARGER, "axes": [2, 3]}, ""),
        ("Resize", {**NOT_LARGER, "axes": [-2, -1]}, "ignores keep_aspect_ratio_policy=not_larger"),
        ("MaxPool", {**POOL, "dilations": [1, 2]}, "pads too little"),
        ("AveragePool", {**POOL, "dilations": [2, 1]}, "pads too little"),
        ("LpPool", POOL, ""),
        ("LpPool", {**BELOW, "strides": [3, 3]}, ""),  # the last window begins at pixel 3 of 5
        ("LpPool", {**BELOW, "strides": [1, 4]}, ""),
        ("LpPool", {**BELOW, "strides": [1, 5]}, "cuts pixels off"),
    ],
)
def test_a_node_that_onnx_runtime_computes_wrong_is_refused(
    op: str, attributes: dict[str, Any], says: str
) -> None:
    inputs = ["x", "", "", "sizes"] if op == "Resize" else ["x"]
    nodes = [
        helper.make_node(op, inputs, ["large"], name="the_node", **attributes),
        helper.make_node("ReduceMean", ["large", "hw"], ["y"], keepdims=0),
    ]
    constants = {"sizes": np.array([4, 6]), "hw": np.array([2, 3])}
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "pools",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 5, 5])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])],
            [numpy_helper.from_array(array, name) for name, array in constants.items()],
        ),
        opset_imports=[helper.make_opsetid("", 19)],
    )
    if says:
        with pytest.raises(UnsupportedModelError, match=f"in {op} the_node, it {says}"):
            load_proto("pools", model, opaque=True)
    else:
        assert load_proto("pools", model, opaque=True).no_kernels


@pytest.mark.parametrize("ceil_mode", [0, 1])
def test_an_average_of_positions_beyond_the_padding_is_refused(ceil_mode: int) -> None:
    window: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2], "channels_last": 1}
    average = helper.make_node(
        "QLinearAveragePool",
        ["q", "step", "zero", "step", "zero"],
        ["average"],
        name="the_node",
        domain="com.microsoft",
        ceil_mode=ceil_mode,
        count_include_pad=1,
        **window,
    )
    nodes = [
        node("QuantizeLinear", "x step zero", "q"),
        average,
        node("DequantizeLinear", "average step zero", "d"),
        node("Reshape", "d shape", "y"),  # onnx infers no shape of an average over channels_last
    ]
    outputs = 5 * 3 * (3 if ceil_mode else 2)
    proto = helper.make_model(
        helper.make_graph(
            nodes,
            "averages",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 10, 5, 3])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, outputs])],
            [
                numpy_helper.from_array(np.array(1 / 16, np.float32), "step"),
                numpy_helper.from_array(np.array(0, np.int8), "zero"),
                numpy_helper.from_array(np.array([1, outputs]), "shape"),
            ],
        ),
        opset_imports=[helper.make_opsetid("", 19), helper.make_opsetid("com.microsoft", 1)],
    )
    if ceil_mode:
        with pytest.raises(UnsupportedModelError, match="the_node, it counts positions beyond"):
            load_proto("averages", proto, opaque=True)
    else:
        assert load_proto("averages", proto, opaque=True).no_kernels
