"""Uses PyTorch's exporters to export small networks with attention from timm. The files are
committed in this folder.

    python -m tests.support.models.small_timm NAME ...    # exports again

The files come from timm 1.0.31 and torch 2.11 or, for mobilevit and the networks after it, torch
2.15.

Widths and depths are the smallest with which each network keeps its structure. Weights are random.
So are the statistics of normalisations, as if the networks were trained.
"""

import io
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

FOLDER = Path(__file__).parent / "small_timm"
CLASSES = 5


@dataclass(frozen=True)
class Small:
    """Describes how a network is exported: the function that creates it, the side of its images,
    the exporter, and whether the batch size is variable or 1."""

    make: Callable[[Any], Any]
    side: int
    dynamo: bool = False
    any_n: bool = True


def _vit(timm: Any) -> Any:
    # 18 channels in 3 heads: neither fills whole vectors. 5 tokens are not a multiple of any tile.
    return timm.models.VisionTransformer(
        img_size=16, patch_size=8, embed_dim=18, depth=2, num_heads=3, num_classes=CLASSES
    )


def _deit(timm: Any) -> Any:
    return timm.models.VisionTransformerDistilled(
        img_size=16, patch_size=8, embed_dim=16, depth=1, num_heads=2, num_classes=CLASSES
    )


def _swin(timm: Any) -> Any:
    # 8 × 8 tokens in windows of 4 × 4, moved by 2; then 4 × 4 tokens in one window.
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


def _mobile(timm: Any, attention: Any) -> Any:
    """Return a network with a block of attention over 8 × 8 pixels, in patches of 2 × 2."""
    made_of = {"bottle_in": True, "linear_out": True}
    ahead = timm.models.ByoBlockCfg("bottle", 1, 8, gs=1, br=2, block_kwargs=made_of)
    sizes = timm.models.ByoModelCfg(
        (ahead, attention),
        downsample="",
        stem_pool="",
        stem_chs=8,
        act_layer="silu",
        num_features=16,
    )
    return timm.models.ByobNet(sizes, num_classes=CLASSES)


def _mobilevit(timm: Any) -> Any:
    sizes = {"transformer_dim": 16, "transformer_depth": 1, "patch_size": 2}
    return _mobile(timm, timm.models.ByoBlockCfg("mobilevit", 1, 8, 1, block_kwargs=sizes))


def _mobilevitv2(timm: Any) -> Any:
    sizes = {"transformer_depth": 1, "patch_size": 2}
    block = timm.models.ByoBlockCfg("mobilevit2", 1, 8, 1, gs=1, br=0.5, block_kwargs=sizes)
    return _mobile(timm, block)


def _coatnet(timm: Any) -> Any:
    # A stage of convolutions, then a stage of 4 × 4 tokens with biases of relative positions.
    return timm.models.MaxxVit(
        timm.models.MaxxVitCfg(
            embed_dim=(8, 16),
            depths=(1, 2),
            block_type=("C", "T"),
            stem_width=(8, 8),
            conv_cfg=timm.models.MaxxVitConvCfg(
                expand_ratio=2, expand_output=False, stride_mode="pool", act_layer="silu"
            ),
            transformer_cfg=timm.models.MaxxVitTransformerCfg(
                dim_head=8, expand_ratio=2, expand_first=False
            ),
        ),
        img_size=32,
        num_classes=CLASSES,
    )


def _siglip(timm: Any) -> Any:
    # One learnt query gathers all tokens.
    return timm.models.VisionTransformer(
        img_size=16,
        patch_size=8,
        embed_dim=16,
        depth=1,
        num_heads=2,
        class_token=False,
        global_pool="map",
        num_classes=CLASSES,
    )


def _dinov2(timm: Any) -> Any:
    return timm.models.VisionTransformer(
        img_size=28,
        patch_size=14,
        embed_dim=16,
        depth=1,
        num_heads=2,
        init_values=1e-5,
        num_classes=CLASSES,
    )


SMALL: Mapping[str, Small] = {
    "vit": Small(_vit, 16),
    "deit_distilled": Small(_deit, 16, any_n=False),
    "swin": Small(_swin, 32, any_n=False),
    "edgenext": Small(_edgenext, 64),
    "efficientformer": Small(_efficientformer, 224, dynamo=True),
    "levit": Small(_levit, 64),
    "mobilevit": Small(_mobilevit, 32),
    "mobilevitv2": Small(_mobilevitv2, 32, dynamo=True),
    "coatnet": Small(_coatnet, 32, dynamo=True),
    "siglip": Small(_siglip, 16),
    "dinov2": Small(_dinov2, 28, dynamo=True),
}


def main(names: Iterable[str]) -> None:
    """Export the networks with these names."""
    import timm  # noqa: PLC0415  hundreds of megabytes, which only this needs
    import torch  # noqa: PLC0415

    FOLDER.mkdir(exist_ok=True)
    for name in names:
        small = SMALL[name]
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
        model = _without_traces(onnx.load_from_string(written.getvalue()))
        (FOLDER / f"{name}.onnx").write_bytes(model.SerializeToString())


def _without_traces(model: onnx.ModelProto) -> onnx.ModelProto:
    """Remove the source lines that the exporter adds to each node, because they differ between
    machines."""
    graph = model.graph
    values = (*graph.input, *graph.output, *graph.value_info, *graph.initializer)
    for each in (model, graph, *graph.node, *values):
        del each.metadata_props[:]
    return model


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
        elif parameter.ndim >= 2:  # timm draws these weights near 0
            parameter.data.normal_(0, parameter[0].numel() ** -0.5)
        elif "gamma" in key or key == "scale":
            parameter.data.uniform_(0.5, 1.5)


if __name__ == "__main__":
    main(sys.argv[1:])
