"""From files to models that can be served."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from models import BUILT_IN_MODEL, ModelError, ModelFileError, Precision
from service.hosting.loading import ModelFile, find_models, open_models
from service.settings import Settings, SettingsError
from tests.support.servers.several_models import CHANNELS, make_models


def models_in(folder: Path) -> Settings:
    return Settings(model=folder, max_batch=1, threads=1)


def test_each_folder_is_a_model_and_of_versions_the_highest(tmp_path: Path) -> None:
    folder = make_models(tmp_path)
    (folder / CHANNELS / "10").mkdir()  # higher than 3, though not as text
    shutil.copy(BUILT_IN_MODEL, folder / CHANNELS / "10" / "model.onnx")
    assert find_models(folder) == [
        ModelFile(CHANNELS, "10", folder / CHANNELS / "10" / "model.onnx"),
        ModelFile("digits", "1", folder / "digits" / "model.onnx"),
    ]


def test_several_models_are_opened_each_as_it_is_described(tmp_path: Path) -> None:
    channels, digits = open_models(models_in(make_models(tmp_path)), None)
    assert (digits.info.name, digits.info.version) == ("digits", "1")
    assert (digits.info.image_shape, digits.info.scores) == ((32, 32, 1), "logits")
    assert (channels.info.name, channels.info.version) == (CHANNELS, "3")
    assert (channels.info.image_shape, channels.info.scores) == ((4, 6, 3), "amount")
    assert channels.info.labels == ("red", "green", "blue")
    assert channels.classifier.name == CHANNELS


def test_each_model_has_its_precision_unless_a_flag_sets_all(tmp_path: Path) -> None:
    folder = make_models(tmp_path)
    (folder / "digits" / "model.toml").write_text('preset = "digits"\nprecision = "fp16"\n')
    settings = models_in(folder)
    found = [each.classifier.precision.value for each in open_models(settings, None)]
    assert found == ["fp32", "fp16"]
    flag = settings.model_copy(update={"precision": Precision.TF32})
    assert {each.classifier.precision for each in open_models(flag, None)} == {Precision.TF32}


def test_one_file_is_one_model(tmp_path: Path) -> None:
    (opened,) = open_models(models_in(BUILT_IN_MODEL), ["size=32"])
    assert (opened.info.name, opened.info.version) == ("digits", "1")


@pytest.mark.parametrize(
    ("name", "file", "says"),
    [
        ("empty", None, "empty has no model.onnx, and no 1/model.onnx"),
        ("broken", "broken/model.onnx", "the model broken: "),
        ("stats", "stats/model.onnx", "invalid model name"),
        ("a b", "a b/model.onnx", "invalid model name"),
        ("é", "é/model.onnx", "invalid model name"),
        ("odd", "odd/2/model.onnx", "the model odd: "),
    ],
)
def test_a_model_that_cannot_be_had_is_named(
    tmp_path: Path, name: str, file: str | None, says: str
) -> None:
    folder = make_models(tmp_path)
    (folder / name).mkdir()
    if file is not None:
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text("this is no model")
    with pytest.raises(ModelError, match=says):
        list(open_models(models_in(folder), None))


def test_a_folder_without_models_is_no_folder_of_models(tmp_path: Path) -> None:
    (tmp_path / "other.onnx").write_bytes(BUILT_IN_MODEL.read_bytes())
    with pytest.raises(ModelFileError, match="has no models; put each in a folder"):
        find_models(tmp_path)


def test_a_folder_that_holds_the_model_itself_gives_it_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "flowers"
    folder.mkdir()
    shutil.copy(BUILT_IN_MODEL, folder / "model.onnx")
    (opened,) = open_models(models_in(folder), ["preset=digits"])
    assert (opened.info.name, opened.info.version) == ("flowers", "1")
    with pytest.raises(ModelFileError, match="invalid model name"):
        list(open_models(models_in(folder.rename(tmp_path / "my flowers")), None))


@pytest.mark.parametrize(
    ("settings", "expectations"),
    [({"preset": "imagenet"}, None), ({"labels": Path("x")}, None), ({}, ["size=3"])],
)
def test_what_is_said_of_one_model_is_refused_for_several(
    tmp_path: Path, settings: dict[str, object], expectations: list[str] | None
) -> None:
    folder = make_models(tmp_path)
    with pytest.raises(SettingsError, match=r"model\.toml beside it"):
        list(open_models(Settings.model_validate({"model": folder, **settings}), expectations))


def test_an_engine_is_opened_again_from_the_file_unless_that_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    shutil.copy(BUILT_IN_MODEL, file)
    shutil.copy(BUILT_IN_MODEL.with_suffix(".toml"), tmp_path / "model.toml")
    shutil.copy(BUILT_IN_MODEL.with_name("labels.txt"), tmp_path)
    (opened,) = open_models(models_in(file), None)
    again = opened.reopen(0)
    again.warm_up()
    image = np.full((1, *opened.info.image_shape), 7, np.uint8)
    np.testing.assert_array_equal(again.run(image), opened.engines[0].run(image))
    labels = tmp_path / "labels.txt"
    text = labels.read_text()
    labels.write_text(text.replace("9", "nine") if "9" in text else text[::-1])
    with pytest.raises(ModelFileError, match="has changed since"):
        opened.reopen(0)
    labels.write_text(text)
    opened.reopen(0)
    os.utime(file, (1, 1))
    with pytest.raises(ModelFileError, match="has changed since"):
        opened.reopen(0)
