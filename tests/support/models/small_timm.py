"""Small networks with attention as PyTorch's exporters write those of timm, committed beside this.

    python -m tests.support.models.small_timm    # anew, with torch 2.11 and timm 1.0.31

Widths and depths are the least that show each network's form; weights are random, and so are the
normalisations, as if they had seen data.
"""

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "small_timm"
CLASSES = 5


@dataclass(frozen=True)
class Small:
    """Says how one is made: by timm, for images of a side; by which exporter, for any N or 1."""

    make: Callable[[Any], Any]
    side: int
    dynamo: bool = False
    any_n: bool = True


def _vit(timm: Any) -> Any:
    # Of 18 channels in 3 heads: neither is whole vectors, and 5 tokens are no multiple of any.
    return timm.models.VisionTransformer(
        img_size=16, patch_size=8, embed_dim=18, depth=2, num_heads=3, num_classes=CLASSES
    )


def _deit(timm: Any) -> Any:
    return timm.models.VisionTransformerDistilled(
        img_size=16, patch_size=8, embed_dim=16, depth=1, num_heads=2, num_classes=CLASSES
    )


def _swin(timm: Any) -> Any:
    # 8 × 8 tokens in windows of 4 × 4, moved by 2; then 4 × 4 in one.
    return timm.models.SwinTransformer(
        img_size=32,
        embed_dim=8,
        depths=(2, 1),
        num_heads=(1, 2),
        window_size=4,
        mlp_ratio=2,
        num_classes=CLASSES,
    )


def _edgenext(timm: Any) -> Any:
    return timm.models.EdgeNeXt(
        dims=(8, 8, 16, 16),
        depths=(1, 2, 1, 1),
        heads=(2, 2, 2, 2),
        expand_ratio=2,
        num_classes=CLASSES,
    )


def _efficientformer(timm: Any) -> Any:
    return timm.models.EfficientFormer(
        depths=(1, 1, 1, 2), embed_dims=(8, 8, 8, 16), num_vit=1, num_classes=CLASSES
    )


def _levit(timm: Any) -> Any:
    return timm.models.Levit(
        img_size=64,
        embed_dim=(16, 24),
        key_dim=8,
        depth=(1, 1),
        num_heads=(2, 2),
        num_classes=CLASSES,
    )


SMALL: Mapping[str, Small] = {
    "vit": Small(_vit, 16),
    "deit_distilled": Small(_deit, 16, any_n=False),
    "swin": Small(_swin, 32, any_n=False),
    "edgenext": Small(_edgenext, 64),
    "efficientformer": Small(_efficientformer, 224, dynamo=True),
    "levit": Small(_levit, 64),
}


def main() -> None:
    """Export each network."""
    import timm  # noqa: PLC0415  hundreds of megabytes, which only this needs
    import torch  # noqa: PLC0415

    FOLDER.mkdir(exist_ok=True)
    for name, small in SMALL.items():
        torch.manual_seed(0)
        network = small.make(timm).eval()
        for module in network.modules():
            _as_if_trained(module)
        image = torch.randn(2 if small.dynamo else 1, 3, small.side, small.side)
        options: dict[str, Any] = {"dynamo": small.dynamo, "opset_version": 18}
        if small.any_n and small.dynamo:
            options["dynamic_shapes"] = ({0: torch.export.Dim("N", min=1, max=64)},)
        elif small.any_n:
            options["dynamic_axes"] = {"x": {0: "N"}, "y": {0: "N"}}
        written = io.BytesIO()
        names = {"input_names": ["x"], "output_names": ["y"]}
        torch.onnx.export(network, (image,), written, **names, **options)
        (FOLDER / f"{name}.onnx").write_bytes(written.getvalue())


def _as_if_trained(module: Any) -> None:
    if getattr(module, "running_var", None) is not None:
        module.running_mean.normal_(0, 0.1)
        module.running_var.uniform_(0.5, 1.5)
    for key, parameter in module.named_parameters(recurse=False):
        is_norm = "norm" in type(module).__name__.lower() or "bn" in type(module).__name__.lower()
        if is_norm and key == "weight":
            parameter.data.uniform_(0.5, 1.5)
        elif is_norm and key == "bias":
            parameter.data.normal_(0, 0.1)
        elif parameter.ndim >= 2:  # timm draws them near 0
            parameter.data.normal_(0, parameter[0].numel() ** -0.5)
        elif "gamma" in key or key == "scale":
            parameter.data.uniform_(0.5, 1.5)


if __name__ == "__main__":
    main()
