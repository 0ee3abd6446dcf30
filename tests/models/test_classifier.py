"""Classifiers from files: accepted files and refused files."""

import logging
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, load, numpy_helper, parser, save_model

from models import UnsupportedModelError, load_classifier
from models.errors import PreprocessingError


def save(path: Path, body: str, classes: int = 3) -> Path:
    model = parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 17]>
        g (float[N,3,8,8] x) => (float[N,{classes},h,w] y) {{ {body} }}"""
    )
    weight = np.zeros((classes, 3, 1, 1), np.float32)
    if "w)" in body:
        model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    path.write_bytes(model.SerializeToString())
    return path


def test_an_output_that_is_no_vector_is_refused_for_what_it_is(tmp_path: Path) -> None:
    path = save(tmp_path / "backbone.onnx", "y = Relu(x)")
    with pytest.raises(UnsupportedModelError, match="gives 3×8×8 values per image"):
        load_classifier(path)


def test_axes_of_one_do_not_matter(tmp_path: Path) -> None:
    assert load_classifier(save(tmp_path / "m.onnx", "y = GlobalAveragePool(x)")).classes == 3


@pytest.mark.parametrize(
    ("preset", "says"), [("imgnet", "Did you mean imagenet?"), ("zzz", '"resnet50.IMAGENET1K_V2"$')]
)
def test_a_preset_that_is_misspelt_gets_the_nearest(tmp_path: Path, preset: str, says: str) -> None:
    path = save(tmp_path / "m.onnx", "y = GlobalAveragePool(x)")
    with pytest.raises(PreprocessingError, match=says):
        load_classifier(path, overrides={"preset": preset})


@pytest.mark.parametrize(("classes", "labelled"), [(1000, True), (999, False)])
def test_a_thousand_classes_without_labels_are_imagenets_and_a_line_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, classes: int, labelled: bool
) -> None:
    path = save(tmp_path / "m.onnx", "p = GlobalAveragePool(x) y = Conv(p, w)", classes)
    with caplog.at_level(logging.WARNING, "models.classifier"):
        classifier = load_classifier(path, overrides={"preset": "imagenet"})
    labels = classifier.preprocessing.labels
    assert (len(labels), labels[:1]) == ((1000, ("tench",)) if labelled else (0, ()))
    assert ("ImageNet's labels are used" in caplog.text) is labelled


def test_a_classifier_says_what_was_taken_from_which_file(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", "y = GlobalAveragePool(x)")
    (tmp_path / "classes.txt").write_text("a\nb\nc\n")
    classifier = load_classifier(path, overrides={"preset": "raw"})
    assert classifier.origin == "the flags: preset; classes.txt: labels"


def test_labels_in_the_file_of_other_classes_are_left_out_and_a_line_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = save(tmp_path / "m.onnx", "y = GlobalAveragePool(x)")
    model = load(path)
    helper.set_model_props(model, {"names": "{0: 'a', 1: 'b'}"})
    save_model(model, path)
    classifier = load_classifier(path, overrides={"preset": "raw"})
    doubt = "m.onnx: its metadata name 2 classes, but the model has 3"
    assert doubt in caplog.text
    assert (classifier.preprocessing.labels, doubt in classifier.origin) == ((), True)
    helper.set_model_props(model, {"names": "{0: 'a', 1: 'b', 2: 'c'}"})
    save_model(model, path)
    classifier = load_classifier(path, overrides={"preset": "raw"})
    assert classifier.preprocessing.labels == ("a", "b", "c")


def test_metadata_that_are_no_text_are_left_out(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", "y = GlobalAveragePool(x)")
    model = load(path)
    helper.set_model_props(model, {"names": "ABC", "classes": "a,b,c"})
    path.write_bytes(model.SerializeToString().replace(b"ABC", b"\xff,\xff"))
    assert load_classifier(path).preprocessing.labels == ("a", "b", "c")


def test_a_layout_that_the_file_leaves_open_is_the_key_that_an_error_names(tmp_path: Path) -> None:
    """A network of N×H×W×C has such an input if all axes are open."""
    path = save(tmp_path / "m.onnx", "t = Transpose<perm = [0, 3, 1, 2]>(x) y = Conv(t, w)", 1)
    made = load(path)
    for axis, name in enumerate("abcd"):
        made.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    save_model(made, path)
    given = {"preset": "unit", "size": 8}
    with pytest.raises(UnsupportedModelError, match=r"which axis has the channels.*layout=nhwc"):
        load_classifier(path, overrides=given)
    made.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.zeros((4, 3, 8, 8), "f"), "w"))
    save_model(made, path)
    assert load_classifier(path, overrides={**given, "layout": "nhwc"}).classes == 4
