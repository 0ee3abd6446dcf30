"""The choice of the output that contains a model's scores."""

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser

from models import (
    Absent,
    Classifier,
    Inner,
    Original,
    OutputKind,
    UnsupportedModelError,
    load_classifier,
)

NAMES = ("red", "green", "blue", "grey")
BODY = "g = GlobalAveragePool(x) f = Flatten(g) z = MatMul(f, w)"


def network(body: str, outputs: str, *, inits: dict[str, np.ndarray] | None = None) -> ModelProto:
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 2]>
        g (float[N,3,8,8] x) => ({outputs}) {{ {BODY} {body} }}"""
    )
    rng = np.random.default_rng(3)
    constants = {
        "w": rng.normal(size=(3, 4)).astype(np.float32),
        "v": rng.normal(size=(3, 4)).astype(np.float32),
        "u": rng.normal(size=(3, 6)).astype(np.float32),
        "k": np.array([2], np.int64),
        "half": np.float32(0.5),
        **(inits or {}),
    }
    used = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name)
        for name, value in constants.items()
        if name in used
    )
    return model


def load(path: Path, model: ModelProto, **overrides: object) -> Classifier:
    path = path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return load_classifier(path, overrides={"preset": "unit", **overrides})


def zipped(labels: list[str], *, beside: bool = False) -> ModelProto:
    model = network("p = Softmax<axis=-1>(z)", "float[N,4] p")
    node = helper.make_node("ZipMap", ["p"], ["map"], domain="ai.onnx.ml")
    node.attribute.append(helper.make_attribute("classlabels_strings", labels))
    model.graph.node.append(node)
    scores = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    of_maps = helper.make_sequence_type_proto(
        helper.make_map_type_proto(TensorProto.STRING, scores)
    )
    if not beside:
        del model.graph.output[:]
    model.graph.output.append(helper.make_value_info("map", of_maps))
    return model


@pytest.mark.parametrize(
    ("body", "outputs", "scores"),
    [
        ("c = ArgMax<axis=1, keepdims=0>(z)", "float[N,4] z, int64[N] c", "z"),
        ("c = ArgMax<axis=1, keepdims=0>(z) d = Cast<to=1>(c)", "float[N] d, float[N,4] z", "z"),
        ("p = Softmax<axis=-1>(z)", "float[N,4] z, float[N,4] p", "p"),
        ("p = Softmax<axis=-1>(z)", "float[N,4] p, float[N,4] z", "p"),
        ("q = Identity(z)", "float[N,4] z, float[N,4] q", "z"),
        ("", "float[N,4] z, float[N,3] f", "z"),
        ("", "float[N,3] f, float[N,4] z, float[N,3,1,1] g", "z"),
        ("r = Relu(x)", "float[N,3,8,8] r, float[N,4] z", "z"),
        ("t, i = TopK<axis=-1>(z, k)", "float[N,2] t, int64[N,2] i, float[N,4] z", "z"),
        ("p = Softmax<axis=-1>(z) m = ReduceMax<axes=[1]>(p)", "float[N,1] m, float[N,4] p", "p"),
    ],
)
def test_the_scores_are_found_beside_what_cannot_be_them(
    tmp_path: Path, body: str, outputs: str, scores: str
) -> None:
    model = network(body, outputs)
    found = load(tmp_path, model)
    assert found.network.graph.outputs == (scores,)
    assert f'its scores, "{scores}", are ' in found.scores
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    session = ort.InferenceSession(model.SerializeToString())
    image = np.moveaxis(pixels[np.newaxis].astype(np.float32) / 255, -1, 1)
    (expected,) = session.run([scores], {"x": image})
    ours = ort.InferenceSession(found.network.proto.SerializeToString())
    (computed,) = ours.run(None, {"x": image})
    np.testing.assert_allclose(computed, expected, rtol=1e-5)
    original = Original(tmp_path / "m.onnx", found).run(pixels)
    np.testing.assert_allclose(original, expected.ravel(), rtol=1e-5)


def test_a_zipmap_is_read_for_its_scores_and_its_labels(tmp_path: Path) -> None:
    for beside in (False, True):
        found = load(tmp_path, zipped(list(NAMES), beside=beside))
        assert found.network.graph.outputs == ("p",)
        assert found.preprocessing.labels == NAMES
        assert found.preprocessing.output is OutputKind.PROBABILITIES
        original = Original(tmp_path / "m.onnx", found).run(np.zeros((8, 8, 3), np.uint8))
        assert original.sum() == pytest.approx(1)
    named = load(tmp_path, zipped(list(NAMES)), scores="map")
    assert named.network.graph.outputs == ("p",)


def test_labels_that_are_set_replace_those_of_a_zipmap(tmp_path: Path) -> None:
    labels = tmp_path / "mine.txt"
    labels.write_text("a\nb\nc\nd\n")
    found = load(tmp_path, zipped(list(NAMES)), labels=labels)
    assert found.preprocessing.labels == ("a", "b", "c", "d")


def test_a_string_beside_the_scores_has_the_labels(tmp_path: Path) -> None:
    names = np.array([name.encode() for name in NAMES], np.object_)
    model = network("c = ArgMax<axis=1, keepdims=0>(z)", "float[N,4] z", inits={})
    tensor = helper.make_tensor("names", TensorProto.STRING, [4], list(names))
    model.graph.initializer.append(tensor)
    model.graph.node.append(helper.make_node("Gather", ["names", "c"], ["label"]))
    model.graph.output.append(helper.make_tensor_value_info("label", TensorProto.STRING, ["N"]))
    assert load(tmp_path, model).preprocessing.labels == NAMES


@pytest.mark.parametrize(
    ("body", "outputs", "names"),
    [
        ("y = MatMul(f, v)", "float[N,4] z, float[N,4] y", ("z", "y")),
        ("y = MatMul(f, u)", "float[N,4] z, float[N,6] y", ("z", "y")),
        ("p = Softmax<axis=-1>(z) y = Sigmoid(z)", "float[N,4] p, float[N,4] y", ("p", "y")),
    ],
)
def test_several_that_may_be_the_scores_are_named_with_their_shapes_and_the_key(
    tmp_path: Path, body: str, outputs: str, names: tuple[str, str]
) -> None:
    model = network(body, outputs)
    with pytest.raises(UnsupportedModelError, match="of which 2 may be its scores") as refused:
        load(tmp_path, model)
    said = str(refused.value)
    assert f'"{names[0]}" N×4, "{names[1]}" N×' in said
    assert f'set scores = "{names[0]}" in model.toml, or --set scores={names[0]}' in said
    for name in names:
        assert load(tmp_path, model, scores=name).network.graph.outputs == (name,)


def test_the_number_of_labels_tells_heads_apart(tmp_path: Path) -> None:
    model = network("y = MatMul(f, u)", "float[N,4] z, float[N,6] y")
    labels = tmp_path / "labels.txt"
    labels.write_text("".join(f"{number} of 6\n" for number in "abcdef"))
    assert load(tmp_path, model).network.graph.outputs == ("y",)


def test_a_coarse_score_that_helps_a_finer_one_is_no_feature_of_it(tmp_path: Path) -> None:
    body = "c = MatMul(f, v) j = Concat<axis=1>(f, c) y = MatMul(j, t)"
    model = network(body, "float[N,4] c, float[N,4] y", inits={"t": np.ones((7, 4), np.float32)})
    with pytest.raises(UnsupportedModelError, match="of which 2 may be"):
        load(tmp_path, model)


def test_a_head_that_only_helped_to_train_is_left_out(tmp_path: Path) -> None:
    body = "a = Conv(x, c0) b = Conv(a, c1) c = Conv(b, c2) d = Conv(c, c3) e = Conv(d, c5) "
    body += "h = GlobalAveragePool(e) i = Flatten(h) main = MatMul(i, w) "
    body += "aux0 = Conv(a, c4) aux1 = GlobalAveragePool(aux0) aux2 = Flatten(aux1) "
    body += "extra = MatMul(aux2, v)"
    rng = np.random.default_rng(1)
    inits = {f"c{i}": rng.normal(size=(3, 3, 1, 1)).astype(np.float32) for i in range(6)}
    for outputs in ("float[N,4] main, float[N,4] extra", "float[N,4] extra, float[N,4] main"):
        found = load(tmp_path, network(body, outputs, inits=inits))
        assert found.network.graph.outputs == ("main",)


def test_features_beside_the_scores_are_the_embedding(tmp_path: Path) -> None:
    model = network("e = Relu(f) y = MatMul(e, v)", "float[N,4] y, float[N,3] f")
    found = load(tmp_path, model)
    assert isinstance(found.embedding, Inner)
    assert found.embedding.name == "f"  # not what the last layer reads
    plain = load(tmp_path, network("e = Relu(f) y = MatMul(e, v)", "float[N,4] y"))
    assert isinstance(plain.embedding, Inner)
    assert plain.embedding.name == "e"
    assert isinstance(load(tmp_path, model, embedding="none").embedding, Absent)


def test_an_embedding_of_a_branch_of_its_own_can_be_named(tmp_path: Path) -> None:
    model = network("y = MatMul(f, u)", "float[N,4] z, float[N,6] y")
    found = load(tmp_path, model, scores="z", embedding="y")
    assert found.network.graph.outputs == ("z",)
    assert isinstance(found.embedding, Inner)
    assert (found.embedding.name, found.embedding.size) == ("y", 6)
    assert [output.name for output in found.network.proto.graph.output] == ["z"]


@pytest.mark.parametrize(
    ("body", "outputs", "says"),
    [
        (
            "c = ArgMax<axis=1, keepdims=0>(z)",
            "int64[N] c",
            'output "c" has class numbers selected by',
        ),
        ("t, i = TopK<axis=-1>(z, k)", "float[N,2] t, int64[N,2] i", "selected by TopK"),
        (
            "e = Constant<value_float = 0.1>() o = Constant<value = uint8 {0}>()"
            " q = QuantizeLinear(z, e, o)",
            "uint8[N,6] q",
            'output "q" has 8-bit numbers',
        ),
        ("r = Relu(x)", "float[N,3,8,8] r", "gives 3×8×8 values per image"),
        (
            "r = Relu(x) s = Neg(r)",
            "float[N,3,8,8] r, float[N,3,8,8] s",
            "has several axes per image, N×3×8×8",
        ),
    ],
)
def test_a_model_without_scores_is_refused_with_what_would_be_right(
    tmp_path: Path, body: str, outputs: str, says: str
) -> None:
    model = network(body, outputs)
    with pytest.raises(UnsupportedModelError, match=says) as refused:
        load(tmp_path, model)
    if "z" in says or "chose" in says or "8-bit" in says:
        assert "set scores = " in str(refused.value)
        assert load(tmp_path, model, scores="z").network.graph.outputs == ("z",)


def test_part_of_the_scores_is_refused_as_that_whatever_labels_there_are(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("\n".join(NAMES))
    model = network("t, i = TopK<axis=-1>(z, k)", "float[N,2] t, int64[N,2] i")
    with pytest.raises(UnsupportedModelError, match="selected by TopK"):
        load(tmp_path, model)


def test_a_name_that_is_no_output_is_refused_with_those_there_are(tmp_path: Path) -> None:
    model = network("p = Softmax<axis=-1>(z)", "float[N,4] z, float[N,4] p")
    with pytest.raises(UnsupportedModelError, match='scores = "zz": the model has no output'):
        load(tmp_path, model, scores="zz")
    assert load(tmp_path, model, scores="z").preprocessing.output is OutputKind.LOGITS


def test_a_model_that_onnx_runtime_runs_as_it_is_has_one_output_too(tmp_path: Path) -> None:
    body = "s = Sin(z) y = Erf(s) c = ArgMax<axis=1, keepdims=0>(y)"
    model = network(body, "int64[N] c, float[N,4] y")
    found = load(tmp_path, model)
    assert found.network.no_kernels
    assert [output.name for output in found.network.proto.graph.output] == ["y"]
