"""A quantized model keeps its labels, or no model is written."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper
from PIL import Image

from models import BUILT_IN_MODEL, Classifier, QuantizationError, load_classifier
from models.errors import UnsupportedModelError
from models.preprocessing import normalised
from models.quantization import quantize as quantization
from models.quantization.candidate import layers as layers_of
from models.quantization.measure import Goal
from models.quantization.quantize import (
    FEWEST,
    Photographs,
    QuantizationReport,
    check_photograph_count,
    quantize,
)
from tests.support.models.quantized import run_on_integers

DIGITS = {"preset": "digits"}
SHIFTS = ((0, 0), (1, 0), (0, 1), (1, 1))


def photographs() -> Photographs:
    """Return the samples, each shifted slightly in four ways."""
    files = sorted((BUILT_IN_MODEL.parent / "samples").iterdir())
    pixels, names, right = [], [], []
    for file in files:
        image = np.asarray(Image.open(file).convert("L").resize((32, 32)), np.uint8)
        for shift in SHIFTS:
            pixels.append(np.roll(image, shift, (0, 1))[..., np.newaxis])
            names.append(f"{file.name} {shift}")
            right.append(frozenset({int(file.name[0])}))
    return Photographs(tuple(names), np.stack(pixels), tuple(right))


PHOTOGRAPHS = photographs()


@pytest.fixture(autouse=True)
def no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the times of a busy machine from deciding anything."""
    monkeypatch.setattr(quantization, "time_in_turn", lambda models, *_: [1.0] * len(models))


@pytest.fixture
def digits() -> Classifier:
    return load_classifier(BUILT_IN_MODEL, overrides=DIGITS)


def run(
    classifier: Classifier, folder: Path, goal: Goal | None = None
) -> tuple[ModelProto, QuantizationReport]:
    return quantize(
        classifier,
        PHOTOGRAPHS,
        goal=goal or Goal(),
        threads=1,
        journal=folder / "model.progress",
        progress=lambda *_: None,
    )


def test_the_model_keeps_its_labels_and_says_what_changed(
    digits: Classifier, tmp_path: Path
) -> None:
    proto, report = run(digits, tmp_path)
    onnx.checker.check_model(proto, full_check=True)
    assert report.opset == proto.opset_import[0].version == 17
    held = normalised(PHOTOGRAPHS.pixels[1::2], digits.preprocessing)
    before = run_on_integers(digits.network.proto, held).argmax(axis=1)
    after = run_on_integers(proto, held).argmax(axis=1)
    assert report.compared.images == len(held) == report.calibrated_on
    assert report.compared.kept == (before == after).sum() >= 0.95 * len(held)
    assert report.compared.kept_clear >= 0.99 * report.compared.clear > 0
    assert report.compared.right_after == (after == np.repeat(range(10), 2)).sum()
    assert report.bytes_after == proto.ByteSize() < report.bytes_before
    assert len(report.layers) == 8
    assert [time.n for time in report.times] == [1, 8]
    file = tmp_path / "digits.int8.onnx"
    file.write_bytes(proto.SerializeToString())
    assert load_classifier(file, overrides=DIGITS).network.quantized
    assert not (tmp_path / "model.progress").exists()


def test_an_interrupted_run_goes_on_and_gives_the_same_file(
    digits: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = run(digits, tmp_path)

    def interrupt(what: str, done: int, total: int) -> None:
        if what == "measuring layers" and done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize(
            digits,
            PHOTOGRAPHS,
            goal=Goal(),
            threads=1,
            journal=tmp_path / "model.progress",
            progress=interrupt,
        )
    monkeypatch.setattr(quantization, "calibrate", lambda *_: pytest.fail("it calibrates again"))
    again, _ = run(digits, tmp_path)
    assert again.SerializeToString() == whole.SerializeToString()


def test_what_the_file_says_of_itself_is_kept(tmp_path: Path) -> None:
    """The strings of a ZipMap, for which a quantized graph has no place, become metadata."""
    names = [f"number {index}" for index in range(10)]
    proto = onnx.load(BUILT_IN_MODEL)
    zipmap = onnx.helper.make_node(
        "ZipMap", [proto.graph.output[0].name], ["map"], "z", domain="ai.onnx.ml"
    )
    zipmap.attribute.append(onnx.helper.make_attribute("classlabels_strings", names))
    proto.graph.node.append(zipmap)
    floats = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [])
    maps = onnx.helper.make_map_type_proto(onnx.TensorProto.STRING, floats)
    del proto.graph.output[:]
    proto.graph.output.append(
        onnx.helper.make_value_info("map", onnx.helper.make_sequence_type_proto(maps))
    )
    proto.opset_import.append(onnx.helper.make_opsetid("ai.onnx.ml", 1))
    onnx.helper.set_model_props(proto, {"author": "somebody"})
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    made, _ = run(load_classifier(tmp_path / "m.onnx", overrides=DIGITS), tmp_path)
    file = tmp_path / "elsewhere" / "m.onnx"
    file.parent.mkdir()
    file.write_bytes(made.SerializeToString())
    assert {entry.key: entry.value for entry in made.metadata_props}["author"] == "somebody"
    assert load_classifier(file, overrides=DIGITS).preprocessing.labels == tuple(names)


def hurt(folder: Path, factor: float, *, undone: bool) -> Classifier:
    """Return digits with multiplied outputs of the first layer: all, or one that the next layer
    divides."""
    model = onnx.load(BUILT_IN_MODEL)
    arrays = {tensor.name: tensor for tensor in model.graph.initializer}
    convs = [node for node in model.graph.node if node.op_type == "Conv"]

    def scale(name: str, by: float, at: tuple[slice | int, ...]) -> None:
        array = numpy_helper.to_array(arrays[name]).copy()
        array[at] *= by
        arrays[name].CopyFrom(numpy_helper.from_array(array, name))

    if undone:
        scale(convs[1].input[1], factor, (0,))
        scale(convs[1].input[2], factor, (0,))
        for conv in convs[2:4]:
            assert conv.input[1] in arrays
            scale(conv.input[1], 1 / factor, (slice(None), 0))
    else:
        scale(convs[1].input[1], factor, (slice(None),))
        scale(convs[1].input[2], factor, (slice(None),))
    path = folder / "hurt.onnx"
    onnx.save(model, path)
    return load_classifier(path, overrides=DIGITS)


@pytest.mark.parametrize("undone", [False, True], ids=["layer", "channel"])
def test_where_8_bits_hurt_layers_stay_in_float_or_it_is_refused(
    tmp_path: Path, undone: bool
) -> None:
    """One layer, or one of its channels, produces numbers a thousand times as large as the
    others."""
    classifier = hurt(tmp_path, 1000, undone=undone)
    held = normalised(PHOTOGRAPHS.pixels[1::2], classifier.preprocessing)
    before = run_on_integers(classifier.network.proto, held).argmax(axis=1)
    try:
        proto, report = run(classifier, tmp_path)
    except QuantizationError:
        assert undone
        return
    after = run_on_integers(proto, held).argmax(axis=1)
    assert (before == after).sum() >= 0.95 * len(held)
    assert undone is any(layer.in_float for layer in report.layers)


def test_what_cannot_be_reached_is_refused(
    digits: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here, every 8-bit layer changes all labels, and a model with only float layers is not a
    solution."""
    spoilt = ModelProto()
    spoilt.CopyFrom(digits.network.proto)
    last = next(t for t in spoilt.graph.initializer if t.name == spoilt.graph.node[-1].input[1])
    last.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(last), last.name))
    layers = layers_of(digits.network.proto)
    everything = {name for names in layers.values() for name in names}

    def quantized(proto: ModelProto, _: object, in_float: tuple[str, ...] = ()) -> ModelProto:
        return proto if everything <= set(in_float) else spoilt

    monkeypatch.setattr(quantization, "quantized", quantized)
    monkeypatch.setattr(quantization, "with_corrected_biases", lambda proto, *_: proto)
    with pytest.raises(
        QuantizationError,
        match=r"only with 8 of 8 layers in float; with all layers in 8 bits, \d of the \d+ photo",
    ):
        run(digits, tmp_path)


def test_the_fewest_photographs_are_enough() -> None:
    check_photograph_count(FEWEST)
    with pytest.raises(QuantizationError, match="19 photographs are too few"):
        check_photograph_count(FEWEST - 1)


def test_what_says_nothing_is_refused(digits: Classifier, tmp_path: Path) -> None:
    few = Photographs(PHOTOGRAPHS.names[:19], PHOTOGRAPHS.pixels[:19], PHOTOGRAPHS.right[:19])
    with pytest.raises(QuantizationError, match="19 photographs are too few"):
        quantize(
            digits,
            few,
            goal=Goal(),
            threads=1,
            journal=tmp_path / "model.progress",
            progress=lambda *_: None,
        )
    with pytest.raises(
        QuantizationError, match="photograph whose two best probabilities are at least 1 apart"
    ):
        run(digits, tmp_path, Goal(margin=1))


def test_a_quantized_model_is_not_quantized_again(digits: Classifier, tmp_path: Path) -> None:
    again = replace(digits, network=replace(digits.network, quantized=True))
    with pytest.raises(UnsupportedModelError, match="digits is already quantized"):
        run(again, tmp_path)
