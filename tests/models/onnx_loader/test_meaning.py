"""The meaning of a model's scores, according to the nodes that compute them."""

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper, parser

from models import OutputKind, UnsupportedModelError, load_classifier
from models.onnx_loader import load_proto

LINEAR = "g = GlobalAveragePool(x) f = Flatten(g) z = MatMul(f, w) "


def network(body: str, *, classes: int = 4, opset: int = 17, linear: str = LINEAR) -> ModelProto:
    """Return a linear layer of mean colours, followed by the nodes of `body` from z to y."""
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : {opset}, "ai.onnx.ml" : 2]>
        g (float[N,3,8,8] x) => (float y) {{ {linear} {body} }}"""
    )
    rng = np.random.default_rng(7)
    constants = {
        "w": rng.normal(size=(3, classes)).astype(np.float32),
        "one": np.float32(1),
        "two": np.float32(2),
        "half": np.float32(0.5),
        "percent": np.float32(100),
        "lo": np.float32(1e-7),
        "hi": np.float32(1 - 1e-7),
        "zero": np.float32(0),
        "three": np.float32(3),
        "few": np.float32(0.01),
        "most": np.float32(0.99),
        "flat": np.array([-1], np.int64),
        "last": np.array([1], np.int64),
        "ends": np.array([2], np.int64),
        "positions": np.array([0, -1, 1, 1], np.int64),
        "numbers": np.array([2, 0, 1, 3], np.int64),
    }
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name)
        for name, value in constants.items()
        if any(name in node.input for node in model.graph.node)
    )
    return model


def kind_of(body: str, *, classes: int = 4, opset: int = 17) -> OutputKind | None:
    model = network(body, classes=classes, opset=opset)
    return load_proto("m", model, opaque=True).meaning.kind


P = OutputKind.PROBABILITIES


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("y = Identity(z)", OutputKind.LOGITS),
        ("y = Relu(z)", OutputKind.LOGITS),
        ("y = Div(z, two)", OutputKind.LOGITS),
        ("y = Clip(z, zero, two)", OutputKind.LOGITS),
        ("y = Softmax<axis=-1>(z)", P),
        ("p = Softmax<axis=1>(z) y = Identity(p)", P),
        ("p = Softmax<axis=-1>(z) y = Clip(p, lo, hi)", P),
        ("p = Softmax<axis=-1>(z) q = Max(p, lo) y = Min(q, hi)", P),
        ("r = Reshape(z, positions) p = Softmax<axis=1>(r) y = Flatten(p)", P),
        ("p = Softmax<axis=-1>(z) y = Cast<to=1>(p)", P),
        ("p = Softmax<axis=-1>(z) y = Unsqueeze(p, last)", P),
        ("p = Softmax<axis=-1>(z) y = Gather<axis=1>(p, numbers)", P),
        ("p = Softmax<axis=-1>(z) q = Mul(p, percent) y = Identity(q)", OutputKind.PERCENT),
        ("p = Softmax<axis=-1>(z) q = Softmax<axis=-1>(z) s = Add(p, q) y = Mul(s, half)", P),
        ("p = Softmax<axis=-1>(z) n = Neg(z) q = Softmax<axis=-1>(n) y = Mean(p, q)", P),
        ("p = Softmax<axis=-1>(z) n = Neg(z) q = Softmax<axis=-1>(n) s = Sum(p, q)"
         " y = Div(s, two)", P),
        ("p = Softmax<axis=-1>(z) n = Neg(z) q = Softmax<axis=-1>(n) a = Unsqueeze(p, last)"
         " b = Unsqueeze(q, last) c = Concat<axis=1>(a, b)"
         " y = ReduceMean<axes=[1], keepdims=0>(c)", P),
        ("p = Softmax<axis=-1>(z) n = Neg(z) q = Softmax<axis=-1>(n) y = Add(p, q)",
         OutputKind.SHARES),
        ("e = Exp(z) s = ReduceSum<keepdims=1>(e, last) y = Div(e, s)", P),
        ("m = ReduceMax<axes=[1], keepdims=1>(z) d = Sub(z, m) e = Exp(d)"
         " s = ReduceSum<keepdims=1>(e, last) y = Div(e, s)", P),
        ("e = Sigmoid(z) s = ReduceSum<keepdims=1>(e, last) t = Add(s, lo) y = Div(e, t)", P),
        ("y = LogSoftmax<axis=-1>(z)", OutputKind.LOG_PROBABILITIES),
        ("p = Softmax<axis=-1>(z) y = Log(p)", OutputKind.LOG_PROBABILITIES),
        ("l = LogSoftmax<axis=-1>(z) y = Exp(l)", P),
        ("s = ReduceLogSumExp<axes=[1], keepdims=1>(z) y = Sub(z, s)",
         OutputKind.LOG_PROBABILITIES),
        ("y = Sigmoid(z)", OutputKind.INDEPENDENT),
        ("y = HardSigmoid(z)", OutputKind.INDEPENDENT),
        ("p = Sigmoid(z) q = Clip(p, lo, hi) y = Reshape(q, positions)", OutputKind.INDEPENDENT),
        ("p = Sigmoid(z) y = Mul(p, percent)", OutputKind.INDEPENDENT_PERCENT),
        ("n = Neg(z) e = Exp(n) a = Add(e, one) y = Div(one, a)", OutputKind.INDEPENDENT),
        ("n = Neg(z) e = Exp(n) a = Add(e, one) y = Reciprocal(a)", OutputKind.INDEPENDENT),
        ("t = Tanh(z) a = Add(t, one) y = Mul(a, half)", OutputKind.INDEPENDENT),
        ("p = Sigmoid(z) n = Neg(z) q = Sigmoid(n) s = Add(p, q) y = Mul(s, half)",
         OutputKind.INDEPENDENT),
        ("p = Sigmoid(z) y = Sub(one, p)", OutputKind.INDEPENDENT),
        ("p = Sigmoid(z) y = Log(p)", OutputKind.INDEPENDENT_LOG),
        ("n = Neg(z) s = Softplus(n) y = Neg(s)", OutputKind.INDEPENDENT_LOG),
        ("n = Neg(z) e = Exp(n) a = Add(e, one) s = Log(a) y = Neg(s)", OutputKind.INDEPENDENT_LOG),
        ("p = Softmax<axis=-1>(z) y = Clip(p, few, most)", P),
        ("d = Mul(z, z) a = Add(d, one) r = Reciprocal(a) s = ReduceSum<keepdims=1>(r, last)"
         " y = Div(r, s)", P),
        ("d = Mul(z, z) n = Neg(d) y = Exp(n)", OutputKind.INDEPENDENT),
        ("d = Mul(z, z) y = Neg(d)", OutputKind.LOGITS),
        ("y = Pow(z, three)", OutputKind.LOGITS),
        ("m = ReduceMax<axes=[1], keepdims=1>(z) y = Sub(z, m)", OutputKind.LOGITS),
        # A part of what adds up to 1, as without TensorFlow's class for everything else.
        ("p = Softmax<axis=-1>(z) y = Slice(p, last, ends, last)", P),
        ("p = Softmax<axis=-1>(z) d = Sub(p, lo) y = Identity(d)", P),
        # A softmax over the images, 1 for an image alone, in scores that depend on the image.
        ("p = Softmax<axis=0>(z) y = Add(p, z)", OutputKind.LOGITS),
        ("p = Softmax<axis=0>(z) q = Mul(p, half) y = Mul(z, q)", OutputKind.LOGITS),
        ("p = Softmax<axis=0>(z) y = Sub(z, p)", OutputKind.LOGITS),
        ("p = Softmax<axis=-1>(z) y = Mul(p, z)", OutputKind.LOGITS),
        # Of these the numbers have to be seen.
        ("p = Softmax<axis=0>(z) q = Softmax<axis=-1>(z) y = Add(p, q)", None),
        ("p = Softmax<axis=0>(z) q = Sigmoid(z) y = Mul(q, p)", None),
        ("p = Softmax<axis=0>(z) b = Less(z, zero) y = Where(b, p, one)", None),
        ("p = Softmax<axis=-1>(z) d = Mul(p, two) y = Sub(d, one)", None),
        ("p = Softmax<axis=-1>(z) d = Mul(p, two) s = Sub(d, one) y = Slice(s, last, ends, last)",
         None),
        ("p = Softmax<axis=-1>(z) n = Neg(z) q = Softmax<axis=-1>(n) y = Sub(p, q)", None),
        ("y = Clip(z, zero, one)", None),
        ("y = Tanh(z)", None),
        ("p = Sigmoid(z) d = Mul(p, two) y = Sub(d, one)", None),
        ("l = LogSoftmax<axis=-1>(z) y = Neg(l)", None),
        ("y = Softplus(z)", None),
        ("p = Softmax<axis=-1>(z) l = Log(p) y = Mul(p, l)", None),
        ("e = Exp(z) a = Add(e, one) y = Log(a)", None),
        ("p = Softmax<axis=-1>(z) m = ReduceMax<axes=[1], keepdims=1>(p) y = Div(p, m)", None),
        ("a = ReduceMin<axes=[1], keepdims=1>(z) b = ReduceMax<axes=[1], keepdims=1>(z)"
         " c = Sub(z, a) d = Sub(b, a) y = Div(c, d)", None),
        # Distances, of which the least is that of the likeliest class, and powers of e.
        ("y = Abs(z)", None),
        ("y = Mul(z, z)", None),
        ("y = Pow(z, two)", None),
        ("d = Pow(z, two) y = Sqrt(d)", None),
        ("y = Exp(z)", None),
        ("p = Softmax<axis=-1>(z) b = Less(z, zero) y = Where(b, p, z)", None),
        ("p = Sigmoid(z) n = Sub(one, p) y = Concat<axis=1>(n, p)", None),
    ],
)  # fmt: skip
def test_the_graph_says_what_the_scores_are(body: str, kind: OutputKind | None) -> None:
    assert kind_of(body) is kind


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("y = Identity(z)", OutputKind.LOGITS),
        ("y = Flatten(z)", OutputKind.LOGITS),
        ("y = Sigmoid(z)", P),
        ("p = Sigmoid(z) y = Squeeze(p, last)", P),
        ("p = Sigmoid(z) y = Mul(p, percent)", OutputKind.PERCENT),
        ("p = Sigmoid(z) y = Log(p)", OutputKind.LOG_PROBABILITIES),
    ],
)
def test_one_score_is_a_logit_or_a_probability(body: str, kind: OutputKind) -> None:
    assert kind_of(body, classes=1) is kind


def test_one_score_cut_out_of_two_probabilities_is_a_probability() -> None:
    assert kind_of("p = Softmax<axis=-1>(z) y = Slice(p, last, ends, last)", classes=2) is P


def test_a_softmax_of_an_old_opset_is_one() -> None:
    assert kind_of("p = Softmax(z) y = Flatten(p)", opset=11) is P


def test_a_softmax_of_one_score_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(network("y = Softmax<axis=-1>(z)", classes=1).SerializeToString())
    with pytest.raises(UnsupportedModelError, match="a single score after Softmax, and so it is 1"):
        load_classifier(path, overrides={"preset": "unit"})


@pytest.mark.parametrize(
    "body",
    [
        "y = Softmax<axis=0>(z)",
        "y = LogSoftmax<axis=0>(z)",
        "p = Softmax<axis=0>(z) y = Log(p)",
        "p = Softmax<axis=0>(z) r = Reshape(p, positions) c = Cast<to=1>(r) y = Flatten(c)",
        "p = Softmax<axis=0>(z) y = Mul(percent, p)",
        "p = Softmax<axis=0>(z) q = Clip(p, lo, hi) y = Div(q, two)",
        "p = Softmax<axis=0>(z) n = Neg(z) q = Softmax<axis=0>(n) y = Add(p, q)",
    ],
)
def test_a_softmax_over_the_batch_is_refused(tmp_path: Path, body: str) -> None:
    """`nn.Softmax(dim=0)` writes this: for a single image, every score is 1."""
    path = tmp_path / "m.onnx"
    path.write_bytes(network(body).SerializeToString())
    with pytest.raises(UnsupportedModelError, match="over its classes"):
        load_classifier(path, overrides={"preset": "unit"})


def test_only_what_bounds_scores_is_said_to() -> None:
    said = {
        body: load_proto("m", network(body), opaque=True).meaning.reason
        for body in ("p = Softmax<axis=0>(z) y = Add(z, p)", "y = Sigmoid(z)")
    }
    assert list(said.values()) == ["", "Sigmoid bounds its output"]


@pytest.mark.parametrize(
    "body",
    [
        "a = ArgMax<axis=1, keepdims=0>(z) y = Cast<to=1>(a)",
        "p = Softmax<axis=-1>(z) a = ArgMax<axis=1>(p) b = Squeeze(a, last) y = Cast<to=1>(b)",
    ],
)
def test_class_numbers_are_refused_with_what_is_before_them(tmp_path: Path, body: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(network(body).SerializeToString())
    with pytest.raises(UnsupportedModelError, match="class numbers selected by ArgMax") as refused:
        load_classifier(path, overrides={"preset": "unit"})
    before = "p" if body.startswith("p") else "z"
    assert f'set scores = "{before}" in model.toml, or --set scores={before}' in str(refused.value)
    found = load_classifier(path, overrides={"preset": "unit", "scores": before})
    assert (found.classes, found.network.graph.outputs) == (4, (before,))


def test_a_one_for_the_likeliest_class_is_no_score(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(network("y = Hardmax<axis=-1>(z)").SerializeToString())
    with pytest.raises(UnsupportedModelError, match=r"selected by Hardmax.*set scores = .z."):
        load_classifier(path, overrides={"preset": "unit"})


def test_a_file_that_asks_for_a_softmax_of_probabilities_is_overruled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(network("y = Sigmoid(z)").SerializeToString())
    for stated in ("logits", "softmax", "sigmoid"):
        found = load_classifier(path, overrides={"preset": "unit", "output": stated})
        assert found.preprocessing.output is OutputKind.INDEPENDENT
    assert 'output = "sigmoid" is overruled, because Sigmoid bounds its output' in caplog.text
    # Whether they exclude each other the graph does not know.
    found = load_classifier(path, overrides={"preset": "unit", "output": "probabilities"})
    assert found.preprocessing.output is P
