"""Exports networks of timm with the config.json that timm writes beside weights for a hub."""

from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from networks import lively
from PIL import Image
from pytorch_options import NEW, OLD
from recorded import asked, attempt, record, softmax
from timm.models import _hub

NETWORKS = (
    "mobilenetv3_small_050",
    "mobilenetv4_conv_small_035",
    "efficientnet_b0",
    "tf_efficientnet_lite0",
    "resnet18",
    "resnetv2_50d_gn",
    "regnety_002",
    "ghostnetv2_100",
    "inception_v3",
    "convnextv2_atto",
    "repvit_m0_9",
    "edgenext_xx_small",
    "mobilevit_xxs",
    "vit_tiny_patch16_224",
)


def main() -> None:
    """Export each network, alternating between PyTorch's exporters."""
    folder, photographs = asked()
    images = [Image.open(photograph).convert("RGB") for photograph in photographs]
    for number, name in enumerate(NETWORKS):
        options = (OLD, NEW)[number % 2]

        def work(name: str = name, options: dict[str, Any] = options) -> None:
            network = timm.create_model(name, pretrained=False, num_classes=20)
            network.pretrained_cfg["label_names"] = [f"thing {i}" for i in range(20)]
            transforms = timm.data.create_transform(
                **timm.data.resolve_data_config(network.pretrained_cfg, model=network)
            )
            pixels = torch.stack([transforms(image) for image in images])
            network = lively(network, pixels)

            def write(place: Path) -> None:
                file = str(place / "model.onnx")
                torch.onnx.export(network, (pixels[:2],), file, input_names=["pixels"], **options)
                _hub.save_config_for_hf(network, str(place / "config.json"))

            def answer(image: Image.Image) -> Any:
                with torch.no_grad():
                    return softmax(np.asarray(network(transforms(image)[None]))[0])

            record(folder, f"timm-{name}", write, answer, photographs)

        attempt(f"timm-{name}", work)


if __name__ == "__main__":
    main()
