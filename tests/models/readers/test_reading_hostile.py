"""Files with any content are read or refused by name, and never cause a crash."""

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.description import load_description
from models.errors import PreprocessingError
from models.readers import READERS, read_labels

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 400),
    st.sampled_from([10**400, -(10**400), 1e308, 0.5, "", "0", "1/0", "bicubic", "LABEL_0"]),
)
NAMES = {
    "config.json": ["pretrained_cfg", "label_names", "id2label", "input_size", "crop_pct", "0"],
    "preprocessor_config.json": [
        "size",
        "crop_size",
        "crop_pct",
        "shortest_edge",
        "height",
        "width",
        "image_mean",
        "image_std",
        "do_normalize",
        "include_top",
        "rescale_offset",
        "rescale_factor",
        "resample",
    ],
    "inference.yml": [
        "PreProcess",
        "transform_ops",
        "ResizeImage",
        "CropImage",
        "NormalizeImage",
        "DecodeImage",
        "size",
        "resize_short",
        "scale",
        "mean",
        "PostProcess",
        "Topk",
        "label_list",
        "class_id_map_file",
    ],
}
KINDS = ["ViTImageProcessor", "EfficientNetImageProcessor", "ConvNextImageProcessor", 3]
# One of each reader and form.
FILES = tuple({(read, Path(name).suffix): name for name, read in READERS}.values())


LISTS = {name for name, read in READERS if read is read_labels}


def values(names: list[str]) -> st.SearchStrategy[Any]:
    return st.recursive(
        scalars,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(names), inner, max_size=6)
        ),
        max_leaves=12,
    )


@pytest.mark.parametrize("file", NAMES)
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_values_are_read_or_refused(tmp_path: Path, file: str, data: st.DataObject) -> None:
    config = data.draw(st.dictionaries(st.sampled_from(NAMES[file]), values(NAMES[file])))
    if file == "preprocessor_config.json":
        config["image_processor_type"] = data.draw(st.sampled_from(KINDS))
    if file == "inference.yml" and data.draw(st.booleans()):
        config["PreProcess"] = {"transform_ops": data.draw(st.lists(values(NAMES[file])))}
    (tmp_path / file).write_text(json.dumps(config))  # YAML as well
    with suppress(PreprocessingError):
        load_description(tmp_path / "model.onnx", (3, 8, 8))


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\xfe", b"null", b"[1]", b"[" * 50_000, b"{" * 50_000, b"a: &a [*a]", b"- " * 9999],
)
def test_any_bytes_are_read_or_refused(tmp_path: Path, file: str, content: bytes) -> None:
    (tmp_path / file).write_bytes(content)
    errors = []
    try:
        load_description(tmp_path / "model.onnx", (3, 8, 8))
    except PreprocessingError as error:
        errors.append(str(error))
    assert all(file in error for error in errors)


@pytest.mark.parametrize("file", [*FILES, "model.toml"])
def test_a_file_that_is_too_long_is_refused(tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_bytes(b"\n" * (2**24 + 1))
    if Path(file).suffix != ".txt" and file in LISTS:
        said = load_description(tmp_path / "model.onnx", (3, 8, 8)).origin  # it need be no list
    else:
        with pytest.raises(PreprocessingError) as error:
            load_description(tmp_path / "model.onnx", (3, 8, 8))
        said = str(error.value)
    assert re.search(rf"{file} cannot be read: .* (16777216|1048576) char", said)


def test_the_line_about_files_stays_short(tmp_path: Path) -> None:
    (tmp_path / "config.pbtxt").write_text("".join(f"field_{i}: 1\n" for i in range(10_000)))
    origin = load_description(tmp_path / "model.onnx", (3, 8, 8)).origin
    assert 1900 < len(origin) <= 2000
    assert origin.endswith(", ...")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("ViTImageProcessor", {"size": 10**400}),
        ("ViTImageProcessor", {"size": True}),
        ("ViTImageProcessor", {"size": {"height": 10**400, "width": 8}}),
        ("ConvNextImageProcessor", {"size": {"shortest_edge": 10**400}}),
        ("ConvNextImageProcessor", {"size": {"shortest_edge": 9}, "crop_pct": 1e-300}),
        ("EfficientNetImageProcessor", {"size": 8, "image_mean": [0], "image_std": [1e308]}),
        ("ViTImageProcessor", {"size": 8, "rescale_factor": 10**400}),
    ],
)
def test_numbers_beyond_all_bounds_are_refused(
    tmp_path: Path, kind: str, said: dict[str, object]
) -> None:
    config = {"image_processor_type": kind, **said}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    with pytest.raises(PreprocessingError, match=r"processor_config\.json"):
        load_description(tmp_path / "model.onnx", (3, 8, 8))


# Eight levels of ten references each: 100 million parts, if they were written out.
_BOMB = "".join(f"n{i}: &n{i} [{', '.join([f'*n{i - 1}'] * 10)}]\n" for i in range(1, 9))


@pytest.mark.parametrize(
    "text",
    [
        "PreProcess: {transform_ops: [null]}",
        "PreProcess: {transform_ops: [{ResizeImage: 5}]}",
        "PreProcess: {transform_ops: []}\nPostProcess: {Topk: {label_list: [[1]]}}",
        f"a: {'9' * 5000}",
        "a: 2001-99-99",
        f"n0: &n0 [0]\n{_BOMB}PreProcess: {{transform_ops: [{{NormalizeImage: {{mean: *n8}}}}]}}",
        f"n0: &n0 [0]\n{_BOMB}PreProcess: {{transform_ops: [{{ResizeImage: {{size: *n8}}}}]}}",
        f"PreProcess: {{transform_ops: [{'{ResizeImage: {size: 8}},' * 999}]}}",
        f"n0: &n0 [0]\n{_BOMB}PreProcess: {{transform_ops: []}}\n"
        "PostProcess: {Topk: {label_list: [*n8]}}",
    ],
)
def test_yaml_beyond_all_bounds_is_refused_at_once(tmp_path: Path, text: str) -> None:
    (tmp_path / "inference.yml").write_text(text)
    with pytest.raises(PreprocessingError, match=r"inference\.yml") as error:
        load_description(tmp_path / "model.onnx", (3, 8, 8))
    assert len(str(error.value)) < 1000
