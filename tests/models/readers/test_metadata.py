"""Labels and preprocessing in a model file's metadata."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.description import Description, load_description
from models.errors import PreprocessingError
from models.onnx_loader.own_normalisation import OwnNormalisation
from models.preprocessing import ChannelOrder, CropMode
from models.readers.metadata import read_metadata
from models.scores import OutputKind

NAMES = ("red", "it's green", 'the "blue"')
ULTRALYTICS = {
    "description": "Ultralytics YOLO11n-cls model",
    "author": "Ultralytics",
    "stride": "1",
    "task": "classify",
    "batch": "1",
    "imgsz": "[64, 64]",
    "names": str(dict(enumerate(NAMES))),
    "args": "{'batch': 1, 'half': False}",
    "channels": "3",
}
CUSTOM_VISION = {
    "Image.BitmapPixelFormat": "Bgr8",
    "Image.ColorSpaceGamma": "SRGB",
    "Image.NominalPixelRange": "NominalRange_0_255",
}
OPEN = (3, None, None)


def describe(
    metadata: Mapping[str, str],
    shape: tuple[int | None, ...] = (3, 64, 64),
    flags: Mapping[str, object] | None = None,
    folder: Path = Path("none"),
) -> Description:
    return load_description(folder / "m.onnx", shape, flags, metadata)


@pytest.mark.parametrize("shape", [(3, 64, 64), OPEN, (64, 64, 3)])
def test_ultralytics_says_labels_size_and_pixels(
    shape: tuple[int | None, ...], caplog: pytest.LogCaptureFixture
) -> None:
    described = describe(ULTRALYTICS, shape)
    p = described.preprocessing
    assert (p.labels, p.height, p.width, p.resize) == (NAMES, 64, 64, 64)
    assert (p.channels, p.crop_mode) == (ChannelOrder.RGB, CropMode.CROP)
    assert (p.scale, p.mean, p.std, p.guess) == (1 / 255, (0,) * 3, (1,) * 3, "")
    assert not caplog.records
    size = "height, width, " if None in shape else ""
    assert described.origin == (
        f"m.onnx: {size}labels, channels, scale, mean, std, crop_mode, crop_pct, interpolation"
    )
    assert described.labels_from == "m.onnx"


@pytest.mark.parametrize(
    ("written", "shape", "size", "mode"),
    [
        ("48", OPEN, (48, 48), CropMode.CROP),
        ("(32, 64)", OPEN, (32, 64), CropMode.SQUASH),
        ("[32,64]", (3, 32, 64), (32, 64), CropMode.SQUASH),
        ("[32, 64]", (3, 32, None), (32, 64), CropMode.SQUASH),
    ],
)
def test_the_size_is_one_number_or_height_and_width(
    written: str, shape: tuple[int | None, ...], size: tuple[int, int], mode: CropMode
) -> None:
    p = describe({**ULTRALYTICS, "imgsz": written}, shape).preprocessing
    assert ((p.height, p.width), p.crop_mode, p.resize) == (size, mode, max(size))


def test_a_preset_overrules_the_pixels_and_leaves_size_and_labels() -> None:
    described = describe(ULTRALYTICS, OPEN, {"preset": "caffe"})
    p = described.preprocessing
    assert (p.channels, p.scale, p.height, p.labels) == (ChannelOrder.BGR, 1.0, 64, NAMES)
    assert "m.onnx says otherwise: channels, scale, mean" in described.origin


def test_a_network_of_one_channel_gets_grey() -> None:
    p = describe({**ULTRALYTICS, "channels": "1"}, (1, 64, 64)).preprocessing
    assert (p.channels, p.scale, p.mean) == (ChannelOrder.GREY, 1 / 255, (0,))


@pytest.mark.parametrize(
    ("change", "doubt"),
    [
        ({"imgsz": "[32, 32]"}, "imgsz is 32×32, but the model takes 64×64"),
        ({"task": "detect"}, "its task is 'detect', but Convoy runs only classifiers"),
    ],
)
def test_what_the_metadata_contradict_is_said(
    change: Mapping[str, str], doubt: str, caplog: pytest.LogCaptureFixture
) -> None:
    described = describe({**ULTRALYTICS, **change})
    assert (described.preprocessing.height, described.preprocessing.labels) == (64, NAMES)
    assert f"m.onnx: {doubt}" in caplog.text
    assert f"m.onnx: {doubt}" in described.origin


def test_without_a_task_the_pixels_are_a_guess() -> None:
    described = describe({key: ULTRALYTICS[key] for key in ("names", "imgsz")})
    assert (described.preprocessing.labels, described.preprocessing.guess) == (NAMES, "imagenet")
    assert described.origin.endswith("m.onnx, not used: imgsz without a task")


def test_a_size_that_contradicts_the_input_is_not_taken_in_part() -> None:
    with pytest.raises(PreprocessingError, match="example width = 48"):
        describe({**ULTRALYTICS, "imgsz": "[32, 64]"}, (3, 48, None))


@pytest.mark.parametrize(
    ("said", "scale", "mean"),
    [
        ("NominalRange_0_255", 1.0, 0.0),
        ("Normalized_0_1", 1 / 255, 0.0),
        ("NORMALIZED_1_1", 1 / 127.5, 1.0),
        ("NominalRange_16_235", 219 / 255, -16.0),
    ],
)
def test_windows_keys_say_order_and_range(said: str, scale: float, mean: float) -> None:
    described = describe({**CUSTOM_VISION, "Image.NominalPixelRange": said})
    p = described.preprocessing
    assert (p.channels, p.scale, p.mean, p.std) == (ChannelOrder.BGR, scale, (mean,) * 3, (1,) * 3)
    assert (p.crop_mode, p.resize, p.interpolation.value) == (CropMode.SQUASH, 64, "bicubic")
    assert p.guess == ""
    rgb = describe({**CUSTOM_VISION, "image.bitmappixelformat": "rgb8"} | {"task": "x"})
    assert "m.onnx: channels, scale, mean, std" in rgb.origin


def test_windows_keys_for_grey_and_what_is_not_known() -> None:
    grey = {**CUSTOM_VISION, "Image.BitmapPixelFormat": "Gray8"}
    assert describe(grey, (1, 64, 64)).preprocessing.channels is ChannelOrder.GREY
    odd = {"Image.BitmapPixelFormat": "Rgba8", "Image.ColorSpaceGamma": "Linear"}
    origin = describe({**CUSTOM_VISION, **odd}).origin
    assert "not used: image.bitmappixelformat = 'Rgba8', image.colorspacegamma = 'Linear'" in origin


def test_labels_beside_the_file_count_first(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("a\nb\nc\n")
    described = describe(ULTRALYTICS, folder=tmp_path)
    assert described.preprocessing.labels == ("a", "b", "c")
    assert "m.onnx says otherwise: labels" in described.origin


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("classes", json.dumps(NAMES)),
        ("Labels", str(list(NAMES))),
        ("class_names", "\n".join(NAMES)),
        ("class_names", 'red, it\'s green, the "blue"'),
        ("id2label", json.dumps(dict(enumerate(NAMES)))),
        ("class_to_idx", json.dumps({name: number for number, name in enumerate(NAMES)})),
        ("names", str(dict(enumerate(NAMES)))),
        ("my.model/label_names", json.dumps(NAMES)),
        ("config", json.dumps({"id2label": dict(enumerate(NAMES)), "lr": 0.1})),
    ],
)
def test_labels_as_others_write_them(key: str, text: str) -> None:
    described = describe({key: text})
    assert described.preprocessing.labels == NAMES
    assert described.preprocessing.guess == "imagenet"
    assert described.origin.startswith("m.onnx: labels; the preset imagenet")


@pytest.mark.parametrize("text", ["7", "true", "", "x" * (2**21 + 1), "{0: 'a'", "a,,b"])
def test_what_is_no_list_of_labels_is_not_taken(text: str) -> None:
    described = describe({"classes": text})
    assert described.preprocessing.labels == ()
    assert described.origin.endswith("m.onnx, not used: classes")


def test_metadata_that_say_nothing_are_not_mentioned() -> None:
    assert describe({"author": "me", "version": "3"}).origin == "the preset imagenet, a guess"


IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
PART = 1 / 255
BYTES = ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))


@pytest.mark.parametrize(
    ("metadata", "scale", "mean", "std", "order"),
    [
        ({"mean": "[0.485, 0.456, 0.406]", "std": "[0.229, 0.224, 0.225]"}, PART, *IMAGENET, "rgb"),
        ({"image_mean": "0.485,0.456,0.406", "image_std": "0.229 0.224 0.225"},
         PART, *IMAGENET, "rgb"),
        ({"norm-mean": "tensor([0.4850, 0.4560, 0.4060])", "norm-std": "(0.229, 0.224, 0.225)"},
         PART, *IMAGENET, "rgb"),
        ({"preprocessing": json.dumps({"mean": IMAGENET[0], "std": IMAGENET[1]})},
         PART, *IMAGENET, "rgb"),
        ({"config": json.dumps({"input": {"mean": [[[each]] for each in IMAGENET[0]],
                                          "std": IMAGENET[1]}})}, PART, *IMAGENET, "rgb"),
        ({"mean": "0.5", "std": "0.5"}, PART, (0.5,) * 3, (0.5,) * 3, "rgb"),
        ({"Mean": "127.5", "Std": "127.5"}, 1.0, (127.5,) * 3, (127.5,) * 3, "rgb"),
        ({"mean": "0", "std": "255"}, 1.0, (0.0,) * 3, (255.0,) * 3, "rgb"),
        ({"model_info mean_values": "123.675 116.28 103.53",
          "model_info scale_values": "58.395 57.12 57.375",
          "model_info reverse_input_channels": "True"}, 1.0, *BYTES, "rgb"),
        ({"model_info mean_values": "0 0 0", "model_info scale_values": "1 1 1",
          "model_info reverse_input_channels": "False"}, 1.0, (0.0,) * 3, (1.0,) * 3, "bgr"),
        ({"mean": "103.939, 116.779, 123.68"},
         1.0, (103.939, 116.779, 123.68), (1.0,) * 3, "bgr"),
        ({"mean": "1", "std": "1", "rescale_factor": "0.0078125"},
         0.0078125, (1.0,) * 3, (1.0,) * 3, "rgb"),
        ({"mean": "127.5 127.5 127.5", "scale": "0.0078125 0.0078125 0.0078125"},
         1.0, (127.5,) * 3, (128.0,) * 3, "rgb"),
        ({"mean": "0.4", "std": "0.2", "scale": "255", "color_format": "BGR"},
         PART, (0.4,) * 3, (0.2,) * 3, "bgr"),
    ],
)  # fmt: skip
def test_mean_and_std_as_others_write_them(
    metadata: Mapping[str, str],
    scale: float,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    order: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    described = describe(metadata)
    p = described.preprocessing
    assert (p.scale, p.mean, p.std, p.channels.value, p.guess) == (scale, mean, std, order, "")
    assert described.origin.startswith("m.onnx: channels, scale, mean, std")
    assert not caplog.records


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"mean": "0.5", "std": "0.5", "image_mean": "0.4"}, "mean and image_mean contradict each"),
        ({"mean": "123.675", "std": "0.229"}, "one for pixels from 0 to 1 and one for"),
        ({"mean": "0.485", "std": "58"}, "one for pixels from 0 to 1 and one for"),
        (
            {"mean": "123.675", "std": "58.4", "scale": "0.00392"},
            "no pixel is as large as the mean",
        ),
        (
            {"mean": "0.485", "std": "0.229", "scale": "1"},
            "the mean is far below the range of pixels",
        ),
        ({"mean": "a, b, c", "std": "0.5 0.5 0.5"}, "not used: mean = 'a, b, c'"),
        ({"mean": "0.5", "std": "0"}, "not used: std = '0'"),
        ({"mean": "-0.5", "std": "0.5"}, "not used: mean = '-0.5'"),
        ({"mean": "0.91"}, "not used: mean = '0.91'"),
        ({"mean": "0.1 0.2 0.3 0.4", "std": "1"}, "not used: mean = '0.1 0.2 0.3 0.4'"),
    ],
)
def test_a_mean_that_says_nothing_clear_is_not_used_and_named(
    metadata: Mapping[str, str], said: str
) -> None:
    described = describe(metadata)
    assert described.preprocessing.guess == "imagenet"
    assert said in described.origin


def test_numbers_that_change_nothing_are_taken_with_a_doubt(
    caplog: pytest.LogCaptureFixture,
) -> None:
    p = describe({"mean": "0 0 0", "std": "1 1 1"}).preprocessing
    assert (p.scale, p.guess) == (1 / 255, "")
    assert "set scale = 1 in model.toml" in caplog.text


def test_files_beside_count_before_the_metadata_and_both_are_named(tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text("mean = [0.1, 0.1, 0.1]\nstd = [0.2, 0.2, 0.2]\n")
    described = describe({"mean": "0.5", "std": "0.5"}, folder=tmp_path)
    assert described.preprocessing.mean == (0.1,) * 3
    assert "m.onnx says otherwise: mean, std" in described.origin


def test_a_mean_that_contradicts_ultralytics_keys_is_said() -> None:
    described = describe({**ULTRALYTICS, "mean": "0.5", "std": "0.5"})
    assert described.preprocessing.mean == (0,) * 3
    assert "its mean and std contradict its other keys on pixels" in described.origin


def test_a_mean_of_three_contradicts_an_input_of_one_channel() -> None:
    described = describe({"mean": "0.1 0.2 0.3", "std": "0.5 0.5 0.5"}, (1, 64, 64))
    assert "its input has one channel" in described.origin
    grey = describe({"mean": "0.1307", "std": "0.3081"}, (1, 64, 64)).preprocessing
    assert (grey.mean, grey.std, grey.channels) == ((0.1307,), (0.3081,), ChannelOrder.GREY)


def test_a_network_that_normalises_itself_is_described_by_its_mean() -> None:
    metadata = {"mean": "123.675 116.28 103.53", "std": "58.395 57.12 57.375"}
    described = load_description(
        Path("m.onnx"), (3, 64, 64), None, metadata, own=OwnNormalisation(255)
    )
    assert described.preprocessing.mean == (0,) * 3
    assert described.preprocessing.scale == 1.0
    assert "are assumed to describe these operations, and are not used" in described.origin


def test_openvinos_labels_and_several_labels() -> None:
    described = describe(
        {"model_info labels": "red green dark_blue", "model_info multilabel": "True"}
    )
    assert described.preprocessing.labels == ("red", "green", "dark_blue")
    assert described.output is OutputKind.SIGMOID


keys = st.sampled_from([*ULTRALYTICS, *CUSTOM_VISION, "labels", "config", "mean", "std", "scale"])


@given(
    st.dictionaries(
        keys,
        st.one_of(
            st.text(max_size=30),
            st.sampled_from(
                [*ULTRALYTICS.values(), *CUSTOM_VISION.values(), "[0, 0]", "[9", "1e9", "[1, 2]"]
            ),
            st.just("[" * 100_000),
            st.just("9" * 10_000),
        ),
    )
)
def test_any_metadata_are_read(metadata: dict[str, str]) -> None:
    reading = read_metadata(Path("m.onnx"), metadata, (8, 8))
    if reading is not None:
        assert sum(map(len, reading.ignored + reading.doubts)) < 1000
