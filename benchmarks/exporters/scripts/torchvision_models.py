"""Exports networks of torchvision as its documentation says."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision.models as zoo
from networks import lively
from PIL import Image
from pytorch_options import NEW, OLD
from recorded import asked, attempt, record, softmax

NETWORKS = (
    "squeezenet1_1",
    "shufflenet_v2_x0_5",
    "mobilenet_v2",
    "mobilenet_v3_small",
    "mnasnet0_5",
    "resnet18",
    "regnet_y_400mf",
    "densenet121",
    "googlenet",
    "efficientnet_b0",
    "convnext_tiny",
    "vgg11_bn",
)


def transforms_of(name: str) -> Any:
    """Return the preprocessing that torchvision states for the network's first weights."""
    weights = zoo.get_model_weights(name)
    return weights["IMAGENET1K_V1"].transforms()


def main() -> None:
    """Export each network, alternating between PyTorch's exporters."""
    folder, photographs = asked()
    images = [Image.open(photograph).convert("RGB") for photograph in photographs]
    for number, name in enumerate(NETWORKS):
        options = (OLD, NEW)[number % 2]

        def work(name: str = name, options: dict[str, Any] = options) -> None:
            transforms = transforms_of(name)
            pixels = torch.stack([transforms(image) for image in images])
            extra = {"aux_logits": False} if name == "googlenet" else {}
            network = lively(zoo.get_model(name, weights=None, num_classes=20, **extra), pixels)

            def write(place: Path) -> None:
                file = str(place / "model.onnx")
                torch.onnx.export(network, (pixels[:2],), file, input_names=["pixels"], **options)

            def answer(image: Image.Image) -> Any:
                with torch.no_grad():
                    return softmax(np.asarray(network(transforms(image)[None]))[0])

            record(folder, f"torchvision-{name}", write, answer, photographs)

        attempt(f"torchvision-{name}", work)


if __name__ == "__main__":
    main()
