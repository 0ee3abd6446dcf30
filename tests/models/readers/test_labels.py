"""Labels in the formats in which programs write them."""

import csv
import io
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from models.description import load_description
from models.errors import PreprocessingError
from models.readers.labels import NotLabelsError, labels_in, parse_value, read_label_file
from tests.support.models.description import load_preprocessing

COLOURS = ("red", "light blue", "it's green")
BY_NUMBER = dict(enumerate(COLOURS))
BY_LABEL = {label: number for number, label in BY_NUMBER.items()}


def lines(form: str, first: int = 0) -> str:
    return "\n".join(form.format(first + n, label) for n, label in BY_NUMBER.items())


FORMS: Mapping[str, Sequence[str]] = {
    "labels.txt": [
        "\n".join(COLOURS),
        "\r\n".join(COLOURS) + "\r\n",
        lines("{} {}"),
        lines("{}: {}"),
        lines("{}\t{}"),
        lines("{}:{}"),
        lines("{},{}"),
        lines("{} = {}"),
        lines("{}. {}", 1),
        lines("{}) {}", 1),
        lines("{} {}", 1),
        lines("{1}\t{0}"),
        lines("{1},{0}"),
        lines("{1}: {0}"),
        lines("{1} {0}", 1),
        lines('"{1}",'),
        lines('"{1}"'),
        "\n".join(reversed(lines("{} {}").splitlines())),
        str(list(COLOURS)),
        str(COLOURS),
        str(BY_NUMBER),
        json.dumps(BY_NUMBER),
    ],
    "labels.json": [
        json.dumps(COLOURS),
        json.dumps(COLOURS, indent=2),
        json.dumps(BY_NUMBER),
        json.dumps(dict(enumerate(COLOURS, 1))),
        json.dumps({"id2label": BY_NUMBER}),
        json.dumps({"label2id": BY_LABEL}),
        json.dumps({"version": 3, "Classes": COLOURS}),
        json.dumps([{"id": number, "name": label} for number, label in BY_NUMBER.items()]),
        json.dumps({"categories": [{"id": n, "name": c} for n, c in enumerate(COLOURS, 1)][::-1]}),
        json.dumps({n: {"name": label, "colour": "#123"} for n, label in BY_NUMBER.items()}),
        str(BY_NUMBER),  # as Python prints it: no JSON
    ],
    "index_to_name.json": [json.dumps(BY_NUMBER)],
    "class_indices.json": [json.dumps(BY_LABEL), json.dumps(BY_NUMBER)],
    "names.txt": ["\n".join(COLOURS)],
    "data.yaml": [
        yaml.safe_dump({"path": "../data", "nc": 3, "names": list(COLOURS)}),
        yaml.safe_dump({"train": "images/train", "names": BY_NUMBER}),
        "names: ['red', 'light blue', \"it's green\"]",
    ],
    "labels.yaml": [yaml.safe_dump(list(COLOURS)), yaml.safe_dump(BY_NUMBER)],
    "labels.csv": [
        "\n".join(COLOURS),
        "label\n" + "\n".join(COLOURS),
        lines("{},{}"),
        lines("{};{}", 1),
        lines("{1},{0}"),
        "index,label\n" + lines("{},{}"),
        "label,index\n" + lines('"{1}",{0}'),
        "id;name;colour\n" + lines("{};{};#123"),
        "number,word\n" + lines("{},{}"),
        "Nr;Wort\n" + lines("{};{}"),
        "name,colour\n" + lines("{1},#{0}"),
    ],
}


@pytest.mark.parametrize(
    ("file", "text"), [(file, text) for file, texts in FORMS.items() for text in texts]
)
def test_labels_are_read_beside_a_model_and_where_a_flag_names_them(
    tmp_path: Path, file: str, text: str
) -> None:
    beside, elsewhere = tmp_path / "model", tmp_path / "elsewhere"
    for folder in (beside, elsewhere):
        folder.mkdir()
        (folder / file).write_text(text, encoding="utf-8-sig")
    described = load_description(beside / "m.onnx", (3, 8, 8))
    assert described.preprocessing.labels == COLOURS
    assert f"{file}: labels" in described.origin
    flags = {"labels": elsewhere / file}
    assert load_preprocessing(tmp_path / "m.onnx", (3, 8, 8), flags).labels == COLOURS


def test_the_words_of_yaml_are_labels_too(tmp_path: Path) -> None:
    (tmp_path / "data.yaml").write_text("names:\n  0: no\n  1: yes\n  2: 2024-01-01\n  3: 0x1F\n")
    labels = load_preprocessing(tmp_path / "m.onnx", (3, 8, 8)).labels
    assert labels == ("no", "yes", "2024-01-01", "0x1F")


def test_wordnets_numbers_stay_before_the_names(tmp_path: Path) -> None:
    words = "n01440764 tench, Tinca tinca\nn01443537 goldfish, Carassius auratus\n"
    (tmp_path / "synset.txt").write_text(words)
    assert load_preprocessing(tmp_path / "m.onnx", (3, 8, 8)).labels == tuple(words.splitlines())
    (tmp_path / "synset.txt").unlink()
    index = {"0": ["n01440764", "tench"], "1": ["n01443537", "goldfish"]}
    (tmp_path / "imagenet_class_index.json").write_text(json.dumps(index))
    labels = load_preprocessing(tmp_path / "m.onnx", (3, 8, 8)).labels
    assert labels == ("n01440764 tench", "n01443537 goldfish")


def test_utf16_as_windows_writes_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("Äpfel\nBirnen\n", encoding="utf-16")
    assert load_preprocessing(tmp_path / "m.onnx", (3, 8, 8)).labels == ("Äpfel", "Birnen")


@pytest.mark.parametrize(
    "text",
    [
        "1 euro\n2 euro",  # numbers that tell labels apart
        "1 cat\n3 dog",
        "0 cat\n0 dog",
        "0\n1",
        "3.5 mm\n4.5 mm",
        "type 0\ntype 1",
        "[unknown]\ncat",
        "{}\n{x}",
    ],
)
def test_what_only_looks_like_a_number_or_a_list_stays(tmp_path: Path, text: str) -> None:
    (tmp_path / "labels.txt").write_text(text)
    assert load_preprocessing(tmp_path / "m.onnx", (3, 8, 8)).labels == tuple(text.split("\n"))


def test_equal_labels_of_two_classes_do_not_keep_the_numbers(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("0 crane\n1 heron\n2 crane\n")
    labels = load_preprocessing(tmp_path / "m.onnx", (3, 8, 8)).labels
    assert labels == ("crane", "heron", "crane")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("labels.csv", "file,label\n1.jpg,cat\n2.jpg,dog\n3.jpg,cat\n"),  # of images
        ("labels.csv", "1.jpg,cat\n2.jpg,dog\n"),
        ("labels.csv", "id,name\n3,cat\n9,dog\n"),
        ("labels.json", '{"cat": 512, "dog": 90}'),
        ("labels.json", '["cat", null]'),
        ("labels.json", '["cat", ["dog"]]'),
        ("labels.json", '{"0": "cat", "2": "dog"}'),
        ("labels.json", '{"0": "cat", "1": true}'),
        ("labels.json", '{"names": {"names": {"names": ["cat"]}}}'),
        ("data.yaml", "train: images\n"),
    ],
)
def test_a_file_without_labels_is_named_and_a_flag_for_it_refused(
    tmp_path: Path, file: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / file
    path.write_text(text)
    described = load_description(tmp_path / "m.onnx", (3, 8, 8))
    assert described.preprocessing.labels == ()
    assert f"{path} has no labels in a known format" in described.origin
    assert f"m.onnx has no labels: {path} has no labels in a known format" in caplog.text
    with pytest.raises(NotLabelsError, match="from 0 or 1 on"):
        load_preprocessing(tmp_path / "m.onnx", (3, 8, 8), {"labels": path})


@pytest.mark.parametrize(
    "file",
    [
        "labels.pkl",
        "my_classes.json",
        "label_map.pbtxt",
        "mapping.json",
        "labels.toml",
        "m.txt",
        "coco.names",
        "_darknet.labels",
    ],
)
def test_a_file_whose_name_alone_speaks_of_labels_is_named(
    tmp_path: Path, file: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / file).write_text("red\ngreen\n")
    (tmp_path / "readme.txt").write_text("nothing")
    with caplog.at_level(logging.WARNING):
        described = load_description(tmp_path / "m.onnx", (3, 8, 8), {"preset": "imagenet"})
    assert [record.getMessage() for record in caplog.records] == [
        f"m.onnx has no labels: {file} is not read; if it lists the labels, pass it as --labels,"
        f' or set labels = "{file}" in m.toml'
    ]
    assert f"{file} is not read" in described.origin
    (tmp_path / "labels.txt").write_text("red\ngreen\n")
    assert "not read" not in load_description(tmp_path / "m.onnx", (3, 8, 8)).origin


def test_lobes_signature_says_labels_and_pixels(tmp_path: Path) -> None:
    signature = {
        "doc_id": "1",
        "inputs": {"Image": {"dtype": "float32", "shape": [None, 224, 224, 3]}},
        "outputs": {"Label": {"name": "x"}, "Confidences": {"name": "y"}},
        "classes": {"Label": list(COLOURS)},
    }
    (tmp_path / "signature.json").write_text(json.dumps(signature))
    p = load_preprocessing(tmp_path / "model.onnx", (224, 224, 3))
    assert (p.labels, p.resize, p.mean, p.std, p.guess) == (COLOURS, 224, (0,) * 3, (1,) * 3, "")
    assert p.scale == 1 / 255
    (tmp_path / "signature.json").write_text('{"classes": {"Label": []}, "outputs": {}}')
    assert "must have a list" in load_description(tmp_path / "model.onnx", (224, 224, 3)).origin
    (tmp_path / "signature.json").write_text('{"signatures": []}')
    assert load_description(tmp_path / "model.onnx", (224, 224, 3)).origin.startswith("the preset")


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.one_of(st.lists(texts), st.dictionaries(st.one_of(texts, st.integers(0, 9)), texts)))
def test_what_python_prints_is_read_as_it_was(value: list[str] | dict[object, str]) -> None:
    assert parse_value(repr(value)) == value
    if isinstance(value, list):
        assert parse_value(repr(tuple(value))) == value


@pytest.mark.parametrize(
    "text",
    ["{0: 'a', 'b'}", "['a'; 'b']", "['a'", "('a']", r"['\N{no}']", "{0: f()}", "[" * 10_000],
)
def test_what_python_does_not_print_is_no_list(text: str) -> None:
    assert labels_in(parse_value(text)) is None


def test_a_table_may_quote_its_separator(tmp_path: Path) -> None:
    stream = io.StringIO()
    csv.writer(stream).writerows([("id", "name"), (0, "tench, Tinca tinca"), (1, "crane")])
    (tmp_path / "labels.csv").write_text(stream.getvalue())
    labels = load_preprocessing(tmp_path / "m.onnx", (3, 8, 8)).labels
    assert labels == ("tench, Tinca tinca", "crane")


def test_yaml_of_labels_has_a_shorter_bound_than_text(tmp_path: Path) -> None:
    path = tmp_path / "labels.yaml"
    path.write_text("#" * (2**20 + 1))
    with pytest.raises(PreprocessingError, match=r"labels\.yaml cannot be read: .* 1048576 char"):
        read_label_file(path)
