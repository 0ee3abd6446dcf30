"""model.toml, presets, flags and guesses; invalid settings are refused by name."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kernels.problems.interpolation import Interpolation
from models.description import files_of, load_description
from models.errors import PreprocessingError
from models.preprocessing import (
    PRESETS,
    ChannelOrder,
    CropMode,
    Layout,
    checked_labels,
    each_preset,
    normalisation,
)
from models.scores import OutputKind
from tests.support.models.description import load_preprocessing

RGB_224 = (3, 224, 224)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return the path of a model, of which only the neighbouring files are read."""
    return tmp_path / "net.onnx"


def describe(model: Path, text: str, name: str = "model.toml") -> None:
    model.with_name(name).write_text(text, encoding="utf-8")


def test_every_key_of_the_file_is_read(model: Path) -> None:
    model.with_name("names.txt").write_text("a b\nc\n", encoding="utf-8")
    describe(
        model,
        """
        height = 200
        width = 100
        resize = 210
        crop_mode = "squash"
        channels = "bgr"
        layout = "nhwc"
        scale = 2
        mean = [1, 2.5, 3]
        std = [4, 5, 6]
        output = "probabilities"
        labels = "names.txt"
        """,
    )
    p = load_preprocessing(model, (200, 100, 3))
    assert (p.height, p.width, p.resize, p.crop_mode) == (200, 100, 210, CropMode.SQUASH)
    assert (p.channels, p.layout, p.output) == (
        ChannelOrder.BGR,
        Layout.NHWC,
        OutputKind.PROBABILITIES,
    )
    assert (p.scale, p.mean, p.std) == (2.0, (1.0, 2.5, 3.0), (4.0, 5.0, 6.0))
    assert p.labels == ("a b", "c")
    assert p.input_shape == (200, 100, 3)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_taken_whole(model: Path, name: str) -> None:
    describe(model, f'preset = "{name}"')
    preset = PRESETS[name]
    p = load_preprocessing(model, (None, None, None))
    assert (p.height, p.width, p.resize) == (preset.size, preset.size, preset.resize)
    for key in ("crop_mode", "channels", "scale", "mean", "std"):
        assert getattr(p, key) == getattr(preset, key)
    assert p.labels == ()


def test_the_file_wins_over_its_preset_and_flags_win_over_the_file(model: Path) -> None:
    describe(model, 'preset = "caffe"\nscale = 0.5\nresize = 230')
    p = load_preprocessing(model, RGB_224, {"resize": 240, "crop_mode": None})
    assert (p.channels, p.scale, p.resize) == (ChannelOrder.BGR, 0.5, 240)
    assert p.crop_mode is CropMode.CROP


def test_a_preset_given_as_a_flag_replaces_the_file_but_for_labels_and_layout(model: Path) -> None:
    model.with_name("labels.txt").write_text("x\ny", encoding="utf-8")
    describe(model, 'layout = "nhwc"\nscale = 9\nchannels = "bgr"\nlabels = "labels.txt"')
    p = load_preprocessing(model, (224, 224, 3), {"preset": "imagenet"})
    assert (p.scale, p.channels, p.layout) == (1 / 255, ChannelOrder.RGB, Layout.NHWC)
    assert p.labels == ("x", "y")


@pytest.mark.parametrize(
    ("text", "flags", "resize"),
    [
        ("crop_pct = 0.95", {}, 235),  # timm: floor(224 / 0.95)
        ("crop_pct = 1", {}, 224),
        ('crop_mode = "squash"', {}, 224),
        ('crop_mode = "pad"', {}, 224),
        ('crop_mode = "squash"\ncrop_pct = 0.875', {}, 256),
        ("crop_pct = 0.95", {"resize": 300}, 300),
        ("resize = 300", {"crop_pct": 0.95}, 235),
        ('interpolation = "bicubic"\nexact = true', {}, 256),
    ],
)
def test_the_resize_is_given_by_itself_or_as_the_part_that_the_crop_is(
    model: Path, text: str, flags: dict[str, object], resize: int
) -> None:
    describe(model, text)
    p = load_preprocessing(model, RGB_224, flags)
    assert p.resize == resize
    assert (p.interpolation is Interpolation.BICUBIC) == p.exact == ("bicubic" in text)


def test_a_resize_given_twice_is_refused(model: Path) -> None:
    describe(model, "resize = 256\ncrop_pct = 0.875")
    with pytest.raises(PreprocessingError, match="set either resize or crop_pct"):
        load_preprocessing(model, RGB_224)


def test_the_file_named_after_the_model_wins_over_model_toml(model: Path) -> None:
    describe(model, "resize = 300")
    describe(model, "resize = 301", "net.toml")
    assert load_preprocessing(model, RGB_224).resize == 301


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("[114, 113, 0]", (114, 113, 0)),
        ("[114]", (114, 114, 114)),
        ('"white"', (255, 255, 255)),
        ('"black"', (0, 0, 0)),
    ],
)
def test_the_colour_around_images_is_set(model: Path, written: str, read: tuple[int, ...]) -> None:
    describe(model, f'crop_mode = "pad"\npad = {written}')
    p = load_preprocessing(model, RGB_224)
    assert (p.pad, p.paper) == (read, read)
    assert load_preprocessing(model, RGB_224, {"channels": "bgr"}).paper == read[::-1]
    describe(model, 'crop_mode = "pad"')
    assert load_preprocessing(model, RGB_224).paper == (124, 116, 104)


def test_the_colour_around_grey_images_has_its_brightness(model: Path) -> None:
    for written, read in (("[255, 0, 0]", (76,)), ('"white"', (255,)), ("[9]", (9,))):
        describe(model, f'crop_mode = "pad"\npad = {written}')
        assert load_preprocessing(model, (1, 8, 8)).paper == read


@pytest.mark.parametrize("written", ['"grey"', "[1, 2]", "[256]", "[-1]", "[0.5]", "[true]", "9"])
def test_what_is_no_colour_is_refused(model: Path, written: str) -> None:
    describe(model, f'crop_mode = "pad"\npad = {written}')
    with pytest.raises(PreprocessingError, match=r'pad = .*\[red, green, blue\].*"white"'):
        load_preprocessing(model, RGB_224)


def test_a_colour_around_images_that_fill_the_frame_is_refused(model: Path) -> None:
    describe(model, 'pad = "white"')
    with pytest.raises(PreprocessingError, match='crop_mode = "crop" adds nothing around them'):
        load_preprocessing(model, RGB_224)


def test_model_toml_may_lie_above_a_versions_folder(tmp_path: Path) -> None:
    model = tmp_path / "1" / "model.onnx"
    model.parent.mkdir()
    (tmp_path / "names.txt").write_text("a\nb\n")
    (tmp_path / "model.toml").write_text('preset = "caffe"\nlabels = "names.txt"')
    described = load_description(model, RGB_224)
    assert described.preprocessing.channels is ChannelOrder.BGR
    assert described.preprocessing.labels == ("a", "b")
    assert described.origin.startswith("../model.toml: preset, labels")
    assert tmp_path / "model.toml" in files_of(model)
    model.with_name("model.toml").write_text('preset = "raw"')
    assert load_description(model, RGB_224).preprocessing.channels is ChannelOrder.RGB


def test_a_model_of_another_size_gets_the_preset_in_proportion(model: Path) -> None:
    p = load_preprocessing(model, (3, 299, 299), {"preset": "imagenet"})
    assert (p.height, p.width, p.resize) == (299, 299, round(299 * 256 / 224))


def test_every_preset_of_as_many_channels_can_be_tried(model: Path) -> None:
    p = load_preprocessing(model, (3, 299, 320))
    assert p.guess == "imagenet"
    presets = each_preset(p)
    of_colours = [name for name, preset in PRESETS.items() if len(preset.mean) == 3]
    assert list(presets) == of_colours
    assert {"imagenet", "caffe", "inception", "raw", "unit", "bgr"} <= presets.keys()
    for name, other in presets.items():
        chosen = load_preprocessing(model, (3, 299, 320), {"preset": name})
        assert replace(other, output=chosen.output) == chosen
    assert load_preprocessing(model, RGB_224, {"preset": "imagenet"}).guess == ""
    assert load_preprocessing(model, RGB_224, {"scale": 1}).guess == ""
    assert load_preprocessing(model, RGB_224, {"resize": 300}).guess == "imagenet"


def test_label_paths_in_flags_count_from_the_working_directory(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine.txt").write_text("one\ntwo\n", encoding="utf-8")
    monkeypatch.chdir(elsewhere)
    p = load_preprocessing(model, RGB_224, {"labels": Path("mine.txt"), "preset": "caffe"})
    assert p.labels == ("one", "two")


@pytest.mark.parametrize(
    ("shape", "channels", "layout", "size", "resize"),
    [
        ((3, 224, 224), ChannelOrder.RGB, Layout.NCHW, (224, 224), 256),
        ((224, 224, 3), ChannelOrder.RGB, Layout.NHWC, (224, 224), 256),
        ((3, 112, 96), ChannelOrder.RGB, Layout.NCHW, (112, 96), 128),
        ((1, 28, 28), ChannelOrder.GREY, Layout.NCHW, (28, 28), 28),
        ((28, 28, 1), ChannelOrder.GREY, Layout.NHWC, (28, 28), 28),
    ],
)
def test_without_a_file_the_input_shape_decides_and_the_log_says_so(
    model: Path,
    caplog: pytest.LogCaptureFixture,
    shape: tuple[int | None, ...],
    channels: ChannelOrder,
    layout: Layout,
    size: tuple[int, int],
    resize: int,
) -> None:
    with caplog.at_level(logging.WARNING):
        p = load_preprocessing(model, shape)
    assert (p.channels, p.layout, (p.height, p.width), p.resize) == (channels, layout, size, resize)
    (record,) = caplog.records
    message = record.getMessage()
    for part in ("net.onnx", "mean", "net.toml", "preset"):
        assert part in message


@pytest.mark.parametrize(("channels", "preset"), [(1, '"grey-raw"'), (3, '"raw"')])
def test_a_guess_names_presets_with_the_models_channels(
    model: Path, caplog: pytest.LogCaptureFixture, channels: int, preset: str
) -> None:
    with caplog.at_level(logging.WARNING):
        load_preprocessing(model, (channels, 28, 28))
    (record,) = caplog.records
    assert f"preset = {preset}" in record.getMessage().replace('"unit" (pixels from 0 to 1), ', "")


def test_a_guess_names_the_file_that_describes_every_version(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "cats/1/model.onnx"
    path.parent.mkdir(parents=True)
    with caplog.at_level(logging.WARNING):
        load_preprocessing(path, RGB_224)
    (record,) = caplog.records
    assert f"{path} has no settings" in record.getMessage()
    assert f"in {tmp_path / 'cats/model.toml'}," in record.getMessage()


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("mean = [123, 117, 104]", "set scale = 1, or divide mean and std by 255"),
        ("scale = 1\nmean = [0.5, 0.5, 0.5]", "set scale = 0.0039"),
        ("mean = [0.5, 0.4, 0.3]\nstd = [0.2, 0.2, 0.2]", ""),
        ("scale = 1\nmean = [123, 117, 104]\nstd = [58, 57, 57]", ""),
        ("scale = 0.00784\nmean = [1, 1, 1]\nstd = [1, 1, 1]", ""),
    ],
)
def test_a_mean_for_other_pixels_than_the_scale_gives_is_said(
    model: Path, caplog: pytest.LogCaptureFixture, text: str, right: str
) -> None:
    describe(model, text)
    with caplog.at_level(logging.WARNING):
        origin = load_description(model, RGB_224).origin
    said = [line for line in caplog.messages if "is not for pixels" in line]
    assert len(said) == bool(right)
    assert right in "".join(said)
    assert ("is not for pixels" in origin) is bool(right)
    assert "the preset imagenet: channels" in origin


@pytest.mark.parametrize(
    "shape", [(3, 0, None), (3, None, 96), (3, 96, None), (None, None, None)], ids=str
)
def test_an_open_size_is_asked_for_where_nothing_says_it(
    model: Path, shape: tuple[int | None, ...]
) -> None:
    says = "width open.* --set width=96" if shape[1] else "height open.* --set height=96"
    if not shape[1] and not shape[2]:
        says = "size open.* --set size=224"
    with pytest.raises(PreprocessingError, match=f"leaves their {says}"):
        load_preprocessing(model, shape)
    height = shape[1] or 64
    p = load_preprocessing(model, shape, {"height": height, "width": 96})
    assert (p.height, p.width) == (height, 96)


def test_a_size_taken_from_the_preset_is_said(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        p = load_preprocessing(model, (3, None, None), {"preset": "imagenet"})
    assert (p.height, p.width) == (224, 224)
    (record,) = caplog.records
    assert "net.onnx takes images of any size; they are resized to 224×224" in record.getMessage()


def test_nothing_is_logged_when_nothing_is_guessed(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    describe(model, 'preset = "imagenet"')
    load_preprocessing(model, RGB_224)
    assert not caplog.records


@pytest.mark.parametrize(
    ("text", "key", "right"),
    [
        ("sise = 224", "'sise'", "Did you mean size?"),
        ('preset = "resnet"', "preset = 'resnet'", '"imagenet", "caffe", "inception"'),
        ("size = 0", "size = 0", "whole number"),
        ("size = true", "size = True", "whole number"),
        ("height = 22.5", "height = 22.5", "whole number"),
        ("width = 100000", "width = 100000", "16384"),
        ('crop_mode = "fit"', "crop_mode = 'fit'", '"crop", "squash", "pad"'),
        ('interpolation = "cubic"', "interpolation = 'cubic'", '"nearest", "bilinear", "bicubic"'),
        ("crop_pct = 95", "crop_pct = 95", "at most 1"),
        ("crop_pct = 0", "crop_pct = 0", "above 0"),
        ("exact = 1", "exact = 1", "true or false"),
        ("channels = 3", "channels = 3", '"rgb", "bgr", "grey"'),
        ("layout = []", "layout = []", '"nchw", "nhwc"'),
        ('output = "softmaxes"', "output = 'softmaxes'", '"logits" or "softmax", "probabilities"'),
        ("scale = 0", "scale = 0", "above 0"),
        ("scale = nan", "scale = nan", "above 0"),
        ("mean = 0.5", "mean = 0.5", "list of 3 numbers"),
        ("mean = [1, 2]", "mean = [1, 2]", "list of 3 numbers"),
        ('mean = [1, 2, "3"]', "mean = [1, 2, '3']", "list of 3 numbers"),
        ("mean = [1, inf, 2]", "mean = [1, inf, 2]", "list of 3 numbers"),
        ("std = [1, 0, 1]", "std = [1, 0, 1]", "above 0"),
        ("std = [1, -1, 1]", "std = [1, -1, 1]", "above 0"),
        ("labels = 7", "labels = 7", "path"),
        ("size = 224\nheight = 224", "size", "height and width"),
        ("mean = [0.5]", "mean has length 1", "needs 3"),
        ('channels = "grey"', "mean has length 3", "needs 1"),
        ("resize = 200", "resize = 200", "at least 224"),
        ("resize = ", "cannot be read", "Invalid value"),
        ("preset = imagenet", "cannot be read", 'text needs quotes, as in preset = "imagenet"'),
    ],
)
def test_a_wrong_file_is_refused_naming_file_key_and_what_would_be_right(
    model: Path, text: str, key: str, right: str
) -> None:
    describe(model, text)
    with pytest.raises(PreprocessingError) as caught:
        load_preprocessing(model, RGB_224)
    message = str(caught.value)
    assert str(model.with_name("model.toml")) in message
    assert key in message
    assert right in message


@pytest.mark.parametrize("flags", [{"mode": "rgb"}, {"size": "224"}, {"preset": "nothing"}])
def test_wrong_flags_are_refused_too(model: Path, flags: Mapping[str, object]) -> None:
    with pytest.raises(PreprocessingError, match="the flags"):
        load_preprocessing(model, RGB_224, flags)


def test_a_file_that_is_not_utf8_is_refused(model: Path) -> None:
    model.with_name("model.toml").write_bytes(b'preset = "\xff"')
    with pytest.raises(PreprocessingError, match=r"model\.toml cannot be read"):
        load_preprocessing(model, RGB_224)


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ('preset = "imagenet"\nsize = 299\nresize = 300', (3, 224, 224)),
        ('preset = "imagenet"', (1, 224, 224)),
        ('preset = "imagenet"\nlayout = "nhwc"', (3, 224, 224)),
        ('preset = "digits"', (3, 32, 32)),
        ('preset = "imagenet"', (4, 224, 224)),
    ],
)
def test_what_does_not_fit_the_model_is_refused_naming_both(
    model: Path, text: str, shape: tuple[int, ...]
) -> None:
    describe(model, text)
    with pytest.raises(PreprocessingError) as caught:
        load_preprocessing(model, shape)
    message = str(caught.value)
    assert "model.toml" in message
    assert "×".join(map(str, shape)) in message


@pytest.mark.parametrize("shape", [(), (10,), (3, 224), (2, 3, 16, 224, 224)])
def test_an_input_that_is_no_image_is_refused(model: Path, shape: tuple[int, ...]) -> None:
    with pytest.raises(PreprocessingError, match="three axes"):
        load_preprocessing(model, shape)


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((3, 16, 112, 96), Layout.NCHW),
        ((16, 112, 96, 3), Layout.NHWC),
        ((1, 16, 112, 96), Layout.NCHW),
    ],
)
def test_a_model_of_clips_says_how_many_frames_it_takes(
    model: Path, shape: tuple[int, ...], layout: Layout
) -> None:
    p = load_preprocessing(model, shape)
    assert (p.layout, p.frames, p.height, p.width) == (layout, 16, 112, 96)
    assert p.input_shape == shape
    assert p.image_shape == (16, 112, 96, 1 if shape[0] == 1 else 3)


def test_images_have_no_frames(model: Path) -> None:
    p = load_preprocessing(model, (3, 112, 96))
    assert p.frames is None
    assert p.image_shape == (112, 96, 3)


def test_where_the_model_leaves_its_frames_open_they_must_be_given(model: Path) -> None:
    with pytest.raises(PreprocessingError, match=r"3×\?×112×112. This shape leaves .* frames ="):
        load_preprocessing(model, (3, None, 112, 112))
    describe(model, "frames = 8")
    assert load_preprocessing(model, (3, None, 112, 112)).frames == 8
    assert load_preprocessing(model, (3, None, 112, 112), {"frames": 9}).frames == 9
    # No preset says anything of frames: one that is chosen leaves them as they are.
    assert load_preprocessing(model, (3, None, 112, 112), {"preset": "caffe"}).frames == 8


@pytest.mark.parametrize(
    ("text", "shape", "message"),
    [
        ("frames = 8", (3, 112, 112), "frames = 8, but the model takes images of 3×112×112"),
        (
            "frames = 8",
            (3, 16, 112, 112),
            r"clips of 3×8×112×112 \(nchw, rgb\), but the model takes 3×16×112×112",
        ),
        ("frames = 0", (3, 16, 112, 112), "frames = 0 is not allowed.*whole number of frames"),
        (
            'sampling = "first"',
            (3, 112, 112),
            "remove sampling, because the model takes images, not clips",
        ),
        ("stride = 2", (3, 16, 112, 112), 'add sampling = "stride"'),
        ('sampling = "stride"', (3, 16, 112, 112), "add stride = 2, or another number"),
        ('sampling = "last"', (3, 16, 112, 112), 'one of "uniform", "first", "stride"'),
        ("", (16, 3, 112, 112), "clips of 3×3×112×112.* but the model takes 16×3×112×112"),
    ],
)
def test_frames_that_do_not_fit_are_refused(
    model: Path, text: str, shape: tuple[int, ...], message: str
) -> None:
    describe(model, text)
    with pytest.raises(PreprocessingError, match=message):
        load_preprocessing(model, shape)


def test_which_frames_of_a_longer_clip_a_model_gets_is_set(model: Path) -> None:
    shape = (3, 4, 112, 112)
    assert load_preprocessing(model, shape).chosen(8) == [1, 3, 5, 7]
    describe(model, 'sampling = "stride"\nstride = 3')
    assert load_preprocessing(model, shape).chosen(8) == [0, 3, 6, 7]
    assert load_preprocessing(model, shape).chosen(100) == [0, 3, 6, 9]


def test_labels_are_utf8_one_a_line_whatever_the_line_ends(model: Path) -> None:
    model.with_name("labels.txt").write_bytes("\ufefftench, Tinca tinca\r\nnaïve\n\n".encode())
    describe(model, 'preset = "imagenet"\nlabels = "labels.txt"')
    assert load_preprocessing(model, RGB_224).labels == ("tench, Tinca tinca", "naïve")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "cannot be read"),
        (b"\xff\xfea", "cannot be read"),
        (b"\xc3", "cannot be read"),
        (b"a\n\nb\n", "line 2 is empty"),
    ],
)
def test_unreadable_labels_are_refused_naming_their_file(
    model: Path, content: bytes | None, complaint: str
) -> None:
    if content is not None:
        model.with_name("labels.txt").write_bytes(content)
    describe(model, 'preset = "imagenet"\nlabels = "labels.txt"')
    with pytest.raises(PreprocessingError, match=complaint) as caught:
        load_preprocessing(model, RGB_224)
    assert str(model.with_name("labels.txt")) in str(caught.value)


def test_the_number_of_labels_must_be_that_of_the_classes(model: Path) -> None:
    plain = load_preprocessing(model, RGB_224, {"preset": "imagenet"})
    assert checked_labels(plain.labels, 1000) == ()
    assert checked_labels(("a", "b"), 2) == ("a", "b")
    with pytest.raises(PreprocessingError, match="2 labels, but the model has 3 classes"):
        checked_labels(("a", "b"), 3)


def test_one_score_has_two_labels_or_that_of_yes() -> None:
    assert checked_labels(("cold", "hot"), 1) == ("cold", "hot")
    assert checked_labels(("hot",), 1) == ("not hot", "hot")
    with pytest.raises(PreprocessingError, match="3 labels, but the model has 2 classes, no and"):
        checked_labels(("a", "b", "c"), 1)


@pytest.mark.parametrize("name", PRESETS)
def test_normalisation_is_the_formula_as_one_multiplication_and_one_addition(
    model: Path, name: str
) -> None:
    p = load_preprocessing(model, (None, None, None), {"preset": name})
    multiplier, offset = normalisation(p)
    pixels = np.arange(256)[:, None]
    expected = (pixels * p.scale - np.array(p.mean)) / np.array(p.std)
    assert multiplier.dtype == offset.dtype == np.float32
    np.testing.assert_allclose(pixels * multiplier + offset, expected, rtol=1e-5, atol=1e-5)
