"""A network's first operations show whether it expects pixels of 0 to 255 or of 0 to 1."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, numpy_helper, parser

from kernels.problems.interpolation import Interpolation
from models import load_classifier
from models.onnx_loader.own_normalisation import own_normalisation
from models.preprocessing import ChannelOrder

HEAD = "p = GlobalAveragePool(t) y = Flatten(p)"
CONSTANTS = """
float byte = {0.003921569}, float[1] half_byte = {0.00784314}, float one = {1}, float two = {2},
float[1,3,1,1] mean = {0.485, 0.456, 0.406}, float[1,3,1,1] deviation = {0.229, 0.224, 0.225},
float[1,3,1,1] mean_of_bytes = {123.7, 116.8, 103.9}, float of_bytes = {255}, float minus = {-1},
float[1,3,1,1] mixed = {0.485, 120, 0.4}, float[1,3,8,8] image, float zero = {0},
float[1,3,1,1] mean_of_bgr = {103.939, 116.779, 123.68}, int64[3] backwards = {2, 1, 0},
float[3] ones = {1, 1, 1}, float[3] zeros = {0, 0, 0}, float[3] means = {123.7, 116.3, 103.5},
float[3] variances = {3411, 3265, 3294}, float[3,1,1,1] factors = {0.01712, 0.01751, 0.01743},
float[3] shifts = {-2.1179, -2.0357, -1.8044}, float[3,3,1,1] mixing,
float[4] columns = {1, 2, 3, 4},
int64[1] minus_one = {-1}, int64[1] far = {-9}, int64[1] axis = {1}, int64[1] last = {3},
float least = {100}, float below_least = {99}, float most = {300}, float above_most = {301},
float[1,3,1,1] quarters = {0.25, 0.5, 0.75}, float[1,3,1,1] below_quarter = {0.24, 0.5, 0.75},
float[4] scales = {1, 1, 2, 2}, float[1,3,1,1] another_mean = {0.505, 0.456, 0.406},
int64[1] at_0 = {0}, int64[1] at_2 = {2}, int64 first = {0}, int64 third = {2},
int64 second = {1}, float red = {123.7}, float green = {116.8}, float blue = {103.9},
float[3,3,1,1] flip = {0, 0, 1, 0, 1, 0, 1, 0, 0}, float[3,3,1,1] mix = {0, 1, 1, 0, 1, 0, 1, 0, 0},
int64[8] lengths = {3, 3, 3, 3, 3, 3, 3, 3}, int64[1] all = {9223372036854775807},
float[3] bgr = {103.939, 116.779, 123.68},
int64[3,1] rows_backwards = {2, 1, 0}, int64[1,3] one_backwards = {2, 1, 0},
int64[1] seven = {7}, int64[2] sides = {2, 3}, int64[2] from_one = {1, 1},
int64[2] to_seven = {7, 7}, int64[4] axes = {0, 1, 2, 3}, int64[4] from_rows = {0, 0, 1, 1},
int64[4] to_rows = {2147483647, 2147483647, 7, 7}, float step = {2}, uint8 offset = {1},
uint8 code_of_mean = {63}, uint8[1,3,1,1] codes = {63, 60, 53}
"""
MEAN_IMAGE = np.broadcast_to(
    np.array([[[123.7]], [[116.8]], [[103.9]]], np.float32), (3, 8, 8)
) + np.mgrid[-28:29:8, -28:29:8].sum(0, dtype=np.float32)


def model(body: str, opset: int = 17) -> ModelProto:
    made = parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : {opset}]>
        g (float[N,3,8,8] x) => (float[N,3] y) <{CONSTANTS}> {{ {body} {HEAD} }}"""
    )
    made.graph.initializer.append(numpy_helper.from_array(MEAN_IMAGE, "mean_image"))
    return made


CODED = "a = QuantizeLinear(x, step, offset)"
DECODED = "b = DequantizeLinear(a, step, offset)"


def identities(count: int) -> str:
    return " ".join(f"i{index + 1} = Identity(i{index})" for index in range(count))


@pytest.mark.parametrize(
    ("body", "most"),
    [
        ("t = Mul(x, byte)", 255),
        ("t = Mul(byte, x)", 255),
        ("t = Div(x, of_bytes)", 255),
        ("a = Mul(x, byte) t = Add(a, zero)", 255),
        ("a = Mul(x, half_byte) t = Sub(a, one)", 255),
        ("a = Mul(x, byte) b = Sub(a, mean) t = Div(b, deviation)", 255),
        ("t = Sub(x, mean_of_bytes)", 255),
        ("c = Cast<to = 1>(x) t = Sub(c, mean_of_bytes)", 255),
        ("a = Sub(x, mean) t = Div(a, deviation)", 1),
        ("a = Mul(x, two) t = Add(a, minus)", 1),
        ("t = Relu(x)", None),
        ("t = Mul(x, two)", None),
        ("t = Mul(x, minus)", None),
        ("t = Sub(of_bytes, x)", None),
        ("t = Div(one, x)", None),
        ("t = Sub(x, mixed)", None),
        ("t = Add(x, image)", None),
        ("t = Add(x, x)", None),
        ("t = BatchNormalization(x, ones, zeros, means, variances)", 255),
        ("t = BatchNormalization(x, ones, zeros, zeros, ones)", None),
        ("t = Conv<group = 3>(x, factors, shifts)", 255),
        ("t = Conv(x, mixing, shifts)", None),
        ("t = Conv<group = 3, pads = [1, 1, 1, 1]>(x, factors, shifts)", None),
        ("a = Gather<axis = 1>(x, backwards) t = Mul(a, byte)", 255),
        ("a = Mul(x, byte) b = Sub(a, mean) t = Mul(b, columns)", 255),
        ("a = Resize(x, , scales) t = Mul(a, byte)", 255),
        ("s = Shape(x) t = Mul(x, byte) u = Reshape(t, s)", 255),
        ("a = Relu(x) t = Mul(a, byte)", None),
        ("a = Mul(x, byte) b = Relu(x) t = Add(a, b)", None),
        ("t = Div(x, least)", 255),
        ("t = Div(x, below_least)", None),
        ("t = Div(x, most)", 255),
        ("t = Div(x, above_most)", None),
        ("t = Sub(x, quarters)", 1),
        ("t = Sub(x, below_quarter)", None),
        ("a = Slice(x, axis, far, axis, minus_one) t = Sub(a, mean_of_bgr)", None),
        ("t = Sub(x, mean_image)", 255),
        ("t = Mul(x, mean_image)", None),
        ("t = Clip(x, zero, of_bytes)", 255),
        ("t = Clip(x, zero, one)", 1),
        ("a = Max(x, zero) t = Min(of_bytes, a)", 255),
        ("a = Mul(x, half_byte) b = Sub(a, one) t = Clip(b, minus, one)", 255),
        ("a = Mul(x, two) t = Clip(a, zero, two)", 1),
        ("t = Clip(x, , one)", None),
        ("t = Clip(x, zero, two)", None),
        ("t = Max(x, zero)", None),
        ("t = Conv(x, flip, shifts)", None),
        ("a = Conv(x, mix) t = Mul(a, byte)", None),
        ("r = Split<axis = 1>(x) t = Mul(r, byte)", 255),
        ("a = Slice(x, from_one, to_seven, sides) t = Mul(a, byte)", 255),
        ("a = Slice(x, from_rows, to_rows, axes) t = Sub(a, mean)", 1),
        ("a = Slice(x, axis, seven, at_0) t = Sub(a, mean)", None),
        ("a = Slice(x, from_one, to_seven) t = Mul(a, byte)", None),
        ("a = Slice(x, seven, axis, at_2, minus_one) t = Sub(a, mean)", None),
        ("a = Round(x) t = Sub(a, mean_of_bytes)", 255),
        (f"{CODED} {DECODED} t = Mul(b, byte)", 255),
        (f"{CODED} {DECODED} c = DequantizeLinear(codes, step, offset) t = Sub(b, c)", 255),
        (f"{CODED} {DECODED} c = DequantizeLinear(code_of_mean, step) t = Sub(b, c)", 255),
        (f"{CODED} b = Relu(a) t = Mul(b, byte)", None),
        (f"{CODED} b = Clip(a, offset, code_of_mean) t = Mul(b, byte)", None),
        (f"{CODED} b = QuantizeLinear(a, step) t = Mul(b, byte)", None),
        ("b = DequantizeLinear(x, step) t = Mul(b, byte)", None),
        (f"i0 = Identity(x) {identities(62)} t = Mul(i62, byte)", 255),
        (f"i0 = Identity(x) {identities(63)} t = Mul(i63, byte)", None),
        (
            "a, b, c = Split<axis = 1>(x) d = Mul(a, byte) e = Relu(b) t = Concat<axis = 1>(e, d)",
            None,
        ),
    ],
)
def test_the_first_operations_tell_or_leave_it_open(body: str, most: float | None) -> None:
    found = own_normalisation(model(body), "x")
    assert (None if found is None else found.most) == most


def test_channels_that_are_doubled_again_and_again_are_not_followed() -> None:
    doubled = " ".join(f"d{i + 1} = Concat<axis = 1>(d{i}, d{i})" for i in range(12))
    assert own_normalisation(model(f"d0 = Identity(x) {doubled} t = Mul(d12, byte)"), "x") is None


SPLIT = "c0, c1, c2 = Split<axis = 1>(x)"
EACH = "r = Sub(c0, red) g = Sub(c1, green) b = Sub(c2, blue)"
SLICES = """c0 = Slice(x, at_0, axis, axis) c1 = Slice(x, axis, at_2, axis)
c2 = Slice(x, at_2, all, axis)"""
GATHERS = """g0 = Gather<axis = 1>(x, first) g1 = Gather<axis = 1>(x, second)
g2 = Gather<axis = 1>(x, third)
c0 = Unsqueeze(g0, axis) c1 = Unsqueeze(g1, axis) c2 = Unsqueeze(g2, axis)"""
UNSTACK = """s0, s1, s2 = Split<axis = 1>(x)
g0 = Squeeze(s0, axis) g1 = Squeeze(s1, axis) g2 = Squeeze(s2, axis)
c0 = Unsqueeze(g0, axis) c1 = Unsqueeze(g1, axis) c2 = Unsqueeze(g2, axis)"""
TO_NHWC = "a = Transpose<perm = [0, 2, 3, 1]>(x)"
FIRST, BACK = "a = Transpose<perm = [1, 0, 2, 3]>(x)", "c = Transpose<perm = [1, 0, 2, 3]>(b)"
CODED_SPLIT = "c0, c1, c2 = Split<axis = 1>(a) b = Concat<axis = 1>(c2, c1, c0)"
REVERSED = "a = Slice(x, minus_one, far, axis, minus_one)"


@pytest.mark.parametrize(
    ("body", "order"),
    [
        ("t = Sub(x, mean_of_bytes)", "rgb"),
        ("t = Sub(x, mean_of_bgr)", "bgr"),
        ("a = Gather<axis = 1>(x, backwards) t = Sub(a, mean_of_bgr)", "rgb"),
        ("a = Sub(x, mean_of_bgr) t = Gather<axis = -3>(a, backwards)", "bgr"),
        (f"{REVERSED} t = Sub(a, mean_of_bgr)", "rgb"),
        ("a = Slice(x, minus_one, far, last, minus_one) t = Sub(a, mean_of_bgr)", ""),
        ("a = Mul(x, byte) b = Sub(a, mean) t = Div(b, deviation)", "rgb"),
        ("t = BatchNormalization(x, ones, zeros, means, variances)", "rgb"),
        ("t = Conv<group = 3>(x, factors, shifts)", "rgb"),
        ("t = Mul(x, byte)", ""),
        ("t = Sub(x, another_mean)", ""),
        ("a = Concat<axis = 1>(x, x) b = Gather<axis = 1>(a, backwards) t = Sub(b, mean)", ""),
        ("a = Gather<axis = 1>(x, backwards) t = Mul(a, byte)", ""),
        ("t = Sub(x, mean_image)", "rgb"),
        (f"{SPLIT} a = Concat<axis = 1>(c2, c1, c0) t = Sub(a, mean_of_bgr)", "rgb"),
        (f"{SPLIT} a = Concat<axis = -3>(c2, c1, c0) t = Sub(a, mean_of_bytes)", "bgr"),
        (f"{SPLIT} a = Concat<axis = 1>(c2, c1, c1) t = Sub(a, mean_of_bgr)", ""),
        (f"{SPLIT} a = Concat<axis = 1>(c0, c1) t = Sub(a, red)", ""),
        (f"{SPLIT} {EACH} t = Concat<axis = 1>(b, g, r)", "rgb"),
        (f"{SLICES} a = Concat<axis = 1>(c2, c1, c0) t = Sub(a, mean_of_bgr)", "rgb"),
        (f"{GATHERS} a = Concat<axis = 1>(c2, c1, c0) t = Sub(a, mean_of_bgr)", "rgb"),
        (f"{UNSTACK} a = Concat<axis = 1>(c2, c1, c0) t = Sub(a, mean_of_bytes)", "bgr"),
        ("a = Conv(x, flip) t = Sub(a, mean_of_bgr)", "rgb"),
        ("a = Slice(x, from_one, to_seven, sides) t = Sub(a, mean)", "rgb"),
        (f"{FIRST} b = GatherND(a, rows_backwards) {BACK} t = Sub(c, mean_of_bgr)", "rgb"),
        (f"{FIRST} b = GatherND(a, rows_backwards) {BACK} t = Sub(c, mean)", "bgr"),
        (f"{FIRST} b = GatherND(a, one_backwards) {BACK} t = Sub(c, mean)", ""),
        ("b = GatherND(x, rows_backwards) t = Sub(b, mean)", ""),
        (f"{CODED} {CODED_SPLIT} d = DequantizeLinear(b, step, offset) t = Sub(d, mean)", "bgr"),
        (
            f"{TO_NHWC} b = ReverseSequence<time_axis = 3, batch_axis = 2>(a, lengths)"
            " c = Sub(b, bgr) t = Transpose<perm = [0, 3, 1, 2]>(c)",
            "rgb",
        ),
    ],
)
def test_the_means_of_imagenet_tell_the_order_of_the_channels(body: str, order: str) -> None:
    found = own_normalisation(model(body), "x")
    assert ("" if found is None else found.order) == order


@pytest.mark.parametrize("kind", ["float", "uint8"])
def test_an_order_that_they_tell_is_no_guess(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "own.onnx"
    made = model("c = Cast<to = 1>(x) t = Sub(c, mean_of_bgr)")
    if kind == "uint8":
        made.graph.input[0].type.tensor_type.elem_type = TensorProto.UINT8
    file.write_bytes(made.SerializeToString())
    classifier = load_classifier(file)
    found = classifier.preprocessing
    assert (found.channels, found.scale, found.guess) == (ChannelOrder.BGR, 1.0, "")
    assert "its first operations: channels" in classifier.origin
    found = load_classifier(file, overrides={"channels": "rgb"}).preprocessing
    assert found.channels is ChannelOrder.RGB


@pytest.mark.parametrize(
    ("first", "last", "resize"),
    [
        ("a = Slice(x, from_one, to_seven, sides)", "t = Mul(a, byte)", 8),
        ("a = Slice(x, from_one, to_seven, sides)", "t = Sub(a, mean)", 8),
        ("a = Slice(x, at_0, all, last, at_2)", "t = Mul(a, byte)", 9),
        ("a = Slice(x, at_0, all, last)", "t = Mul(a, byte)", 9),
    ],
)
def test_an_image_that_the_network_cuts_is_not_cut_before(
    first: str, last: str, resize: int, tmp_path: Path
) -> None:
    file = tmp_path / "own.onnx"
    file.write_bytes(model(f"{first} {last}").SerializeToString())
    classifier = load_classifier(file)
    assert classifier.preprocessing.resize == resize
    assert ("crop_pct" in classifier.origin) == (resize == 8)
    assert load_classifier(file, overrides={"resize": 12}).preprocessing.resize == 12


@pytest.mark.parametrize(
    ("body", "scale"), [("t = Mul(x, byte)", 1.0), ("a = Mul(x, two) t = Add(a, minus)", 1 / 255)]
)
def test_a_network_of_one_channel_normalises_itself_too(
    body: str, scale: float, tmp_path: Path
) -> None:
    file = tmp_path / "own.onnx"
    made = model(body)
    made.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 1
    made.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 1
    file.write_bytes(made.SerializeToString())
    assert load_classifier(file).preprocessing.scale == scale


@pytest.mark.parametrize(
    ("body", "preset"),
    [("t = Mul(x, byte)", "raw"), ("a = Sub(x, mean) t = Div(a, deviation)", "unit")],
)
def test_what_they_tell_is_taken_and_said(
    body: str, preset: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "own.onnx"
    file.write_bytes(model(body).SerializeToString())
    with caplog.at_level(logging.INFO):
        classifier = load_classifier(file)
    assert classifier.preprocessing.scale == {"raw": 1.0, "unit": 1 / 255}[preset]
    assert classifier.preprocessing.guess == ("" if "mean" in body else preset)
    assert f"its first operations normalise pixels, so the preset {preset}" in classifier.origin
    assert ("a guess" in classifier.origin) is ("mean" not in body)
    assert "guessed" not in caplog.text


def test_a_flag_or_a_file_counts_more(tmp_path: Path) -> None:
    file = tmp_path / "own.onnx"
    file.write_bytes(model("t = Mul(x, byte)").SerializeToString())
    assert load_classifier(file, overrides={"preset": "inception"}).preprocessing.mean[0] == 1
    (tmp_path / "own.toml").write_text('preset = "caffe"\n')
    assert load_classifier(file).preprocessing.scale == 1.0
    assert load_classifier(file).preprocessing.mean[0] == pytest.approx(103.939)


@pytest.mark.parametrize("normalises", [True, False])
def test_a_file_does_not_normalise_again(
    normalises: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "own.onnx"
    body = "t = Sub(x, mean_of_bgr)" if normalises else "t = Relu(x)"
    file.write_bytes(model(body).SerializeToString())
    said = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225], "input_size": [3, 8, 8]}
    (tmp_path / "config.json").write_text(json.dumps({"pretrained_cfg": said}))
    found = load_classifier(file).preprocessing
    assert ("already normalise pixels" in caplog.text) is normalises
    if normalises:
        assert (found.scale, found.mean, found.std) == (1.0, (0.0,) * 3, (1.0,) * 3)
        assert found.channels is ChannelOrder.BGR
    else:
        assert (found.mean, found.channels) == ((0.485, 0.456, 0.406), ChannelOrder.RGB)
    assert found.interpolation is Interpolation.BICUBIC  # timm's default
    found = load_classifier(file, overrides={"scale": 0.5}).preprocessing
    assert (found.scale, found.mean) == (0.5, (0.485, 0.456, 0.406))
