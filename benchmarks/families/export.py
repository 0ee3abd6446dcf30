"""Exports one small member of each family of timm and Ultralytics from PyTorch: first convolutional
networks, then networks with attention.

Weights are random. The scales, shifts and statistics of normalisations are random too, because
their initial values of 1 and 0 would hide mistakes. If a network's scores hardly depend on the
image, as after ConvMixer's 64 layers, its filters are scaled up. In this package, only this module
imports PyTorch, timm and Ultralytics. It imports them when it needs them.
"""

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.engines.tolerance import relative_error

FAMILIES = (
    "resnetblur18",
    "ecaresnet26t",
    "resnetv2_50d_gn",
    "legacy_seresnet18",
    "skresnet18",
    "resnest14d",
    "res2net50_14w_8s",
    "densenet121",
    "dla46_c",
    "dpn48b",
    "efficientnet_b0",
    "mixnet_s",
    "mobilenetv2_050",
    "mobilenetv3_small_050",
    "mobilenetv4_conv_small_035",
    "ghostnetv2_100",
    "hrnet_w18_small",
    "inception_v3",
    "inception_resnet_v2",
    "inception_next_atto",
    "legacy_xception",
    "regnety_002",
    "repvgg_a0",
    "mobileone_s0",
    "repvit_m0_9",
    "rexnet_100",
    "selecsls42b",
    "tresnet_m",
    "ese_vovnet19b_slim_dw",
    "cs3darknet_focus_s",
    "eca_nfnet_l0",
    "hgnetv2_b0",
    "convnext_atto",
    "convnextv2_atto",
    "convmixer_768_32",
    "fasternet_t0",
    "starnet_s050",
    "focalnet_tiny_srf",
    "poolformer_s12",
    "mambaout_femto",
    "vit_tiny_patch16_224",
    "deit_tiny_distilled_patch16_224",
    "swin_tiny_patch4_window7_224",
    "mobilevit_xxs",
    "mobilevitv2_050",
    "edgenext_xx_small",
    "levit_128s",
    "coatnet_nano_rw_224",
    "efficientformer_l1",
    "vit_small_patch14_dinov2",
    "vit_base_patch16_siglip_224",
    "vit_small_patch16_224",
    "swinv2_tiny_window8_256",
    "efficientformerv2_s0",
    "efficientvit_b0",
    "efficientvit_m0",
    "fastvit_t8",
    "pvt_v2_b0",
    "twins_svt_small",
    "xcit_nano_12_p16_224",
    "mixer_s16_224",
    "visformer_tiny",
    "yolo11n-cls",
    "yolo12n-cls",
    "yolo26n-cls",
)
"""The smallest model of each family, and a second model of some families with attention. The last
three are Ultralytics' models; all others are timm's."""

SIZE = 128
"""The side of images for families that take any size. Small images are checked sooner."""

MADE_FOR = {
    "vit_tiny_patch16_224": SIZE,
    "deit_tiny_distilled_patch16_224": SIZE,
    "swin_tiny_patch4_window7_224": SIZE,
    "levit_128s": SIZE,
    "coatnet_nano_rw_224": SIZE,
    "efficientformer_l1": 224,  # timm creates it for no other size
    "vit_small_patch14_dinov2": 112,  # 8 × 8 patches of 14×14 pixels
    "vit_base_patch16_siglip_224": SIZE,
    "vit_small_patch16_224": SIZE,
    "swinv2_tiny_window8_256": SIZE,
    "efficientformerv2_s0": 224,
    "efficientvit_m0": 224,
    "mixer_s16_224": SIZE,
    "visformer_tiny": SIZE,
}
"""The side of images for networks that take only one size."""

CLASSES = 100

EXPORTERS = {
    "torchscript": {"dynamo": False, "opset_version": 17},
    "dynamo": {"dynamo": True, "opset_version": 20, "external_data": False},
}

N = 2
"""The number of images for which there are PyTorch's scores."""

_ALIKE = 1e-3
"""Scores of different images must differ by at least this much, relative to the largest score.
Otherwise they prove nothing."""


def side_of(family: str) -> int:
    """Return the side of a family's images, in pixels."""
    return MADE_FOR.get(family, SIZE)


def export(
    folder: Path,
    families: Sequence[str] = FAMILIES,
    exporters: Sequence[str] = tuple(EXPORTERS),
) -> Iterator[str]:
    """Export each network, write its images and PyTorch's scores, and yield a line of text about
    each export. Networks that an earlier run exported or failed to export are skipped. Raises
    ImportError if torch, timm or ultralytics is needed but not installed."""
    import torch  # noqa: PLC0415  hundreds of megabytes, which only this needs

    folder.mkdir(parents=True, exist_ok=True)
    for name in families:
        files = {
            (exporter, batch): folder / f"{name}.{exporter}.{batch}.onnx"
            for exporter in exporters
            for batch in ("1", "dynamic")
        }
        missing = {
            at: file
            for at, file in files.items()
            if not file.exists() and not file.with_suffix(".error").exists()
        }
        if not missing:
            continue
        network = _seeded(torch, name)
        side = side_of(name)
        images = torch.randn(N, 3, side, side) * 0.5 + torch.randn(N, 3, 1, 1)
        scores = _scores(torch, network, images)
        if _alike(scores):
            _strengthen(torch, network)
            scores = _scores(torch, network, images)
        for (exporter, batch), file in missing.items():
            yield f"{name}, {exporter}, batch {batch}"
            try:
                file.write_bytes(_exported(torch, network, images[:1], exporter, batch))
            except Exception as error:  # noqa: BLE001  PyTorch's exporters raise anything
                file.with_suffix(".error").write_text(f"{type(error).__name__}: {error}"[:2000])
        np.savez(folder / f"{name}.npz", images=images.numpy(), scores=scores)


def _exported(torch: Any, network: Any, image: Any, exporter: str, batch: str) -> bytes:
    open_batch: dict[str, Any] = {}
    if batch == "dynamic":
        if exporter == "dynamo":
            open_batch = {"dynamic_shapes": ({0: torch.export.Dim("batch", min=1, max=64)},)}
            image = image.repeat(2, 1, 1, 1)  # a size of 1 would be taken as fixed
        else:
            open_batch = {"dynamic_axes": {"image": {0: "batch"}, "scores": {0: "batch"}}}
    names = {"input_names": ["image"], "output_names": ["scores"]}
    buffer = io.BytesIO()
    torch.onnx.export(network, (image,), buffer, **names, **open_batch, **EXPORTERS[exporter])
    return buffer.getvalue()


def _scores(torch: Any, network: Any, images: Any) -> NDArray[np.float32]:
    with torch.no_grad():
        scores: NDArray[np.float32] = network(images).numpy()
    return scores


def _alike(scores: NDArray[np.float32]) -> bool:
    """Return whether the network gives nearly the same scores to all images."""
    return relative_error(scores[1:], scores[:-1]) < _ALIKE


def _strengthen(torch: Any, network: Any) -> None:
    """Draw new filters so that each convolution's output varies as much as its input (He et al.
    2015).

    With PyTorch's default filters, the output varies at most a third as much as the input.
    """
    for module in network.modules():
        if isinstance(module, torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(module.weight, nonlinearity="relu")


def _of_timm(name: str) -> Any:
    import timm  # noqa: PLC0415

    size = {"img_size": MADE_FOR[name]} if name in MADE_FOR else {}
    return timm.create_model(name, pretrained=False, num_classes=CLASSES, **size)


def _of_ultralytics(name: str) -> Any:
    from ultralytics.nn.tasks import ClassificationModel  # noqa: PLC0415

    network = ClassificationModel(f"{name}.yaml", nc=CLASSES, verbose=False)
    network.model[-1].export = True  # without it, logits are returned too
    return network


def _seeded(torch: Any, name: str) -> Any:
    """Return the network in inference mode with weights drawn from a fixed seed."""
    torch.manual_seed(0)
    network = (_of_ultralytics if name.startswith("yolo") else _of_timm)(name).eval()
    for module in network.modules():
        if getattr(module, "running_var", None) is not None:
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
        is_norm = "norm" in type(module).__name__.lower()
        for key, parameter in module.named_parameters(recurse=False):
            if is_norm and key == "weight":
                parameter.data.uniform_(0.5, 1.5)
            elif is_norm and key == "bias":
                parameter.data.normal_(0, 0.1)
            elif "gamma" in key or "gain" in key or key == "scale":  # layer scale starts near 0
                parameter.data.uniform_(0.5, 1.5)
    return network
