"""Label files, and precedence between several files."""

import json
import os
from pathlib import Path

import pytest

from models.description import load_description
from models.errors import PreprocessingError
from models.readers.reading import read_text
from tests.support.models.description import load_preprocessing


def test_numbers_before_all_labels_are_cut_off_and_others_kept(tmp_path: Path) -> None:
    path = tmp_path / "labels.txt"
    for text, labels in (
        ("0 cat\n1 large dog\n", ("cat", "large dog")),
        ("1\tlarge dog\n0\tcat\n", ("cat", "large dog")),
        ("0 cat\n0 dog\n", ("0 cat", "0 dog")),
        ("0\n1\n", ("0", "1")),
        ("1 cat\n3 dog\n", ("1 cat", "3 dog")),
        ("\ufeffcat\r\ndog\n\n", ("cat", "dog")),
    ):
        path.write_text(text, encoding="utf-8")
        assert load_preprocessing(tmp_path / "m.onnx", (3, 8, 8)).labels == labels
    path.write_text("cat\n\ndog\n")
    with pytest.raises(PreprocessingError, match=r"labels\.txt: line 2 is empty"):
        load_preprocessing(tmp_path / "m.onnx", (3, 8, 8))


def test_a_pipe_is_refused_before_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To open a pipe takes until another process writes to it, which may never happen."""
    pipe = tmp_path / "labels.txt"
    os.mkfifo(pipe)

    def opened(*_: object, **__: object) -> None:
        raise AssertionError("the pipe is opened")

    monkeypatch.setattr(Path, "open", opened)
    with pytest.raises(PreprocessingError, match=r"labels\.txt cannot be read: .* regular file"):
        read_text(pipe)


def test_the_first_file_counts_and_what_others_say_is_said(tmp_path: Path) -> None:
    model = tmp_path / "onnx" / "model.onnx"
    model.parent.mkdir()
    trained = {"interpolation": "bicubic", "crop_pct": 0.95, "input_size": [3, 224, 224]}
    names = {"pretrained_cfg": trained, "label_names": ["cat", "dog"], "id2label": {"0": "tom"}}
    (tmp_path / "config.json").write_text(json.dumps(names))
    processor = {"size": {"height": 224, "width": 224}, "resample": 2}
    (model.parent / "preprocessor_config.json").write_text(json.dumps(processor))
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    model.with_name("model.toml").write_text("resize = 240")
    described = load_description(model, (3, 224, 224))
    p = described.preprocessing
    assert (p.labels, p.resize, p.interpolation.value) == (("cat", "dog"), 240, "bicubic")
    assert described.labels_from == "../config.json"
    assert described.origin == (
        "model.toml: resize; ../config.json: labels, interpolation, mean, std, scale,"
        " channels, height, width; ../config.json says otherwise: resize;"
        " preprocessor_config.json says otherwise: resize, crop_mode, crop_offset,"
        " interpolation, mean, std;"
        " ../config.json says otherwise: labels"
    )


@pytest.mark.parametrize("name", ["../secret.txt", "/etc/passwd"])
@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("config.pbtxt", 'output {{ label_filename: "{}" }}'),
        (
            "inference.yml",
            "PreProcess: {{transform_ops: []}}\nPostProcess: {{Topk: {{class_id_map_file: {}}}}}",
        ),
    ],
)
def test_labels_that_a_file_names_are_in_its_folder(
    tmp_path: Path, file: str, text: str, name: str
) -> None:
    (tmp_path / "secret.txt").write_text("password")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / file).write_text(text.format(name))
    with pytest.raises(PreprocessingError, match="is outside its folder"):
        load_preprocessing(tmp_path / "model" / "model.onnx", (3, 8, 8))


def test_a_folder_above_counts_only_where_the_models_own_is_part_of_an_export(
    tmp_path: Path,
) -> None:
    (tmp_path / "labels.txt").write_text("cat\n")
    for folder, labels in (
        ("onnx", ("cat",)),
        ("12", ("cat",)),
        ("1/model.onnx", ("cat",)),
        ("flowers", ()),
    ):
        place = tmp_path / folder
        place.mkdir(parents=True)
        assert load_preprocessing(place / "m.onnx", (3, 8, 8)).labels == labels
