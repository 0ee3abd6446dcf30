"""Exports networks of torchvision as torchvision's documentation recommends."""

from typing import Any

import torchvision.models as zoo
from networks import export
from recorded import asked, attempt

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
    """Return the preprocessing of the first pretrained weights that torchvision lists for the
    network."""
    weights = zoo.get_model_weights(name)
    return weights["IMAGENET1K_V1"].transforms()


def main() -> None:
    """Export each network, alternating between PyTorch's older and newer exporter."""
    folder, photographs = asked()
    for number, name in enumerate(NETWORKS):

        def work(number: int = number, name: str = name) -> None:
            extra = {"aux_logits": False} if name == "googlenet" else {}
            network = zoo.get_model(name, weights=None, num_classes=20, **extra)
            transforms = transforms_of(name)
            called = f"torchvision-{name}"
            export(folder, photographs, called, network, transforms, number=number)

        attempt(f"torchvision-{name}", work)


if __name__ == "__main__":
    main()
