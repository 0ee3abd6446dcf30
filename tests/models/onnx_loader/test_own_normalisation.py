"""A network's first operations tell whether it takes pixels of 0 to 255 or of 0 to 1."""

import logging
from pathlib import Path

import pytest
from onnx import ModelProto, parser

from models import load_classifier
from models.onnx_loader.own_normalisation import takes_pixels_up_to

HEAD = "p = GlobalAveragePool(t) y = Flatten(p)"
CONSTANTS = """
float byte = {0.003921569}, float[1] half_byte = {0.00784314}, float one = {1}, float two = {2},
float[1,3,1,1] mean = {0.485, 0.456, 0.406}, float[1,3,1,1] deviation = {0.229, 0.224, 0.225},
float[1,3,1,1] mean_of_bytes = {123.7, 116.8, 103.9}, float of_bytes = {255}, float minus = {-1},
float[1,3,1,1] mixed = {0.485, 120, 0.4}, float[1,3,8,8] image, float zero = {0}
"""


def model(body: str) -> ModelProto:
    return parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 17]>
        g (float[N,3,8,8] x) => (float[N,3] y) <{CONSTANTS}> {{ {body} {HEAD} }}"""
    )


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
        ("a = Relu(x) t = Mul(a, byte)", None),
        ("a = Mul(x, byte) b = Relu(x) t = Add(a, b)", None),
    ],
)
def test_the_first_operations_tell_or_leave_it_open(body: str, most: float | None) -> None:
    assert takes_pixels_up_to(model(body), "x") == most


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
    assert classifier.preprocessing.guess == preset
    assert f"the preset {preset}, a guess; its first operations normalise" in classifier.origin
    assert "guessed" not in caplog.text


def test_a_flag_or_a_file_counts_more(tmp_path: Path) -> None:
    file = tmp_path / "own.onnx"
    file.write_bytes(model("t = Mul(x, byte)").SerializeToString())
    assert load_classifier(file, overrides={"preset": "inception"}).preprocessing.mean[0] == 1
    (tmp_path / "own.toml").write_text('preset = "caffe"\n')
    assert load_classifier(file).preprocessing.scale == 1.0
    assert load_classifier(file).preprocessing.mean[0] == pytest.approx(103.939)
