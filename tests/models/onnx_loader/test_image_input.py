"""The inputs that are images, their types, and the errors for other inputs."""

import logging
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, parser

from models import UnsupportedModelError, load_classifier
from models.engines.engine import DeviceKind
from models.engines.open_engine import open_engine
from models.engines.original import Original
from models.errors import ModelError, PreprocessingError
from models.onnx_loader import image_input

HEAD = "p = GlobalAveragePool(f) y = Flatten(p)"
CAST = "f = Cast<to = 1>(x)"
TURN = "t = Transpose<perm = [0, 3, 1, 2]>"


def model(image: str, body: str = CAST + HEAD, y: str = "float[N,3] y") -> ModelProto:
    return parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 17]>
        g ({image}) => ({y})
        <float[1] half = {{0.5}}, float[1] m = {{127}}, uint8[1] two = {{2}},
         double[3,3,1,1] w = {{1, 0, 0, 0, 1, 0, 0, 0, 1}}> {{ {body} }}"""
    )


def save(path: Path, proto: ModelProto) -> Path:
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.mark.parametrize(
    ("image", "says"),
    [
        (
            "float[3,32,32] x",
            r"x of the shape 3×32×32 is one image without a batch axis.*N×3×32×32",
        ),
        ("float[32,32,3] x", "32×32×3 is one image without a batch axis; .* N×32×32×3"),
        ("float[1,H,W] x", "1×H×W is one image without a batch axis"),
        ("float[N,3072] x", "x of the shape N×3072 is a row of numbers per image"),
        ("float[N] x", "x of the shape N is not an image: .* N×3×H×W, or N×H×W×3"),
        ("float[N,H,W] x", "x of the shape N×H×W is not an image"),
        ("float[N,1,1,3,8,8] x", "N×1×1×3×8×8 is not an image"),
        ("uint8[n] x", "x of the shape n takes encoded files, which Convoy decodes itself"),
        ("string[N] x", "x of the shape N takes encoded files"),
        ("string[N,1] x", "x of the shape N×1 takes encoded files"),
        ("int8[N,3,8,8] x", r"x of the shape N×3×8×8 has the type INT8; .* float32, .* or uint8\."),
        ("uint16[N,3,8,8] x", "has the type UINT16"),
        ("int32[N,3,8,8] x", "has the type INT32"),
        ("int64[N,3,?,8] x", r"N×3×\?×8 has the type INT64"),
        ("bool[N,3,8,8] x", "has the type BOOL"),
        ("float[N,3,8,8] x, float[N,2] z", r"has 2 inputs \(x, z\)"),
        ("seq(float[N,3,8,8]) x", "input x is not a tensor"),
    ],
)
def test_what_is_no_image_is_refused_with_the_whole_shape(image: str, says: str) -> None:
    with pytest.raises(UnsupportedModelError, match=says):
        image_input(model(image, "y = Identity(x)"))


def test_an_input_without_a_shape_is_refused() -> None:
    proto = model("float[N,3,8,8] x")
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(UnsupportedModelError, match=r"input x has no shape; .* N×3×H×W"):
        image_input(proto)


@pytest.mark.parametrize(
    ("image", "says"),
    [
        ("float[N,3,48,W] x", r"images of 3×48×\?. .* leaves their width open. Set .* width = 48,"),
        (
            "float[N,3,H,40] x",
            r"images of 3×\?×40. .* leaves their height open. Set .* height = 40,",
        ),
        ("float[N,3,H,W] x", r"images of 3×\?×\?. .* leaves their size open. .* size = 224,"),
        ("uint8[N,H,W,3] x", r"images of \?×\?×3. .* size = 224,"),
        ("float[N,1,3,8,8] x", "takes N×1×3×8×8, which may be clips .* frames = 3 .* N×3×8×8"),
        ("float[N,1,8,8,3] x", "takes N×1×8×8×3, which may be clips .* N×8×8×3"),
    ],
)
def test_the_key_that_is_missing_is_named(tmp_path: Path, image: str, says: str) -> None:
    with pytest.raises(PreprocessingError, match=says):
        load_classifier(save(tmp_path / "m.onnx", model(image)))


@pytest.mark.parametrize(
    ("body", "kernels"),
    [
        (f"{TURN}(x) f = Cast<to = 1>(t) {HEAD}", True),
        (f"f0 = Cast<to = 1>(x) {TURN}(f0) f = Identity(t) {HEAD}", True),
        (f"{TURN}(x) c = Cast<to = 1>(t) d = Sub(c, m) f = Mul(d, half) {HEAD}", True),
        (f"d = Div(x, two) {TURN}(d) f = Cast<to = 1>(t) {HEAD}", False),  # on bytes
        (f"{TURN}(x) h = Cast<to = 10>(t) f = Cast<to = 1>(h) {HEAD}", True),  # float16
    ],
)
def test_bytes_are_pixels_as_they_are(
    tmp_path: Path, body: str, kernels: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = save(tmp_path / "m.onnx", model("uint8[N,6,5,3] x", body))
    with caplog.at_level(logging.WARNING):
        classifier = load_classifier(path)
    p = classifier.preprocessing
    assert (p.scale, p.mean, p.std, p.guess) == (1, (0,) * 3, (1,) * 3, "")
    assert "imagenet" not in caplog.text
    assert bool(classifier.network.no_kernels) is not kernels
    pixels = np.random.default_rng(0).integers(0, 256, (2, 6, 5, 3), np.uint8)
    engine = open_engine(classifier, device=DeviceKind.CPU, max_batch=2)
    original = Original(path, classifier)
    for image in pixels:
        np.testing.assert_allclose(
            engine.run(image[np.newaxis]).scores[0], original.run(image), rtol=1e-6
        )
    engine.close()


def test_bytes_may_come_in_planes(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", model("uint8[N,3,6,5] x"))
    classifier = load_classifier(path)
    pixels = np.random.default_rng(0).integers(0, 256, (6, 5, 3), np.uint8)
    engine = open_engine(classifier, device=DeviceKind.CPU, max_batch=1)
    (scores,) = engine.run(pixels[np.newaxis]).scores
    np.testing.assert_allclose(scores, pixels.mean((0, 1)), rtol=1e-6)
    engine.close()


def test_scale_mean_and_std_of_bytes_are_not_used_and_a_line_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = save(tmp_path / "m.onnx", model("uint8[N,3,6,5] x"))
    classifier = load_classifier(path, overrides={"preset": "caffe"})
    line = "its input takes uint8 pixels as they are, so mean is not used"
    assert f"m.onnx: {line}" in caplog.text
    assert line in classifier.origin
    p = classifier.preprocessing
    assert (p.channels.value, p.mean) == ("bgr", (0,) * 3)


def test_the_order_of_channels_of_bytes_is_named_as_a_guess(tmp_path: Path) -> None:
    path = save(
        tmp_path / "m.onnx", model("uint8[N,6,5,3] x", f"{TURN}(x) f = Cast<to = 1>(t) {HEAD}")
    )
    guess = "the order of the channels, rgb, is a guess"
    assert guess in load_classifier(path).origin
    for known in ({"channels": "bgr"}, {"preset": "bgr"}):
        assert "a guess" not in load_classifier(path, overrides=known).origin
    grey = save(tmp_path / "g.onnx", model("uint8[N,1,6,5] x", f"{CAST} {HEAD}", "float[N,1] y"))
    assert "order of the channels" not in load_classifier(grey).origin


@pytest.mark.parametrize("kind", ["double", "bfloat16"])
@pytest.mark.parametrize("tail", ["", "e = Erf(q) "])
def test_other_floats_are_cast(tmp_path: Path, kind: str, tail: str) -> None:
    number = {"double": TensorProto.DOUBLE, "bfloat16": TensorProto.BFLOAT16}[kind]
    end = "e" if tail else "q"
    body = (
        f"v = Cast<to = {number}>(w) c = Conv(x, v) p = GlobalAveragePool(c) q = Flatten(p) {tail}"
        f"y = Identity({end})"
    )
    path = save(tmp_path / "m.onnx", model(f"{kind}[N,3,4,4] x", body, f"{kind}[N,3] y"))
    classifier = load_classifier(path, overrides={"preset": "raw"})
    engine = open_engine(classifier, device=DeviceKind.CPU, max_batch=1)
    pixels: NDArray[np.uint8] = np.zeros((1, 4, 4, 3), np.uint8)
    pixels[..., 1], pixels[..., 2] = 1, 2
    (scores,) = engine.run(pixels).scores
    expected = [0, 0.8427008, 0.9953223] if tail else [0, 1, 2]
    np.testing.assert_allclose(scores, expected, rtol=1e-5)
    engine.close()


@pytest.mark.parametrize(
    ("image", "body", "says"),
    [
        (
            "float[N,3,8,8] x, float[1,3,1,1] net_1_Sub_y",
            "p = GlobalAveragePool(x) y = Flatten(p)",
            "has 2 inputs",
        ),
        ("float[N,3,8,8] x", "p = Erfc(x) y = Flatten(p)", "not a valid ONNX model: No Op"),
    ],
)
def test_what_tf2onnx_left_unfinished_is_refused_with_keras_other_backend(
    tmp_path: Path, image: str, body: str, says: str
) -> None:
    proto = model(image, body)
    proto.producer_name = "tf2onnx"
    with pytest.raises(ModelError, match=f"{says}.*KERAS_BACKEND=torch"):
        load_classifier(save(tmp_path / "m.onnx", proto))
