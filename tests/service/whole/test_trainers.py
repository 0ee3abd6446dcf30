"""With `exact = true`, pixels are bit-identical to those with which timm and torchvision evaluate.

The checksums were recorded with the transforms of timm and torchvision. If both are installed, the
long suite compares every pixel of 50 photographs, and the scores of a timm model for all
photographs.
"""

import importlib.util
import io
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from kernels.problems.interpolation import Interpolation
from models import DeviceChoice, DeviceKind, load_classifier, open_engines
from models.preprocessing import Preprocessing, normalised
from service.images.prepare import ImageLimits, prepare_image
from tests.support import ROOT
from tests.support.images.files import encode, scene
from tests.support.models.description import load_preprocessing
from tests.support.networks import SHARED

EVERY_PHOTOGRAPH = sorted((SHARED / "data" / "images").glob("*.JPEG"))
PHOTOGRAPHS = EVERY_PHOTOGRAPH[:50]

needs_trainers = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("timm", "torchvision"))),
    reason="needs timm and torchvision: pip install timm torchvision",
)


class Trained(NamedTuple):
    """The keys of model.toml, and the corresponding settings of the library."""

    keys: dict[str, object]
    torchvision: str  # the weights' name; empty: timm's create_transform with the same keys
    recorded: int  # zlib.crc32 of the pixels of `_scene`


_BICUBIC = {"interpolation": "bicubic"}
TRAINED = {
    "resnet50.V1": Trained(
        {"size": 224, "resize": 256}, "ResNet50_Weights.IMAGENET1K_V1", 3177153003
    ),
    "resnet50.V2": Trained(
        {"size": 224, "resize": 232}, "ResNet50_Weights.IMAGENET1K_V2", 426911790
    ),
    "inception_v3": Trained(
        {"size": 299, "resize": 342}, "Inception_V3_Weights.IMAGENET1K_V1", 2930120059
    ),
    "efficientnet_b0": Trained(
        {"size": 224, "resize": 256, **_BICUBIC},
        "EfficientNet_B0_Weights.IMAGENET1K_V1",
        2923001695,
    ),
    "bicubic 0.875": Trained({"size": 224, "crop_pct": 0.875, **_BICUBIC}, "", 2923001695),
    "bicubic 0.95": Trained({"size": 224, "crop_pct": 0.95, **_BICUBIC}, "", 2406248335),
    "bilinear 0.9": Trained(
        {"size": 240, "crop_pct": 0.9, "interpolation": "bilinear"}, "", 4011106644
    ),
    "bicubic 1.0 at 288": Trained({"size": 288, "crop_pct": 1.0, **_BICUBIC}, "", 1668066745),
    "squash": Trained(
        {"size": 224, "crop_pct": 0.9, "crop_mode": "squash", **_BICUBIC}, "", 2094537637
    ),
    "border": Trained(
        {"size": 224, "crop_pct": 1.0, "crop_mode": "pad", **_BICUBIC}, "", 3243550105
    ),
    "border 0.9": Trained(
        {"size": 224, "crop_pct": 0.9, "crop_mode": "pad", **_BICUBIC}, "", 461034315
    ),
}
EACH = pytest.mark.parametrize("name", TRAINED)

_CROP_MODES = {"crop": "center", "squash": "squash", "pad": "border"}


def _preprocessing(keys: dict[str, object]) -> Preprocessing:
    flags = {"preset": "imagenet", "exact": True, **keys}
    return load_preprocessing(ROOT / "no-model.onnx", (3, None, None), flags)


def _ours(file: bytes, preprocessing: Preprocessing) -> NDArray[np.uint8]:
    return prepare_image(file, preprocessing, ImageLimits()).run()


def _scene() -> bytes:
    return encode(scene(1023, 769), "PNG")


def _theirs(trained: Trained) -> Callable[[Image.Image], Image.Image]:
    """Return the library's transform without its last steps, which create a normalised tensor."""
    import timm.data  # noqa: PLC0415
    import torchvision.models  # noqa: PLC0415
    from torchvision.transforms import functional  # noqa: PLC0415

    if trained.torchvision:
        weights, version = trained.torchvision.split(".")
        own = getattr(torchvision.models, weights)[version].transforms()

        def transform(image: Image.Image) -> Image.Image:
            resized = functional.resize(
                image, own.resize_size, interpolation=own.interpolation, antialias=own.antialias
            )
            cropped: Image.Image = functional.center_crop(resized, own.crop_size)
            return cropped

        return transform
    steps = timm.data.create_transform(
        trained.keys["size"],
        is_training=False,
        interpolation=trained.keys["interpolation"],
        crop_pct=trained.keys["crop_pct"],
        crop_mode=_CROP_MODES[str(trained.keys.get("crop_mode", "crop"))],
    ).transforms
    to_pixels = [
        step for step in steps if type(step).__name__ not in ("MaybeToTensor", "Normalize")
    ]
    assert len(to_pixels) == len(steps) - 2

    def through(image: Image.Image) -> Image.Image:
        for step in to_pixels:
            image = step(image)
        return image

    return through


@EACH
def test_the_pixels_of_a_scene_are_those_recorded(name: str) -> None:
    trained = TRAINED[name]
    pixels = _ours(_scene(), _preprocessing(trained.keys))
    assert zlib.crc32(pixels.tobytes()) == trained.recorded


@needs_trainers
@EACH
def test_the_recorded_sums_are_the_trainers(name: str) -> None:
    trained = TRAINED[name]
    image = Image.open(io.BytesIO(_scene())).convert("RGB")
    assert zlib.crc32(np.asarray(_theirs(trained)(image)).tobytes()) == trained.recorded


@pytest.mark.slow
@needs_trainers
@pytest.mark.skipif(len(PHOTOGRAPHS) < 50, reason=f"needs the photographs of {SHARED}")
@EACH
def test_every_pixel_of_50_photographs_is_the_trainers(name: str) -> None:
    trained = TRAINED[name]
    preprocessing, transform = _preprocessing(trained.keys), _theirs(trained)
    for path in PHOTOGRAPHS:
        theirs = np.asarray(transform(Image.open(path).convert("RGB")))
        assert np.array_equal(_ours(path.read_bytes(), preprocessing), theirs), path.name


@pytest.mark.slow
@pytest.mark.skipif(len(PHOTOGRAPHS) < 50, reason=f"needs the photographs of {SHARED}")
def test_what_the_docs_say_of_a_jpeg_that_is_decoded_at_one_half() -> None:
    exact = _preprocessing({})
    off = []
    for path in PHOTOGRAPHS:
        image = Image.open(path).convert("RGB").resize((800, 600), Image.Resampling.BICUBIC)
        file = encode(image, "JPEG", quality=90)
        drafted = _ours(file, replace(exact, exact=False))
        off.append(np.abs(np.subtract(_ours(file, exact), drafted, dtype=np.int16)).mean())
    assert np.mean(off) == pytest.approx(1.1, abs=0.05)  # grey levels
    assert max(off) == pytest.approx(2.9, abs=0.05)


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("cv2") is None or len(PHOTOGRAPHS) < 50,
    reason=f"needs OpenCV: pip install opencv-python-headless; and the photographs of {SHARED}",
)
@pytest.mark.parametrize(("backend", "median", "mean"), [("cv2", 2.6, 3.7), ("pil", 0, 1.7)])
def test_what_the_docs_say_of_paddleclas(backend: str, median: float, mean: float) -> None:
    """With every backend, PaddleClas' operators round the longer side and the crop's position
    differently from Convoy."""
    import cv2  # noqa: PLC0415

    exact = _preprocessing({"size": 224, "resize": 256})
    off = []
    for path in PHOTOGRAPHS:
        image = Image.open(path).convert("RGB")
        times = 256 / min(image.size)
        width, height = size = (round(image.width * times), round(image.height * times))
        if backend == "cv2":
            resized = cv2.resize(np.asarray(image), size, interpolation=cv2.INTER_LINEAR)
        else:
            resized = np.asarray(image.resize(size, Image.Resampling.BILINEAR))
        top, left = (height - 224) // 2, (width - 224) // 2
        theirs = resized[top : top + 224, left : left + 224]
        off.append(np.abs(np.subtract(_ours(path.read_bytes(), exact), theirs, dtype=int)).mean())
    assert np.median(off) == pytest.approx(median, abs=0.05)  # grey levels
    assert np.mean(off) == pytest.approx(mean, abs=0.05)


@pytest.mark.slow
@needs_trainers
@pytest.mark.skipif(len(EVERY_PHOTOGRAPH) < 200, reason=f"needs the photographs of {SHARED}")
def test_a_model_of_timm_has_timms_scores_of_each_photograph(tmp_path: Path) -> None:
    """The model is described by the file that timm itself writes next to it. Its weights are
    random, from a seed."""
    import timm  # noqa: PLC0415
    import torch  # noqa: PLC0415
    from timm.models._hub import save_config_for_hf  # noqa: PLC0415

    torch.manual_seed(0)
    trained = {"interpolation": "bicubic", "crop_pct": 0.95}
    model = timm.create_model("resnet18", pretrained_cfg_overlay=trained).eval()
    save_config_for_hf(model, str(tmp_path / "config.json"))
    path, shape = tmp_path / "model.onnx", (1, 3, 224, 224)
    torch.onnx.export(model, (torch.rand(shape),), path, input_names=["x"], dynamo=False)
    config = timm.data.resolve_data_config(model.pretrained_cfg)
    assert (config["interpolation"], config["crop_pct"]) == ("bicubic", 0.95)
    transform = timm.data.create_transform(**config)

    classifier = load_classifier(path, overrides={"exact": True})
    (engine,) = open_engines(classifier, [DeviceChoice(DeviceKind.CPU)], max_batch=1, threads=1)
    bilinear = replace(classifier.preprocessing, interpolation=Interpolation.BILINEAR)
    theirs: list[NDArray[np.float32]] = []
    ours: list[NDArray[np.float32]] = []
    others: list[NDArray[np.float32]] = []
    for photograph in EVERY_PHOTOGRAPH:
        with torch.inference_mode():
            tensor = transform(Image.open(photograph).convert("RGB"))
            theirs.append(model(tensor[np.newaxis]).numpy()[0])
        for preprocessing, scores in ((classifier.preprocessing, ours), (bilinear, others)):
            pixels = _ours(photograph.read_bytes(), preprocessing)
            scores.append(engine.run(pixels[np.newaxis]).scores[0].copy())
    engine.close()
    spread = np.std(theirs, axis=0).max()  # of a class, over the photographs
    off, off_by_another = (np.abs(np.subtract(x, theirs)).max(axis=1) for x in (ours, others))
    assert off.max() < 1e-4 * spread
    assert off_by_another.min() > 1e-2 * spread  # so that the filter alone would be seen
    assert np.array_equal(np.argmax(ours, axis=1), np.argmax(theirs, axis=1))


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None or len(PHOTOGRAPHS) < 50,
    reason=f"needs transformers: pip install transformers; and the photographs of {SHARED}",
)
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("ViTImageProcessor", {}),
        ("DeiTImageProcessor", {}),
        ("BeitImageProcessor", {}),
        ("BitImageProcessor", {}),
        ("CLIPImageProcessor", {}),
        ("ConvNextImageProcessor", {"size": {"shortest_edge": 224}}),
        ("ConvNextImageProcessor", {}),
        ("LevitImageProcessor", {}),
        ("PoolFormerImageProcessor", {}),
        ("MobileNetV2ImageProcessor", {}),
        ("MobileViTImageProcessor", {"size": {"shortest_edge": 288}}),
        ("EfficientNetImageProcessor", {}),
        ("PPLCNetImageProcessor", {}),
        ("PvtImageProcessor", {}),
        ("SegformerImageProcessor", {}),
        ("SiglipImageProcessor", {}),
    ],
)
def test_the_file_that_transformers_writes_gives_transformers_tensors(
    tmp_path: Path, kind: str, settings: dict[str, object]
) -> None:
    """transformers resizes tensors, whose pixels differ only by rounding. Its crops may be shifted
    by a pixel from Convoy's."""
    import transformers  # noqa: PLC0415

    processor = getattr(transformers, kind)(**settings)
    processor.save_pretrained(tmp_path)
    flags = {"exact": True}
    preprocessing = load_preprocessing(tmp_path / "m.onnx", (3, None, None), flags)
    levels = np.reshape(preprocessing.std, (3, 1, 1)) / preprocessing.scale
    off = []
    for path in PHOTOGRAPHS[:10]:
        image = Image.open(path).convert("RGB")
        theirs = processor(image, return_tensors="np")["pixel_values"][0]
        ours = normalised(_ours(path.read_bytes(), preprocessing)[np.newaxis], preprocessing)[0]
        off.append(np.abs((theirs - ours) * levels).mean())
    assert np.median(off) < 0.01  # grey levels
    assert max(off) < 10
