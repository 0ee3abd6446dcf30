"""torchvision's weights by name: a table that is compared with torchvision if it is installed."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from kernels.problems.interpolation import Interpolation
from models.errors import PreprocessingError
from models.preprocessing import CropMode
from models.torchvision import TORCHVISION
from tests.support.models.description import load_preprocessing


def test_weights_are_a_preset(tmp_path: Path) -> None:
    p = load_preprocessing(
        tmp_path / "m.onnx", (3, None, None), {"preset": "efficientnet_v2_l.IMAGENET1K_V1"}
    )
    assert (p.height, p.resize, p.interpolation) == (480, 480, Interpolation.BICUBIC)
    assert (p.mean, p.std, p.scale) == ((0.5,) * 3, (0.5,) * 3, 1 / 255)
    (tmp_path / "m.toml").write_text('preset = "resnet50.IMAGENET1K_V2"')
    p = load_preprocessing(tmp_path / "m.onnx", (3, 224, 224))
    assert (p.height, p.resize, p.crop_mode, p.guess) == (224, 232, CropMode.CROP, "")


@pytest.mark.parametrize(
    ("name", "resize"),
    [
        ("quantized_resnet50.IMAGENET1K_FBGEMM_V1", 256),
        ("quantized_resnet50.IMAGENET1K_FBGEMM_V2", 232),
        ("quantized_mobilenet_v2.IMAGENET1K_QNNPACK_V1", 256),
    ],
)
def test_quantized_weights_are_a_preset(tmp_path: Path, name: str, resize: int) -> None:
    p = load_preprocessing(tmp_path / "m.onnx", (3, 224, 224), {"preset": name})
    assert (p.height, p.resize, p.crop_mode, p.guess) == (224, resize, CropMode.CROP, "")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("resnet50.IMAGNET1K_V2", r"resnet50\.IMAGENET1K_V2"),
        ("efficientnet_b7", r"efficientnet_b7\.IMAGENET1K_V1"),
    ],
)
def test_a_slip_in_a_name_gets_the_nearest(tmp_path: Path, name: str, meant: str) -> None:
    with pytest.raises(PreprocessingError, match=rf"Did you mean {meant}\?"):
        load_preprocessing(tmp_path / "m.onnx", (3, 8, 8), {"preset": name})


@pytest.mark.skipif(
    importlib.util.find_spec("torchvision") is None,
    reason="needs torchvision: pip install torchvision",
)
def test_the_table_is_torchvisions() -> None:
    from torchvision import models  # noqa: PLC0415

    theirs: dict[str, tuple[Any, ...]] = {}
    modules = models, models.quantization
    for name in (name for module in modules for name in models.list_models(module=module)):
        for weights in models.get_model_weights(name):
            if weights.meta["categories"] is None:  # not for classification
                continue
            t = weights.transforms()
            assert t.antialias
            (size,), (resize,) = t.crop_size, t.resize_size
            kind, mean, std = t.interpolation.value, tuple(t.mean), tuple(t.std)
            theirs[f"{name}.{weights.name}"] = size, resize, kind, mean, std
    ours = {
        name: (p.size, p.resize, p.interpolation.value, p.mean, p.std)
        for name, p in TORCHVISION.items()
    }
    assert ours == theirs
    assert {(p.crop_mode, p.scale) for p in TORCHVISION.values()} == {(CropMode.CROP, 1 / 255)}
