"""Files become models that can be served."""

import logging
import os
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from onnx import parser

from models import (
    BUILT_IN_MODEL,
    DeviceLostError,
    ModelError,
    ModelFileError,
    Precision,
    PreprocessingError,
    load_classifier,
)
from service.hosting import finding, reading
from service.hosting.finding import ModelFile, find_models
from service.hosting.loading import OpenModel, open_models
from service.hosting.model_info import FailedModel
from service.hosting.reading import load
from service.settings import Settings, SettingsError
from tests.support.models.quantized import quantized
from tests.support.servers.several_models import CHANNELS, make_models


def models_in(folder: Path, *, strict: bool = False) -> Settings:
    return Settings(model=folder, max_batch=1, threads=1, strict=strict)


def opened_of(settings: Settings, expectations: list[str] | None = None) -> list[OpenModel]:
    """Return all models, and check that none is broken."""
    found = [each for each in open_models(settings, expectations) if isinstance(each, OpenModel)]
    assert len(found) == len(find_models(settings))
    return found


def test_each_folder_is_a_model_and_of_versions_the_highest(tmp_path: Path) -> None:
    folder = make_models(tmp_path)
    (folder / CHANNELS / "10").mkdir()  # higher than 3, though not as text
    shutil.copy(BUILT_IN_MODEL, folder / CHANNELS / "10" / "model.onnx")
    assert find_models(models_in(folder)) == [
        ModelFile(CHANNELS, "10", folder / CHANNELS / "10" / "model.onnx", numbered=True),
        ModelFile("digits", "1", folder / "digits" / "model.onnx"),
    ]


def test_a_folder_that_vanishes_while_they_are_listed_is_only_its_own_models_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, usual = make_models(tmp_path), finding._model_in

    def vanishing(place: Path) -> Path | None:
        if place.name == CHANNELS:
            shutil.rmtree(place)
            list(place.iterdir())
        return usual(place)

    monkeypatch.setattr(finding, "_model_in", vanishing)
    channels, digits = find_models(models_in(folder))
    assert channels.error == f"{folder / CHANNELS} cannot be read: No such file or directory"
    assert digits == ModelFile("digits", "1", folder / "digits" / "model.onnx")


def test_several_models_are_opened_each_as_it_is_described(tmp_path: Path) -> None:
    channels, digits = opened_of(models_in(make_models(tmp_path)))
    assert (digits.info.name, digits.info.version) == ("digits", "1")
    assert (digits.info.image_shape, digits.info.scores) == ((32, 32, 1), "logits")
    assert (channels.info.name, channels.info.version) == (CHANNELS, "3")
    assert (channels.info.image_shape, channels.info.scores) == ((4, 6, 3), "amount")
    assert channels.info.labels == ("red", "green", "blue")


def test_a_line_of_the_log_says_by_which_file_each_is_described(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The line must come from the logger "convoy": `convoy serve` shows its messages. Of other
    loggers it shows only warnings and errors."""
    make_models(tmp_path)
    with caplog.at_level(logging.INFO, "convoy"):
        opened_of(models_in(tmp_path))
    said = [message for name, _, message in caplog.record_tuples if name == "convoy"]
    assert "digits is described by model.toml: preset, labels" in said
    (other,) = (message for message in said if message.startswith(f"{CHANNELS} is described by"))
    assert other.startswith(f"{CHANNELS} is described by model.toml: ")


def test_the_log_says_which_layers_of_a_quantized_model_are_on_integers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_models(tmp_path)
    images = np.random.default_rng(0).normal(size=(4, 1, 32, 32)).astype(np.float32)
    quantized(BUILT_IN_MODEL, folder / "digits" / "model.onnx", images)
    with caplog.at_level(logging.INFO, "convoy"):
        opened_of(models_in(folder))
    (said,) = (text for _, _, text in caplog.record_tuples if "layers" in text)
    assert said == "digits is quantized: 8 of 8 layers on integers"


def test_each_model_has_its_precision_unless_a_flag_sets_all(tmp_path: Path) -> None:
    folder = make_models(tmp_path)
    (folder / "digits" / "model.toml").write_text('preset = "digits"\nprecision = "fp16"\n')
    settings = models_in(folder)
    found = [load(settings, None, file).precision.value for file in find_models(settings)]
    assert found == ["fp32", "fp16"]
    flag = settings.model_copy(update={"precision": Precision.TF32})
    found = [load(flag, None, file).precision.value for file in find_models(flag)]
    assert found == ["tf32", "tf32"]


def test_one_file_is_one_model(tmp_path: Path) -> None:
    (opened,) = opened_of(models_in(BUILT_IN_MODEL), ["size=32"])
    assert (opened.info.name, opened.info.version) == ("digits", "1")


@pytest.mark.parametrize(
    ("name", "file", "says"),
    [
        ("empty", None, "empty has neither model.onnx nor 1/model.onnx"),
        ("broken", "broken/model.onnx", "the model broken: "),
        ("stats", "stats/model.onnx", "invalid model name"),
        ("a b", "a b/model.onnx", "invalid model name"),
        ("é", "é/model.onnx", "invalid model name"),
        ("odd", "odd/2/model.onnx", "the model odd: "),
    ],
)
def test_strictly_a_model_that_cannot_be_had_stops_all_and_is_named(
    tmp_path: Path, name: str, file: str | None, says: str
) -> None:
    folder = make_models(tmp_path)
    (folder / name).mkdir()
    if file is not None:
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text("this is no model")
    with pytest.raises(ModelError, match=says):
        list(open_models(models_in(folder, strict=True), None))


def test_a_broken_model_does_not_stop_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_models(tmp_path)
    (folder / "broken" / "2").mkdir(parents=True)
    (folder / "broken" / "2" / "model.onnx").write_text("this is no model")
    (folder / "empty").mkdir()
    (folder / "lost+found").mkdir()
    broken, channels, digits, empty = open_models(models_in(folder), None)
    assert isinstance(broken, FailedModel)
    assert (broken.name, broken.version) == ("broken", "2")
    assert broken.error.startswith(f"{folder.name}/broken/2/model.onnx is not an ONNX model")
    assert isinstance(empty, FailedModel)
    assert empty.error.startswith(f"{folder.name}/empty has neither model.onnx nor 1/model.onnx")
    assert f"broken is not served: {folder}/broken/2/model.onnx is not" in caplog.text
    assert isinstance(channels, OpenModel)
    assert isinstance(digits, OpenModel)
    assert "lost+found: invalid model name" in caplog.text


def test_a_folder_of_which_no_model_loads_is_an_error_with_every_reason(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.onnx").write_text("this is no model")
    with pytest.raises(ModelError, match=r"the model one: .*\nthe model two: "):
        list(open_models(models_in(tmp_path), None))
    shutil.rmtree(tmp_path / "two")
    with pytest.raises(ModelFileError, match=r"one/model\.onnx"):
        list(open_models(models_in(tmp_path), None))


def test_a_lost_device_is_no_models_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(*_: object) -> None:
        raise DeviceLostError("gone")

    monkeypatch.setattr(reading, "open_on_devices", lose)
    with pytest.raises(DeviceLostError):
        list(open_models(models_in(make_models(tmp_path)), None))


def test_a_repository_of_one_model_takes_flags_and_is_that_model(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    shutil.copy(BUILT_IN_MODEL, tmp_path / "mine" / "model.onnx")
    settings = models_in(tmp_path).model_copy(update={"preset": "digits"})
    (opened,) = opened_of(settings, ["resize=40"])
    assert (opened.info.name, opened.preprocessing.resize) == ("mine", 40)
    assert load(settings, None).name == "mine"
    with pytest.raises(ModelFileError, match=r"several models \(channels\.v2, digits\); name one"):
        load(models_in(make_models(tmp_path / "several")), None)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("resnet", "nor the name of a model; did you mean resnet"),
        ("squeeznet1.1", r"did you mean squeezenet1\.1"),
        ("digit", "did you mean digits"),
        ("x.onnx", "x.onnx does not exist; give the path of an .onnx file"),
    ],
)
def test_a_slip_in_a_name_gets_near_names(asked: str, says: str) -> None:
    with pytest.raises(ModelFileError, match=says):
        load(models_in(Path(asked)), None)


def test_a_default_model_that_is_not_served_is_refused_before_any_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "load_classifier", None)
    for settings in (models_in(make_models(tmp_path)), models_in(BUILT_IN_MODEL)):
        with pytest.raises(SettingsError, match=r"other is not served; the models are .*digits"):
            list(open_models(settings.model_copy(update={"default_model": "other"}), None))


def test_a_folder_without_models_is_no_folder_of_models(tmp_path: Path) -> None:
    (tmp_path / "other.onx").write_bytes(BUILT_IN_MODEL.read_bytes())
    with pytest.raises(ModelFileError, match="contains no models; put each model"):
        find_models(models_in(tmp_path))


@pytest.mark.parametrize(
    ("files", "model"),
    [
        (["resnet18.onnx", "labels.txt"], "resnet18.onnx"),
        (["onnx/model.onnx", "onnx/model_int8.onnx", "config.json"], "onnx/model.onnx"),
        (["model.onnx", "model.int8.onnx"], "model.onnx"),
        (["model.onnx/model.onnx", "model.onnx/weights.bin"], "model.onnx/model.onnx"),
        (["1/net.onnx", "2/net.onnx", "config.pbtxt"], "2/net.onnx"),
    ],
)
def test_a_folder_is_the_model_in_it_alone_and_among_others(
    tmp_path: Path, files: list[str], model: str
) -> None:
    for file in files:
        path = tmp_path / "birds" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for folder in (tmp_path, tmp_path / "birds"):
        (found,) = find_models(models_in(folder))
        assert (found.name, found.path) == ("birds", tmp_path / "birds" / model)


@pytest.mark.parametrize(
    ("files", "readings"),
    [
        (["model.onnx", "onnx/model.onnx"], "model.onnx or onnx/model.onnx"),
        (["a.onnx", "b.onnx"], "a.onnx or b.onnx"),
        (["a.onnx", "c/model.onnx"], "has the model a.onnx and folders with models, such as c"),
    ],
)
def test_where_two_files_may_be_the_model_both_are_named(
    tmp_path: Path, files: list[str], readings: str
) -> None:
    for file in files:
        path = tmp_path / "birds" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    with pytest.raises(ModelFileError, match=readings):
        find_models(models_in(tmp_path / "birds"))


def test_a_folder_that_holds_the_model_itself_gives_it_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "flowers"
    folder.mkdir()
    shutil.copy(BUILT_IN_MODEL, folder / "model.onnx")
    (opened,) = opened_of(models_in(folder), ["preset=digits"])
    assert (opened.info.name, opened.info.version) == ("flowers", "1")
    with pytest.raises(ModelFileError, match="invalid model name"):
        list(open_models(models_in(folder.rename(tmp_path / "my flowers")), None))


def test_set_sets_keys_that_are_flags_too(tmp_path: Path) -> None:
    labels = tmp_path / "words.txt"
    labels.write_text("\n".join("abcdefghij"))
    (opened,) = opened_of(Settings(), [f"labels={labels}", "preset=digits"])
    assert list(opened.info.labels) == list("abcdefghij")
    for key in ("labels=nope.txt", "preset=imagnet"):
        with pytest.raises(ModelError, match=f"the flags: .*{key.partition('=')[2]}"):
            opened_of(Settings(), [key])
    latin = tmp_path / "latin.txt"
    latin.write_bytes("café\n".encode("latin-1") * 10)
    with pytest.raises(ModelError, match=r"latin\.txt: it is not UTF-8 text; save it in"):
        opened_of(Settings(), [f"labels={latin}"])


@pytest.mark.parametrize(
    ("settings", "expectations"),
    [({"preset": "imagenet"}, None), ({"labels": Path("x")}, None), ({}, ["size=3"])],
)
def test_what_is_said_of_one_model_is_refused_for_several(
    tmp_path: Path, settings: dict[str, object], expectations: list[str] | None
) -> None:
    folder = make_models(tmp_path)
    with pytest.raises(SettingsError, match=r"model\.toml beside each"):
        list(open_models(Settings.model_validate({"model": folder, **settings}), expectations))


@pytest.mark.parametrize(
    ("key", "value", "name"),
    [
        ("resize", "40", "digits-40"),
        ("crop_mode", '"pad"', "digits-pad"),
        ("std", "[2]", "digits-2"),
    ],
)
def test_a_model_is_served_beside_itself_with_another_key(key: str, value: str, name: str) -> None:
    beside = Settings(max_batch=1, threads=1, beside=f"{key}={value}")
    first, second = opened_of(beside, ["resize=36"])
    assert (first.info.name, second.info.name) == ("digits", name)
    meanings = [asdict(each.preprocessing) for each in (first, second)]
    assert [meaning["resize"] for meaning in meanings] == [36, 40 if key == "resize" else 36]
    assert {key for key in meanings[0] if meanings[0][key] != meanings[1][key]} == {key}
    assert second.reopen(0).precision is second.engines[0].precision


def test_a_preset_beside_another_is_refused_where_the_model_cannot_have_it() -> None:
    beside = Settings(max_batch=1, threads=1, preset="digits", beside="preset=caffe")
    with pytest.raises(PreprocessingError, match=r"3×32×32 \(nchw, bgr\), but the model takes 1×"):
        list(open_models(beside, None))


def test_only_one_model_can_be_beside_itself(tmp_path: Path) -> None:
    several = models_in(make_models(tmp_path)).model_copy(update={"beside": "precision=fp16"})
    with pytest.raises(SettingsError, match=r"^--beside needs a single model, but .*: chan"):
        find_models(several)
    with pytest.raises(SettingsError, match=r"^--beside: fp16 is not allowed; write KEY=VALUE"):
        find_models(Settings(beside="fp16"))


def test_an_engine_is_opened_again_from_the_file_unless_that_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    shutil.copy(BUILT_IN_MODEL, file)
    shutil.copy(BUILT_IN_MODEL.with_suffix(".toml"), tmp_path / "model.toml")
    shutil.copy(BUILT_IN_MODEL.with_name("labels.txt"), tmp_path)
    (opened,) = opened_of(models_in(file))
    again = opened.reopen(0)
    again.warm_up()
    image = np.full((1, *opened.info.image_shape), 7, np.uint8)
    np.testing.assert_array_equal(again.run(image).scores, opened.engines[0].run(image).scores)
    labels = tmp_path / "labels.txt"
    text = labels.read_text()
    labels.write_text(text.replace("9", "nine") if "9" in text else text[::-1])
    with pytest.raises(ModelFileError, match="have changed since"):
        opened.reopen(0)
    labels.write_text(text)
    opened.reopen(0)
    os.utime(file, (1, 1))
    with pytest.raises(ModelFileError, match="have changed since"):
        opened.reopen(0)


def named(folder: Path, name: str = "rose") -> Settings:
    return models_in(folder).model_copy(update={"model_name": name})


def test_a_folder_of_versions_is_one_model(tmp_path: Path) -> None:
    folder = make_models(tmp_path) / CHANNELS
    highest = folder / "3" / "model.onnx"
    assert find_models(models_in(folder)) == [ModelFile(CHANNELS, "3", highest, numbered=True)]
    assert find_models(named(folder)) == [ModelFile("rose", "3", highest, numbered=True)]


@pytest.mark.parametrize("place", ["", "1", "digits", "onnx", "digits/2"])
def test_one_model_has_the_name_that_is_set_wherever_its_file_is(
    tmp_path: Path, place: str
) -> None:
    folder = tmp_path / "my models"  # a name that no model may have
    (folder / "assets").mkdir(parents=True)  # beside a model of its own folder
    if place == "1":
        (folder / "assets").rmdir()
    (folder / place).mkdir(parents=True, exist_ok=True)
    file = folder / place / "model.onnx"
    shutil.copy(BUILT_IN_MODEL, file)
    numbered = place[-1:].isdecimal()
    version = place[-1:] if numbered else "1"
    assert find_models(named(folder)) == [ModelFile("rose", version, file, numbered=numbered)]
    (opened,) = opened_of(named(folder), ["preset=digits"])
    assert (opened.info.name, opened.info.name) == ("rose", "rose")


def test_a_name_is_of_one_model_and_one_that_it_may_have(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"--model-name .* several: channels.v2, digits"):
        find_models(named(make_models(tmp_path)))
    with pytest.raises(ModelFileError, match="--model-name: invalid model name"):
        find_models(named(BUILT_IN_MODEL, "a/b"))
    (file,) = find_models(named(BUILT_IN_MODEL))
    assert (file.name, file.path) == ("rose", BUILT_IN_MODEL)


@pytest.mark.parametrize(
    ("kind", "named"),
    [("float", "FP32"), ("float16", "FP16"), ("uint8", "UINT8"), ("double", "FP32")],
)
def test_clients_learn_what_a_models_own_input_holds(tmp_path: Path, kind: str, named: str) -> None:
    graph = parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 17]>
        g ({kind}[N,3,4,4] x) => (float[N,48] y) {{ f = Cast<to = 1>(x) y = Flatten(f) }}"""
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(graph.SerializeToString())
    assert reading.info_of(load_classifier(path), "1").tensor_type == named
