"""transformers' files: the settings used, the refusals and their messages."""

import json
from pathlib import Path

import pytest

from kernels.problems.interpolation import Interpolation
from models.description import load_description
from models.errors import PreprocessingError
from models.preprocessing import ChannelOrder, CropMode, Rounding
from models.scores import OutputKind
from tests.support.models.description import load_preprocessing

OPEN = (3, None, None)
IMAGENET: dict[str, object] = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.2, 0.3, 0.4]}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return the path of a model, of which only the neighbouring files are read."""
    return tmp_path / "model.onnx"


def process(model: Path, kind: str = "ViTImageProcessor", **changes: object) -> None:
    config = {"do_normalize": True, "image_processor_type": kind, "resample": 2, **IMAGENET}
    text = json.dumps(config | changes)
    model.with_name("preprocessor_config.json").write_text(text, encoding="utf-8")


def square(side: int) -> dict[str, int]:
    return {"height": side, "width": side}


@pytest.mark.parametrize(
    ("kind", "said", "size", "resize", "mode"),
    [
        ("ViTImageProcessor", {"size": square(224)}, 224, 224, "squash"),
        ("ViTFeatureExtractor", {"size": 224}, 224, 224, "squash"),
        ("DeiTImageProcessor", {"size": square(256), "crop_size": square(224)}, 224, 256, "squash"),
        (
            "BitImageProcessor",
            {"size": {"shortest_edge": 256}, "crop_size": square(224), "do_center_crop": True},
            224,
            256,
            "crop",
        ),
        ("MobileNetV2ImageProcessorFast", {"size": 256, "crop_size": 224}, 224, 256, "crop"),
        # These have rules of their own.
        ("ConvNextImageProcessor", {"size": {"shortest_edge": 224}}, 224, 256, "crop"),
        ("ConvNextFeatureExtractor", {"size": 224, "crop_pct": 0.95}, 224, 235, "crop"),
        ("ConvNextImageProcessor", {"size": {"shortest_edge": 384}}, 384, 384, "squash"),
        (
            "LevitImageProcessor",
            {"size": {"shortest_edge": 224}, "crop_size": square(224)},
            224,
            256,
            "crop",
        ),
        (
            "PoolFormerImageProcessor",
            {"size": {"shortest_edge": 224}, "crop_size": square(224), "crop_pct": 0.9},
            224,
            248,
            "crop",
        ),
        (
            "PoolFormerImageProcessor",
            {"size": square(224), "crop_size": square(224), "crop_pct": 0.9},
            224,
            248,
            "crop",
        ),
        # A processor that is not known is read where its size says which sides it is.
        ("OwnImageProcessor", {"size": square(96)}, 96, 96, "squash"),
    ],
)
def test_sizes_and_crops(
    model: Path, kind: str, said: dict[str, object], size: int, resize: int, mode: str
) -> None:
    process(model, kind, **said)
    p = load_preprocessing(model, OPEN)
    assert (p.height, p.width, p.resize, p.crop_mode) == (size, size, resize, CropMode(mode))
    assert p.crop_offset is Rounding.DOWN
    assert (p.scale, p.mean, p.std) == (1 / 255, (0.485, 0.456, 0.406), (0.2, 0.3, 0.4))
    assert p.guess == ""


@pytest.mark.parametrize("number", range(6))
def test_resample_is_pillows_number(model: Path, number: int) -> None:
    process(model, size=square(8), resample=number)
    by_pillow = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
    assert load_preprocessing(model, OPEN).interpolation is Interpolation(by_pillow[number])


def test_what_is_not_done_is_not_done(model: Path) -> None:
    process(model, size=square(8), do_rescale=False, do_normalize=False)
    p = load_preprocessing(model, OPEN)
    assert (p.scale, p.mean, p.std) == (1, (0, 0, 0), (1, 1, 1))
    process(model, size=square(8), image_mean=0.5, image_std=0.25, rescale_factor=0.01)
    p = load_preprocessing(model, OPEN)
    assert (p.scale, p.mean, p.std) == (0.01, (0.5,) * 3, (0.25,) * 3)
    process(model, size=square(8), image_mean=[0.5], image_std=[0.5])
    assert load_preprocessing(model, (1, 8, 8)).channels is ChannelOrder.GREY


def test_mobilevit_reads_bgr_and_efficientnet_divides_twice(model: Path) -> None:
    kind = "MobileViTImageProcessor"
    config = {"image_processor_type": kind, "size": square(8), "do_flip_channel_order": True}
    config |= {"resample": 2, "do_center_crop": False}
    path = model.with_name("preprocessor_config.json")
    path.write_text(json.dumps(config | IMAGENET))  # it has no do_normalize
    p = load_preprocessing(model, OPEN)
    assert (p.channels, p.mean, p.std) == (ChannelOrder.BGR, (0, 0, 0), (1, 1, 1))
    process(
        model,
        "EfficientNetImageProcessor",
        size=square(8),
        rescale_offset=True,
        rescale_factor=1 / 127.5,
        image_mean=[0, 0, 0],
        image_std=[0.5, 0.5, 0.5],
    )
    p = load_preprocessing(model, OPEN)
    assert (p.scale, p.mean, p.std) == (1 / 127.5, (1, 1, 1), (0.25,) * 3)
    # Without the rescaling, nothing is subtracted. The second division has a flag of its own.
    said = {"size": square(8), "rescale_offset": True, "do_rescale": False, "do_normalize": False}
    process(model, "EfficientNetImageProcessor", **said)
    p = load_preprocessing(model, OPEN)
    assert (p.scale, p.mean, p.std) == (1, (0, 0, 0), (0.2, 0.3, 0.4))


@pytest.mark.parametrize(
    ("key", "value", "reader"),
    [
        ("rescale_offset", True, "EfficientNet"),
        ("offset", True, "Vivit"),
        ("do_flip_channel_order", True, "MobileViT"),
        ("crop_pct", 0.5, "PoolFormer"),
    ],
)
def test_a_key_is_ignored_by_processors_that_do_not_read_it(
    model: Path, key: str, value: object, reader: str
) -> None:
    said = {"size": {"shortest_edge": 64}, "crop_size": square(48), "do_center_crop": True}
    for kind in ("ViT", "EfficientNet", "MobileViT", "PoolFormer", "CLIP", "Vivit"):
        ignored = {"crop_pct": None, "do_flip_channel_order": False, "offset": False}
        process(model, f"{kind}ImageProcessor", **said, **ignored)
        without = load_preprocessing(model, OPEN)
        process(model, f"{kind}ImageProcessor", **said, **ignored | {key: value})
        described = load_description(model, OPEN)
        assert (described.preprocessing != without) is (kind == reader), kind
        assert (f"not used: {key}" in described.origin) is (kind != reader), kind


@pytest.mark.parametrize(
    ("kind", "said", "size", "resize", "mode"),
    [
        ("CLIP", {"size": {"shortest_edge": 240}}, 224, 240, "crop"),
        ("CLIP", {"size": square(256)}, 224, 256, "squash"),
        ("DeiT", {"size": square(256)}, 224, 256, "squash"),
        ("MobileViT", {"size": {"shortest_edge": 288}}, 256, 288, "crop"),
        ("PoolFormer", {"size": square(224)}, 224, 248, "crop"),
        ("PPLCNet", {"size": square(8)}, 224, 256, "crop"),
        ("ViT", {"size": square(48), "crop_size": square(32)}, 48, 48, "squash"),
        ("Siglip", {"size": square(48), "crop_size": square(32)}, 48, 48, "squash"),
        (
            "Segformer",
            {"size": square(48), "crop_size": square(32), "do_center_crop": True},
            48,
            48,
            "squash",
        ),
        (
            "PoolFormer",
            {"size": {"height": 36, "width": 72}, "crop_size": {"height": 20, "width": 40}},
            40,
            80,
            "squash",
        ),
    ],
)
def test_a_missing_key_has_the_processors_default(
    model: Path, kind: str, said: dict[str, object], size: int, resize: int, mode: str
) -> None:
    process(model, f"{kind}ImageProcessor", **said)
    p = load_preprocessing(model, OPEN)
    assert (p.width, p.resize, p.crop_mode) == (size, resize, CropMode(mode))


def test_mobilevit_never_normalises_and_reads_bgr_by_default(model: Path) -> None:
    process(model, "MobileViTImageProcessor", size=square(8), do_center_crop=False)
    p = load_preprocessing(model, OPEN)  # do_normalize is true
    assert (p.channels, p.mean, p.std) == (ChannelOrder.BGR, (0, 0, 0), (1, 1, 1))


def test_tipsv2_normalises_only_if_its_file_says_so(model: Path) -> None:
    config = {"image_processor_type": "Tipsv2ImageProcessor", "size": square(8), "resample": 2}
    path = model.with_name("preprocessor_config.json")
    path.write_text(json.dumps(config | IMAGENET))
    assert load_preprocessing(model, OPEN).mean == (0, 0, 0)
    path.write_text(json.dumps(config | IMAGENET | {"do_normalize": True}))
    assert load_preprocessing(model, OPEN).mean == (0.485, 0.456, 0.406)


def test_vivit_subtracts_one_from_what_it_rescales(model: Path) -> None:
    process(model, "VivitImageProcessor", size=square(256), image_mean=0.5, image_std=0.5)
    p = load_preprocessing(model, OPEN)
    assert (p.height, p.scale, p.mean) == (224, 1 / 127.5, (1.5,) * 3)


def test_an_image_processor_within_a_processor_is_read_first(model: Path) -> None:
    """Version 5 of transformers saves CLIP's and SigLIP's processors so."""
    process(model, size=square(32))
    inner = {"image_processor_type": "ViTImageProcessor", "size": square(48), "resample": 3}
    path = model.with_name("processor_config.json")
    path.write_text(json.dumps({"image_processor": inner | IMAGENET, "processor_class": "X"}))
    assert load_preprocessing(model, OPEN).height == 48
    path.write_text(json.dumps({"processor_class": "X", "image_size": 8}))
    assert load_preprocessing(model, OPEN).height == 32


def test_pplcnet_resizes_the_shorter_side_and_reverses_what_is_normalised(model: Path) -> None:
    said = {"size": square(256), "resize_short": 240, "size_divisor": 1, "crop_size": square(224)}
    process(model, "PPLCNetImageProcessor", **said)
    p = load_preprocessing(model, OPEN)
    assert (p.height, p.resize, p.crop_mode) == (224, 240, CropMode.CROP)
    assert p.longer_side is Rounding.NEAREST
    assert (p.channels, p.mean, p.std) == (
        ChannelOrder.BGR,
        (0.406, 0.456, 0.485),
        (0.4, 0.3, 0.2),
    )


def test_what_is_not_known_is_not_used_and_said(model: Path) -> None:
    process(model, size=square(8), patch_size=16, num_labels=None, _valid_processor_keys=["size"])
    origin = load_description(model, OPEN).origin
    assert origin.endswith("preprocessor_config.json, not used: patch_size")


@pytest.mark.parametrize(
    ("kind", "said", "words"),
    [
        ("OwnImageProcessor", {"size": 224}, "is ambiguous, because the image processor"),
        (
            "BitImageProcessor",
            {"size": {"shortest_edge": 8}, "do_center_crop": False},
            "Crop the centre",
        ),
        ("ViTImageProcessor", {"size": {"longest_edge": 8}}, "it must have a shortest_edge alone"),
        (
            "BitImageProcessor",
            {"size": {"shortest_edge": 8, "longest_edge": 9}, "crop_size": square(8)},
            "it must have a shortest_edge alone",
        ),
        ("ViTImageProcessor", {"size": square(8), "do_pad": True}, "do_pad = true is not"),
        ("ViTImageProcessor", {"size": square(8), "do_resize": False}, "do_resize = false"),
        ("ViTImageProcessor", {"size": square(8), "size_divisor": 32}, "size_divisor is not"),
        ("TextNetImageProcessor", {"size": square(8)}, "size_divisor is not"),
        ("OwnImageProcessor", {"size": square(8), "do_center_crop": True}, "crop_size = None is"),
        ("ViTImageProcessor", {"size": square(8), "image_mean": None}, "image_mean = None is"),
        ("PerceiverImageProcessor", {"size": square(8)}, "crops before it resizes"),
        ("ViTImageProcessor", {"size": square(8), "resample": 9}, "Pillow's filters, 0 to 5"),
        ("ViTImageProcessor", {"size": square(8), "resample": None}, "resample is missing"),
        ("ViTImageProcessor", {"size": square(8), "image_mean": "x"}, "image_mean = 'x'"),
        (
            "DeiTImageProcessor",
            {"size": square(8), "crop_size": {"height": 4, "width": 8}},
            "ratio",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_unless_a_preset_is_set(
    model: Path, kind: str, said: dict[str, object], words: str
) -> None:
    process(model, kind, **said)
    with pytest.raises(PreprocessingError, match=words):
        load_preprocessing(model, (3, 8, 8))
    described = load_description(model, (3, 8, 8), {"preset": "inception"})
    assert described.preprocessing.scale == 1 / 127.5
    assert words.split(maxsplit=1)[0] in described.origin.partition("says otherwise: ")[2]


def label(model: Path, names: object, **more: object) -> None:
    model.with_name("config.json").write_text(json.dumps({"id2label": names, **more}))


def test_labels_go_by_number(model: Path) -> None:
    label(model, {str(i): f"class {i}" for i in reversed(range(12))})
    assert load_preprocessing(model, (3, 8, 8)).labels[10:] == ("class 10", "class 11")
    label(model, {"0": "LABEL_0", "1": "LABEL_1"})  # as transformers writes where none were set
    assert load_preprocessing(model, (3, 8, 8)).labels == ()
    label(model, {"0": "cat", "2": "dog"})
    with pytest.raises(PreprocessingError, match="a label for each class number from 0 on"):
        load_preprocessing(model, (3, 8, 8))


def test_that_classes_are_no_alternatives_makes_a_model_multi_label(model: Path) -> None:
    label(model, {"0": "cat", "1": "sofa"}, problem_type="multi_label_classification")
    described = load_description(model, (3, 8, 8))
    assert described.output is OutputKind.SIGMOID
    assert "config.json: output, labels" in described.origin
    label(model, {"0": "cat", "1": "sofa"}, problem_type="single_label_classification")
    assert load_description(model, (3, 8, 8)).output is None


def test_a_regression_is_refused_unless_output_says_what_its_score_is(model: Path) -> None:
    label(model, {"0": "age"}, problem_type="regression")
    with pytest.raises(PreprocessingError, match="is regression, so that"):
        load_description(model, (3, 8, 8))
    described = load_description(model, (3, 8, 8), {"output": "probabilities"})
    assert described.output is OutputKind.PROBABILITIES
