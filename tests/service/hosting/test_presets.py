"""Guessed presets are checked with the built-in photographs. With a wrong preset, the networks of
these tests recognise little."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper, parser, save_model

from models import (
    PRESETS,
    ChannelOrder,
    Classifier,
    DeviceChoice,
    DeviceKind,
    UnsupportedModelError,
    each_preset,
    imagenet,
    open_engines,
)
from service.hosting.finding import image_reader
from service.hosting.presets import (
    PHOTOGRAPHS,
    label_names,
    try_presets,
)
from service.hosting.reading import load
from service.settings import Settings
from tests.support.networks import SQUEEZENET, needs_shared

SETTINGS = Settings(device=DeviceKind.CPU, threads=1, max_batch=1)


def write_network(
    path: Path, *, classes: int = 8, bias: float = 0.0, shape: tuple[int, ...] = (3, 32, 32)
) -> None:
    """Write a network whose scores depend on the mean colour. The bias is large compared with
    pixels in 0..1."""
    rng = np.random.default_rng(3)
    first = np.eye(3, dtype=np.float32).reshape(3, 3, 1, 1)
    head = rng.normal(size=(classes, 3)).astype(np.float32)
    head -= head.mean(1, keepdims=True)  # colour counts, and brightness does not
    weights: dict[str, NDArray[np.float32]] = {
        "w": first,
        "head": head,
        "bias": (bias * rng.normal(size=classes)).astype(np.float32),
    }
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"]),
            helper.make_node("GlobalAveragePool", ["c"], ["m"]),
            helper.make_node("Flatten", ["m"], ["f"]),
            helper.make_node("Gemm", ["f", "head", "bias"], ["scores"], transB=1),
        ],
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", *shape])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["N", classes])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opset = helper.make_opsetid("", 17)
    save_model(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)


def model(path: Path, *expectations: str, preset: str | None = None) -> Classifier:
    return load(SETTINGS.model_copy(update={"model": path, "preset": preset}), expectations)


def test_a_guess_by_which_photographs_hardly_differ_is_doubted(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    write_network(path, bias=40.0)
    said = model(path).warning
    assert "answers of net are probably wrong: its preset imagenet is a guess" in said
    assert "The photographs do not show which preset is right, and perhaps none is" in said
    assert "caffe" in said
    assert "raw" in said


def test_a_guess_by_which_photographs_differ_is_not_doubted_however_sure_others_are(
    tmp_path: Path,
) -> None:
    path = tmp_path / "net.onnx"
    write_network(path)
    classifier = model(path)
    (engine,) = open_engines(classifier, [DeviceChoice(DeviceKind.CPU)], max_batch=1)
    images = dict.fromkeys(PHOTOGRAPHS, ())
    trials = {
        trial.name: trial
        for trial in try_presets(classifier, engine, images, image_reader(SETTINGS))
    }
    engine.close()
    # What the pixels' size alone does to confidence, and why it is no evidence.
    assert trials["caffe"].confidence > 2 * trials["imagenet"].confidence
    assert trials["imagenet"].used
    assert classifier.warning == ""


def test_few_classes_are_weak_evidence_of_which_the_log_tells(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "net.onnx"
    write_network(path, bias=40.0, classes=2)
    assert model(path).warning == ""
    assert "answers of net may be wrong: its preset imagenet is a guess" in caplog.text
    assert "weak evidence, because the photographs need not show the 2 classes" in caplog.text


def test_a_network_of_colours_of_another_range_is_doubted_and_one_of_the_guess_is_not(
    tmp_path: Path,
) -> None:
    """The networks return the nearest of several colours, for pixels of 0 to 255 or for normalised
    pixels. Their scores vary like scores of unfamiliar photographs."""
    colours = np.array(
        [(200, 30, 30), (30, 180, 40), (30, 40, 200), (220, 210, 30), (128,) * 3, (12,) * 3]
    )
    for name in ("raw", "bgr", "imagenet", "unit"):
        preset = PRESETS[name]
        means = colours[:, ::-1] if preset.channels is ChannelOrder.BGR else colours
        centres = (means * preset.scale - preset.mean) / preset.std
        k = 12 / np.ptp(centres, axis=0).max() ** 2
        head, bias = 2 * k * centres, -k * (centres**2).sum(1)
        path = tmp_path / f"{name}.onnx"
        write_network(path, classes=6)
        proto = onnx.load(path)
        for tensor in proto.graph.initializer:
            if (array := {"head": head, "bias": bias}.get(tensor.name)) is not None:
                new = numpy_helper.from_array(array.astype(np.float32), tensor.name)
                tensor.CopyFrom(new)
        onnx.save(proto, path)
        assert bool(model(path).warning) == (name in ("raw", "bgr")), name


def test_what_was_chosen_is_not_doubted(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    write_network(path, bias=40.0)
    assert model(path, preset="imagenet").warning == ""
    assert model(path, "scale=0.01").warning == ""
    assert model(path).preprocessing.guess == "imagenet"


def test_a_preset_that_overflows_is_none(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    write_network(path, bias=1e37)
    assert model(path).warning == ""


def test_a_grey_model_has_presets_of_its_own() -> None:
    digits = load(SETTINGS, ["size=32"])
    assert list(each_preset(digits.preprocessing)) == [
        "digits",
        "grey-inception",
        "grey-raw",
        "mnist",
    ]
    assert digits.warning == ""


@pytest.mark.parametrize(
    ("label", "names"),
    [
        ("tabby", ["tabby"]),
        ("n02123045 tabby, tabby cat", ["n02123045", "tabby", "tabby cat"]),
        ("Egyptian cat", ["egyptian cat"]),
        ("black-and-tan coonhound", ["black and tan coonhound"]),
        ("7", ["7"]),
    ],
)
def test_a_label_has_names_in_plain_words(label: str, names: list[str]) -> None:
    assert label_names(label) == names


@needs_shared
def test_squeezenets_guess_is_replaced_by_the_preset_that_names_the_photographs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    taken = model(SQUEEZENET)
    assert taken.preprocessing.guess == "caffe"
    assert (taken.preprocessing.mean, taken.warning) == (PRESETS["caffe"].mean, "")
    assert "the preset caffe, chosen by the built-in photographs" in taken.origin
    assert 'the preset "caffe" is used: with caffe, the model recognises 3 of 3' in caplog.text
    classifier = model(SQUEEZENET, preset="caffe")
    assert (classifier.warning, classifier.preprocessing.guess) == ("", "")


@needs_shared
def test_what_was_set_of_the_crop_stays_where_a_preset_is_taken() -> None:
    taken = model(SQUEEZENET, "resize=240").preprocessing
    assert (taken.guess, taken.resize) == ("caffe", 240)


@needs_shared
def test_a_network_that_names_nothing_by_any_preset_warns(tmp_path: Path) -> None:
    """The network's labels are in the wrong order."""
    labels = tmp_path / "labels.txt"
    labels.write_text("\n".join(reversed(imagenet.labels())))
    settings = SETTINGS.model_copy(update={"model": SQUEEZENET, "labels": labels})
    found = load(settings, None)
    assert "With this preset, the model recognises 0 of 3 built-in photographs" in found.warning
    assert "with any other preset at most 0" in found.warning
    assert found.preprocessing.guess == "imagenet"


# By the pixels of all others the guess names all photographs. Of `rgb-caffe` and `raw`, which
# differ by the mean alone, three photographs do not tell which is right. In networks made for the
# others the first operations tell the numbers, and the photographs the order of channels.
TAKEN = {
    "caffe": "caffe",
    "rgb-caffe": "raw",
    # Their first operations tell them, so that they are no guess.
    **dict.fromkeys(("raw", "bgr", "unit", "bgr-unit"), ""),
}


@needs_shared
@pytest.mark.parametrize("made_for", [name for name in PRESETS if len(PRESETS[name].mean) == 3])
def test_a_trained_network_made_for_a_preset_gets_its_pixels_or_the_guess_names_all(
    tmp_path: Path, made_for: str
) -> None:
    """The network is SqueezeNet, after nodes that convert the pixels of a preset to the pixels of
    "caffe", which SqueezeNet expects."""
    proto = onnx.load(SQUEEZENET)
    preset = PRESETS[made_for]
    std, mean, scale = np.array(preset.std), np.array(preset.mean), preset.scale
    if made_for != "caffe":
        caffe = np.array(PRESETS["caffe"].mean)[::-1]
        own = caffe[::-1] if preset.channels is ChannelOrder.BGR else caffe
        factor, offset = std / scale, mean / scale - own
        (x,) = (v for v in proto.graph.input if v.name == "data_0")
        proto.graph.input.remove(x)
        taken = helper.make_tensor_value_info("pixels", TensorProto.FLOAT16, [1, 3, 224, 224])
        proto.graph.input.insert(0, taken)
        constants = {"factor": factor, "offset": offset}
        for name, value in constants.items():
            array = value.astype(np.float16).reshape(1, 3, 1, 1)
            proto.graph.initializer.append(numpy_helper.from_array(array, name))
        is_bgr = preset.channels is ChannelOrder.BGR
        channels = np.array([0, 1, 2] if is_bgr else [2, 1, 0], np.int64)
        order = numpy_helper.from_array(channels, "order")
        proto.graph.initializer.append(order)
        nodes = [
            helper.make_node("Mul", ["pixels", "factor"], ["scaled"]),
            helper.make_node("Add", ["scaled", "offset"], ["shifted"]),
            helper.make_node("Gather", ["shifted", "order"], ["data_0"], axis=1),
        ]
        for place, node in enumerate(nodes):
            proto.graph.node.insert(place, node)
    proto.ir_version = 4  # since then initializers are no inputs
    path = tmp_path / "made.onnx"
    onnx.save(proto, path)
    found = model(path)
    p = found.preprocessing
    assert (p.guess, found.warning) == (TAKEN.get(made_for, "imagenet"), "")
    if not p.guess:
        pixels = (p.channels, p.scale, p.mean, p.std)
        assert pixels == (preset.channels, preset.scale, preset.mean, preset.std)


def write_scores(path: Path, body: str, classes: int) -> None:
    """Write a network whose scores y depend on the mean colour. The nodes of `body` compute y from
    z."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[N,3,8,8] x) => (float y)
        {{ g = GlobalAveragePool(x) f = Flatten(g) z = MatMul(f, w) {body} }}"""
    proto = parser.parse_model(text)
    weights = np.random.default_rng(2).normal(size=(3, classes)).astype(np.float32)
    constants = {"w": weights, "zero": np.float32(0), "one": np.float32(1), "ten": np.float32(10)}
    constants["first"] = np.array([0, 1], np.int64)
    proto.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name)
        for name, value in constants.items()
        if any(name in node.input for node in proto.graph.node)
    )
    path.write_bytes(proto.SerializeToString())


@pytest.mark.parametrize(
    ("body", "classes", "kind"),
    [
        # p and 1 - p, which no node shows to add up to 1
        ("p = Sigmoid(z) n = Sub(one, p) y = Concat<axis=1>(n, p)", 1, "probabilities"),
        ("b = Less(z, zero) p = Softmax<axis=-1>(z) y = Where(b, p, p)", 4, "probabilities"),
        ("b = Less(z, zero) p = LogSoftmax<axis=-1>(z) y = Where(b, p, p)", 4, "log-probabilities"),
        ("y = Clip(z, zero, one)", 4, "independent-probabilities"),
        ("t = Mul(z, ten) b = Less(t, zero) y = Where(b, t, t)", 4, "logits"),
    ],
)
def test_what_no_node_shows_the_scores_of_photographs_do(
    tmp_path: Path, body: str, classes: int, kind: str
) -> None:
    path = tmp_path / "net.onnx"
    write_scores(path, body, classes)
    found = model(path, preset="unit")
    assert found.preprocessing.output.value == kind
    assert "as the scores of built-in photographs show" in found.scores


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("b = Less(zero, z) y = Cast<to=1>(b)", True),
        ("m = ReduceMax<axes=[1], keepdims=1>(z) b = Equal(z, m) y = Cast<to=1>(b)", True),
        ("p = Sigmoid(z) n = Sub(one, p) y = Concat<axis=1>(n, p)", False),
    ],
)
def test_scores_that_are_decisions_are_named_as_such(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, body: str, *, said: bool
) -> None:
    path = tmp_path / "net.onnx"
    write_scores(path, body, 2)
    model(path, preset="unit")
    assert ("they may be decisions" in caplog.text) is said


@pytest.mark.parametrize(
    "body",
    [
        "p = Sigmoid(z) q = Sigmoid(p) r = Mul(q, ten) y = Add(r, ten)",
        "y = Tanh(z)",
        "l = LogSoftmax<axis=-1>(z) y = Neg(l)",  # of the likeliest class it is the least
        "b = Less(z, zero) t = Tanh(z) y = Where(b, t, t)",
    ],
)
def test_a_model_whose_scores_show_nothing_is_refused_until_a_key_says_what_they_are(
    tmp_path: Path, body: str
) -> None:
    path = tmp_path / "net.onnx"
    write_scores(path, body, 4)
    with pytest.raises(UnsupportedModelError, match='set output = "probabilities", "sigmoid"'):
        model(path, preset="unit")
    assert model(path, "output=shares", preset="unit").preprocessing.output.value == "shares"


@pytest.mark.parametrize("activation", ["Tanh", "Softsign"])
def test_scores_around_0_are_probabilities_where_those_of_photographs_are_above_0(
    tmp_path: Path, activation: str
) -> None:
    path = tmp_path / "net.onnx"
    write_scores(path, f"q = Mul(z, z) y = {activation}(q)", 4)
    assert model(path, preset="unit").preprocessing.output.value == "independent-probabilities"


def test_one_score_around_0_is_refused_whatever_photographs_give(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    write_scores(path, "q = Mul(z, z) y = Tanh(q)", 1)
    with pytest.raises(
        UnsupportedModelError, match=r"Tanh bounds .* probability is \(1 \+ s\) / 2"
    ):
        model(path, preset="unit")
    assert model(path, "output=sigmoid", preset="unit").preprocessing.output.value == "sigmoid"
