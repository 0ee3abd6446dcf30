"""timm's config.json next to a model, the settings that override it, and the refusals by name."""

import json
from pathlib import Path

import pytest

from kernels.problems.interpolation import Interpolation
from models.description import load_description
from models.errors import PreprocessingError
from models.preprocessing import PRESETS, ChannelOrder, CropMode
from tests.support.models.description import load_preprocessing

RGB_224 = (3, 224, 224)
TRAINED = {
    "input_size": [3, 224, 224],
    "interpolation": "bicubic",
    "crop_pct": 0.95,
    "crop_mode": "center",
    "mean": [0.5, 0.4, 0.3],
    "std": [0.1, 0.2, 0.3],
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return the path of a model, of which only the neighbouring files are read."""
    return tmp_path / "net.onnx"


def configure(model: Path, labels: object = None, **changes: object) -> None:
    config = {"architecture": "resnet18", "pretrained_cfg": TRAINED | changes}
    text = json.dumps(config | ({"label_names": labels} if labels is not None else {}))
    model.with_name("config.json").write_text(text, encoding="utf-8")


def test_all_that_timm_evaluates_with_is_read(model: Path) -> None:
    configure(model, ["cat", "dog"])
    description = load_description(model, (3, None, None))
    p = description.preprocessing
    assert (p.height, p.width, p.resize, p.crop_mode) == (224, 224, 235, CropMode.CROP)
    assert (p.interpolation, p.channels) == (Interpolation.BICUBIC, ChannelOrder.RGB)
    assert (p.scale, p.mean, p.std) == (1 / 255, (0.5, 0.4, 0.3), (0.1, 0.2, 0.3))
    assert (p.labels, p.guess) == (("cat", "dog"), "")
    assert description.origin == (
        "config.json: labels, interpolation, crop_pct, mean, std, scale, channels, height,"
        " width, crop_mode"
    )


def test_where_the_file_says_nothing_it_is_what_timm_does(model: Path) -> None:
    """timm.data.resolve_data_config ignores empty values, too."""
    configure(model, interpolation="", crop_pct=None, crop_mode=None, mean=[], std=None)
    p = load_preprocessing(model, RGB_224)
    assert (p.interpolation, p.resize, p.crop_mode) == (Interpolation.BICUBIC, 256, CropMode.CROP)
    assert (p.mean, p.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def test_the_older_form_has_all_keys_beside_each_other(model: Path) -> None:
    config = TRAINED | {"architecture": "resnet18", "labels": ["cat", "dog"], "num_classes": 2}
    model.with_name("config.json").write_text(json.dumps(config))
    p = load_preprocessing(model, (3, None, None))
    assert (p.labels, p.resize, p.mean) == (("cat", "dog"), 235, (0.5, 0.4, 0.3))
    # Where both forms are there, timm reads the newer one.
    config["pretrained_cfg"] = TRAINED | {"crop_pct": 1.0, "label_names": ["tom", "rex"]}
    del config["labels"]
    model.with_name("config.json").write_text(json.dumps(config))
    p = load_preprocessing(model, (3, None, None))
    assert (p.labels, p.resize) == (("tom", "rex"), 224)


def test_what_timm_may_use_instead_is_not_used_and_said(model: Path) -> None:
    configure(model, test_input_size=[3, 288, 288], test_crop_pct=1.0, label_descriptions={})
    description = load_description(model, RGB_224)
    assert description.preprocessing.resize == 235
    assert description.origin.endswith("config.json, not used: test_input_size, test_crop_pct")


def test_an_error_names_both_files_that_it_may_be_from(model: Path) -> None:
    configure(model)
    model.with_name("model.toml").write_text("resize = 200")
    with pytest.raises(PreprocessingError, match=r"model\.toml with .*config\.json: resize = 200"):
        load_description(model, RGB_224)


def test_labels_may_go_by_number(model: Path) -> None:
    configure(model, {"1": "dog", "0": "cat"})
    assert load_preprocessing(model, RGB_224).labels == ("cat", "dog")
    configure(model, {"0": "cat", "2": "dog"})
    with pytest.raises(PreprocessingError, match="label_names must have a label for each"):
        load_preprocessing(model, RGB_224)


@pytest.mark.parametrize(
    ("timm", "ours"),
    [("center", CropMode.CROP), ("squash", CropMode.SQUASH), ("border", CropMode.PAD)],
)
def test_crop_modes_have_other_names(model: Path, timm: str, ours: CropMode) -> None:
    configure(model, crop_mode=timm)
    assert load_preprocessing(model, RGB_224).crop_mode is ours


def test_the_description_and_flags_override_it(model: Path) -> None:
    configure(model, ["cat", "dog"])
    model.with_name("model.toml").write_text('interpolation = "box"\nresize = 240')
    p = load_preprocessing(model, RGB_224, {"std": [1, 1, 1]})
    assert (p.interpolation, p.resize, p.std) == (Interpolation.BOX, 240, (1, 1, 1))
    assert p.mean == (0.5, 0.4, 0.3)


def test_a_preset_leaves_only_its_labels(model: Path) -> None:
    configure(model, ["cat", "dog"])
    p = load_preprocessing(model, RGB_224, {"preset": "caffe"})
    assert (p.mean, p.channels) == (PRESETS["caffe"].mean, PRESETS["caffe"].channels)
    assert p.labels == ("cat", "dog")


def test_another_programs_file_is_left_alone(model: Path) -> None:
    without = load_preprocessing(model, RGB_224)
    model.with_name("config.json").write_text('{"id2label": {"0": "LABEL_0"}}')
    assert load_preprocessing(model, RGB_224) == without


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"crop_mode": "random"}, "crop_mode = 'random' is not allowed; it must be one of"),
        ({"crop_mode": ["center"]}, "crop_mode"),
        ({"interpolation": "random"}, "interpolation = 'random' is not allowed"),
        ({"input_size": [3, 224, 192]}, "equal height and width"),
        ({"input_size": [4, 224, 224]}, "1 or 3 channels"),
        (
            {"input_size": [3, 256, 256]},
            r"config\.json gives images of 3×256×256 .* but the model takes 3×224×224",
        ),
        ({"crop_pct": 1.5}, "crop_pct = 1.5 is not allowed"),
        ({"labels": [1, 2]}, "label_names must be a list of strings"),
    ],
)
def test_what_makes_no_sense_is_refused(
    model: Path, changes: dict[str, object], words: str
) -> None:
    labels = changes.pop("labels", None)
    configure(model, labels, **changes)
    with pytest.raises(PreprocessingError, match=words):
        load_preprocessing(model, RGB_224)


@pytest.mark.parametrize("text", ["{", "[" * 100_000])
def test_a_file_that_is_no_json_is_named(model: Path, text: str) -> None:
    model.with_name("config.json").write_text(text)
    with pytest.raises(PreprocessingError, match=r"config\.json cannot be read"):
        load_preprocessing(model, RGB_224)
