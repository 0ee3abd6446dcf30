"""PaddleClas' inference.yml: the transforms, the labels, and the refusals."""

from pathlib import Path

import pytest

from kernels.problems.interpolation import Interpolation
from models.description import load_description
from models.errors import PreprocessingError
from models.preprocessing import ChannelOrder, CropMode, Rounding
from tests.support.models.description import load_preprocessing

CONFIG = """
Global:
  model_name: PP-LCNet_x1_0
PreProcess:
  transform_ops:
  - ResizeImage:
      resize_short: 256
  - CropImage:
      size: 224
  - NormalizeImage:
      channel_num: 3
      mean: [0.485, 0.456, 0.406]
      order: ''
      scale: 0.00392156862745098
      std: [0.2, 0.3, 0.4]
  - ToCHWImage: null
PostProcess:
  Topk:
    topk: 5
    label_list:
    - tench, Tinca tinca
    - 2
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return the path of a model, of which only the neighbouring files are read."""
    return tmp_path / "model.onnx"


def configure(model: Path, text: str, name: str = "inference.yml") -> None:
    model.with_name(name).write_text(text)


def test_transforms_and_labels_are_read(model: Path) -> None:
    configure(model, CONFIG)
    described = load_description(model, (3, None, None))
    p = described.preprocessing
    assert (p.height, p.width, p.resize, p.crop_mode) == (224, 224, 256, CropMode.CROP)
    assert (p.longer_side, p.crop_offset) == (Rounding.NEAREST, Rounding.DOWN)
    assert (p.scale, p.mean, p.std) == (1 / 255, (0.485, 0.456, 0.406), (0.2, 0.3, 0.4))
    assert p.labels == ("tench, Tinca tinca", "2")
    assert "inference.yml, not used: OpenCV's resize, which is not antialiased" in described.origin


def test_the_older_form_names_a_file_of_numbered_labels(model: Path) -> None:
    text = CONFIG.partition("    label_list")[0] + "    class_id_map_file: names/list.txt\n"
    text = text.replace("scale: 0.00392156862745098", 'scale: "1.0/255.0"')
    text = text.replace("resize_short: 256", "size: [256, 128]\n      interpolation: bicubic")
    text = text.replace("size: 224", "size: [224, 112]")
    configure(model, text, "inference_cls.yaml")
    model.with_name("names").mkdir()
    (model.with_name("names") / "list.txt").write_text("0 tench, Tinca tinca\n1 goldfish\n")
    p = load_preprocessing(model, (3, None, None))
    assert (p.labels, p.scale) == (("tench, Tinca tinca", "goldfish"), 1 / 255)
    assert (p.width, p.height, p.resize, p.crop_mode) == (224, 112, 256, CropMode.SQUASH)
    assert p.interpolation is Interpolation.BICUBIC


def test_where_the_file_says_nothing_it_is_what_paddle_does(model: Path) -> None:
    """The defaults equal those of the operators' constructors; null means no value."""
    start, end = CONFIG.index("      channel_num"), CONFIG.index("  - ToCHWImage")
    configure(model, CONFIG[:start] + "      scale: null\n" + CONFIG[end:])
    p = load_preprocessing(model, (3, None, None))
    assert p.interpolation is Interpolation.BILINEAR
    assert (p.scale, p.mean, p.std) == (1 / 255, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    start = CONFIG.index("  - NormalizeImage")
    configure(model, CONFIG[:start] + CONFIG[end:])
    p = load_preprocessing(model, (3, None, None))
    assert (p.scale, p.mean, p.std) == (1, (0, 0, 0), (1, 1, 1))


def test_pillows_resize_is_used_as_it_is(model: Path) -> None:
    resize = "resize_short: 256\n      backend: PIL\n      interpolation: BICUBIC"
    configure(model, CONFIG.replace("resize_short: 256", resize))
    described = load_description(model, (3, None, None))
    assert described.preprocessing.interpolation is Interpolation.BICUBIC
    assert "not used" not in described.origin


def test_channels_may_be_kept_as_opencv_reads_them(model: Path) -> None:
    text = CONFIG.replace(
        "ops:\n", "ops:\n  - DecodeImage: {to_rgb: false, channel_first: false}\n"
    )
    configure(model, text)
    assert load_preprocessing(model, (3, None, None)).channels is ChannelOrder.BGR


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("ToCHWImage", "RandFlipImage", "RandFlipImage is not supported"),
        (
            "ResizeImage:\n      resize_short: 256\n  - CropImage:\n      size: 224",
            "CropImage: {size: 9}\n  - ResizeImage: {size: 8}",
            "CropImage, then ResizeImage, then NormalizeImage is not supported",
        ),
        (
            "CropImage:\n      size: 224",
            "ResizeImage: {size: 256}",
            "ResizeImage, then ResizeImage, then NormalizeImage is not supported",
        ),
        ("resize_short: 256", "backend: pil", "ResizeImage needs resize_short or a size"),
        ("resize_short: 256", "resize_short: [1]", "resize_short must be a whole number"),
        ("size: 224", "size: [224, 224, 3]", "CropImage needs a size"),
        (
            "  - CropImage:\n      size: 224\n",
            "",
            r"Crop .* \(CropImage: {size: 256}\), or resize both .* \(ResizeImage: {size: 256}\)",
        ),
        ("resize_short: 256", "size: [256, 128]", "a crop of 224×224 from an image of 256×128"),
        ("resize_short: 256", "{resize_short: 256, interpolation: random}", "= 'random'"),
        ("scale: 0.00392156862745098", "scale: 1/0", "scale = '1/0'"),
        ("PreProcess:", "PreProcess: [", "cannot be read"),
    ],
)
def test_what_cannot_be_done_is_refused(model: Path, old: str, new: str, words: str) -> None:
    configure(model, CONFIG.replace(old, new))
    with pytest.raises(PreprocessingError, match=words):
        load_preprocessing(model, (3, None, None))


def test_another_programs_file_is_left_alone(model: Path) -> None:
    configure(model, "PreProcess: []\n")
    assert load_preprocessing(model, (3, 8, 8)).labels == ()
