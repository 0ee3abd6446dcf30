"""With two commands, a newcomer with a model from another library gets the right labels, or learns
which key to set.

The networks distinguish colours. Their files have the same names, opset, layout, unknown sizes and
types as files of the libraries' exporters. Each network expects the same preprocessing as its
library's models.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from models import PRESETS, ChannelOrder, DeviceKind
from service.hosting.loading import OpenModel, open_models
from service.settings import Settings
from tests.support.command_line import Run

CORNERS = [(r, g, b) for r in (0, 1) for g in (0, 1) for b in (0, 1)]
COLOURS = ("black", "blue", "green", "cyan", "red", "magenta", "yellow", "white")
MIDDLE = 110.0  # of pixels; photographs lie on both sides of it
LIFT = 200.0  # keeps what a ReLU reads above 0

Array = NDArray[np.float32]
Write = Callable[[Array, Array], onnx.ModelProto]


def readout(preset: str) -> tuple[Array, Array]:
    """Return weights, 8×3, and a bias. They map the mean of a preset's tensor to scores, of which
    the nearest colour's is the highest."""
    p = PRESETS[preset]
    corners = np.array(CORNERS, np.float64) * 2 - 1
    if p.channels is ChannelOrder.BGR:
        corners = corners[:, ::-1]
    factor, offset = np.array(p.std) / p.scale, np.array(p.mean) / p.scale
    weights, bias = 0.05 * corners * factor, 0.05 * corners @ (offset - MIDDLE)
    return weights.astype(np.float32), bias.astype(np.float32)


def identity() -> Array:
    """Return a 3×3 window that reads only its centre."""
    window = np.zeros((3, 3, 3, 3), np.float32)
    window[range(3), range(3), 1, 1] = 1
    return window


def paddle(weights: Array, bias: Array) -> onnx.ModelProto:
    """Return a model in the form of Paddle2ONNX: the batch size is -1, a BatchNormalization
    remains, and a softmax is last."""
    lift = np.full(3, LIFT, np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "conv2d_0.w_0"], ["conv2d_0.tmp_0"], pads=[1] * 4),
        helper.make_node(
            "BatchNormalization",
            ["conv2d_0.tmp_0", "bn.w_0", "bn.b_0", "bn.w_1", "bn.w_2"],
            ["batch_norm_0.tmp_2"],
            epsilon=0.0,
        ),
        helper.make_node("Relu", ["batch_norm_0.tmp_2"], ["relu_0.tmp_0"]),
        helper.make_node("GlobalAveragePool", ["relu_0.tmp_0"], ["pool2d_0.tmp_0"]),
        helper.make_node("Flatten", ["pool2d_0.tmp_0"], ["flatten_0.tmp_0"]),
        helper.make_node("MatMul", ["flatten_0.tmp_0", "linear_0.w_0"], ["linear_0.tmp_0"]),
        helper.make_node("Add", ["linear_0.tmp_0", "linear_0.b_0"], ["linear_0.tmp_1"]),
        helper.make_node("Softmax", ["linear_0.tmp_1"], ["softmax_0.tmp_0"], axis=1),
    ]
    ones, zeros = np.ones(3, np.float32), np.zeros(3, np.float32)
    return model(
        nodes,
        {"conv2d_0.w_0": identity(), "bn.w_0": ones, "bn.b_0": lift, "bn.w_1": zeros}
        | {"bn.w_2": ones, "linear_0.w_0": weights.T, "linear_0.b_0": bias - weights @ lift},
        ("x", [-1, 3, 224, 224]),
        ("softmax_0.tmp_0", [-1, 8]),
        opset=11,
    )


def keras(weights: Array, bias: Array) -> onnx.ModelProto:
    """Return a model in the form of tf2onnx: N×H×W×C with a variable batch size, a Transpose before
    the first Conv, and a softmax."""
    name = "functional_1/conv2d_1/convolution"
    nodes = [
        helper.make_node("Transpose", ["image"], [f"{name}__6:0"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", [f"{name}__6:0", "kernel"], [f"{name}:0"], pads=[1] * 4),
        helper.make_node("GlobalAveragePool", [f"{name}:0"], ["Mean__10:0"]),
        helper.make_node("Squeeze", ["Mean__10:0", "const_axes__17"], ["Mean:0"]),
        helper.make_node("MatMul", ["Mean:0", "dense/MatMul/ReadVariableOp:0"], ["MatMul:0"]),
        helper.make_node("Add", ["MatMul:0", "dense/Add/ReadVariableOp:0"], ["Add:0"]),
        helper.make_node("Softmax", ["Add:0"], ["predictions"], axis=1),
    ]
    return model(
        nodes,
        {"kernel": identity(), "dense/MatMul/ReadVariableOp:0": weights.T}
        | {"dense/Add/ReadVariableOp:0": bias, "const_axes__17": np.array([2, 3], np.int64)},
        ("image", ["unk__20", 224, 224, 3]),
        ("predictions", ["unk__21", 8]),
        opset=15,
    )


def timm(weights: Array, bias: Array) -> onnx.ModelProto:
    """Return a model in the form of PyTorch's exporter: N×C×H×W with a named batch axis, and scores
    without a softmax."""
    nodes = [
        helper.make_node("Conv", ["x", "stem.conv.weight", "stem.bias"], ["c"], pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["relu"]),
        helper.make_node("ReduceMean", ["relu", "axes"], ["mean"], keepdims=0),
        helper.make_node("Gemm", ["mean", "head.weight", "head.bias"], ["linear"], transB=1),
    ]
    lift = np.full(3, LIFT, np.float32)
    return model(
        nodes,
        {"stem.conv.weight": identity(), "stem.bias": lift, "head.weight": weights}
        | {"head.bias": bias - weights @ lift, "axes": np.array([2, 3], np.int64)},
        ("x", ["batch", 3, 224, 224]),
        ("linear", ["batch", 8]),
        opset=18,
    )


def halves(weights: Array, bias: Array) -> onnx.ModelProto:
    """Return a model in the form of Caffe2, in float16: opset 7, a batch size of 1, weights among
    the inputs, and scores N×K×1×1."""
    nodes = [
        helper.make_node("GlobalAveragePool", ["data_0"], ["pool_1"]),
        helper.make_node("Conv", ["pool_1", "conv10_w_0", "conv10_b_0"], ["conv10_1"]),
        helper.make_node("Softmax", ["conv10_1"], ["softmaxout_1"], axis=1),
    ]
    made = model(
        nodes,
        {"conv10_w_0": weights.reshape(8, 3, 1, 1), "conv10_b_0": bias},
        ("data_0", [1, 3, 224, 224]),
        ("softmaxout_1", [1, 8, 1, 1]),
        opset=7,
    )
    made.ir_version = 3
    for tensor in made.graph.initializer:
        array = numpy_helper.to_array(tensor).astype(np.float16)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
        as_input = helper.make_tensor_value_info(tensor.name, TensorProto.FLOAT16, array.shape)
        made.graph.input.append(as_input)
    for value in (*made.graph.input, *made.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return made


def model(
    nodes: list[onnx.NodeProto],
    weights: Mapping[str, NDArray[Any]],
    image: tuple[str, list[int | str]],
    scores: tuple[str, list[int | str]],
    opset: int,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "main_graph",
        [helper.make_tensor_value_info(image[0], TensorProto.FLOAT, image[1])],
        [helper.make_tensor_value_info(scores[0], TensorProto.FLOAT, scores[1])],
        [numpy_helper.from_array(np.ascontiguousarray(v), name) for name, v in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


FORMS: dict[str, tuple[Write, str, bool]] = {  # and whether the guess gives the right labels
    "paddle": (paddle, "imagenet", True),
    "timm": (timm, "imagenet", True),
    "timm-inception": (timm, "inception", True),
    "keras-mobilenet": (keras, "inception", True),
    "keras-efficientnet": (keras, "raw", False),
    "keras-resnet50": (keras, "caffe", False),
    "halves": (halves, "caffe", False),
}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Return a folder with a subfolder per colour, which has images of about that colour.
    labels.txt is next to the subfolders."""
    folder = tmp_path / "photos"
    for name, corner in zip(COLOURS, CORNERS, strict=True):
        (folder / name).mkdir(parents=True)
        for number, (dark, light) in enumerate([(20, 230), (60, 190)]):
            pixel = tuple(light if side else dark for side in corner)
            Image.new("RGB", (300, 240), pixel).save(folder / name / f"{number}.png")
    (tmp_path / "labels.txt").write_text("\n".join(COLOURS) + "\n")
    return folder


def arguments(form: str, photos: Path) -> tuple[str | Path, ...]:
    """Save a model in this form next to the photographs, and return arguments that let a command
    run it."""
    write, preset, _ = FORMS[form]
    path = photos.with_name(f"{form}.onnx")
    onnx.save(write(*readout(preset)), path)
    return path, photos, "--labels", photos.with_name("labels.txt"), "--device", "cpu"


def labels_of(out: str) -> list[tuple[str, str]]:
    """Return, for each image that `convoy classify` lists, the colour of its folder and its
    label."""
    return re.findall(r"/photos/(\w+)/\d\.png +(\w+) ", out)


@pytest.mark.parametrize("form", FORMS)
def test_two_commands_lead_to_the_right_labels(convoy: Run, photos: Path, form: str) -> None:
    _, preset, guessed_right = FORMS[form]
    asked = arguments(form, photos)
    status, out, error = convoy("classify", *asked)
    assert status == 0, error
    found = labels_of(out)
    assert len(found) == 16
    if guessed_right:
        assert "probably wrong" not in error
    else:
        assert re.search(r"answers of \S+ are probably wrong: .* --preset \S+", error), error
        assert preset in re.findall(r"([\w-]+) \d+%", error)
        status, out, error = convoy("classify", *asked, "--preset", preset)
        assert status == 0, error
        assert "probably wrong" not in error
        found = labels_of(out)
    assert all(colour == label for colour, label in found), found


@pytest.mark.parametrize("form", FORMS)
def test_check_shows_every_preset_and_advises_the_right_one(
    convoy: Run, photos: Path, form: str
) -> None:
    _, preset, guessed_right = FORMS[form]
    asked = arguments(form, photos)
    status, out, error = convoy("check", *asked)
    assert status == 0, (out, error)
    assert "16 of 16 labels agree" in out
    assert re.search(rf"{preset}(, used)? +\S+ +\S+ +16 of 16", out), out
    assert ("; set --preset" in out) is not guessed_right
    assert guessed_right or f"; set --preset {preset}" in out


def test_a_server_says_that_a_guess_is_probably_wrong(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "efficientnet.onnx"
    onnx.save(keras(*readout("raw")), path)
    settings = Settings(model=path, device=DeviceKind.CPU, threads=1, max_batch=1)
    (opened,) = open_models(settings, None)
    assert isinstance(opened, OpenModel)
    assert opened.info.guess == "imagenet"
    assert "--preset raw" in opened.info.warning
    assert opened.info.warning in caplog.text
    opened.reopen(0).close()  # which is not asked again, and is the same model
    (opened,) = open_models(settings.model_copy(update={"preset": "raw"}), None)
    assert isinstance(opened, OpenModel)
    assert (opened.info.guess, opened.info.warning) == ("", "")
