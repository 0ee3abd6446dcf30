"""Exports networks of transformers. Next to each model it writes the two configuration files that
`save_pretrained` writes."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import transformers
from networks import export
from recorded import asked, attempt, sigmoid, softmax

LABELS = {number: f"thing {number}" for number in range(8)}
SMALL = {"id2label": LABELS, "label2id": {label: number for number, label in LABELS.items()}}

# For each network: its class, the class and the arguments of its configuration, and the class of
# its image processor.
NETWORKS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "resnet": (
        "ResNetForImageClassification",
        "ResNetConfig",
        {"hidden_sizes": [32, 64, 96, 128], "depths": [1, 1, 1, 1], "layer_type": "basic"},
        "ConvNextImageProcessor",
    ),
    "mobilenet-v2": (
        "MobileNetV2ForImageClassification",
        "MobileNetV2Config",
        {"depth_multiplier": 0.5},
        "MobileNetV2ImageProcessor",
    ),
    "mobilenet-v1": (
        "MobileNetV1ForImageClassification",
        "MobileNetV1Config",
        {"depth_multiplier": 0.5},
        "MobileNetV1ImageProcessor",
    ),
    "efficientnet": (
        "EfficientNetForImageClassification",
        "EfficientNetConfig",
        {"width_coefficient": 0.5, "depth_coefficient": 0.5, "image_size": 224, "hidden_dim": 640},
        "EfficientNetImageProcessor",
    ),
    "convnext": (
        "ConvNextForImageClassification",
        "ConvNextConfig",
        {"hidden_sizes": [24, 48, 96, 192], "depths": [1, 1, 2, 1]},
        "ConvNextImageProcessor",
    ),
    "regnet": (
        "RegNetForImageClassification",
        "RegNetConfig",
        {"hidden_sizes": [24, 56, 152, 368], "depths": [1, 1, 2, 1], "groups_width": 8},
        "ConvNextImageProcessor",
    ),
    "poolformer": (
        "PoolFormerForImageClassification",
        "PoolFormerConfig",
        {"hidden_sizes": [24, 48, 96, 192], "depths": [1, 1, 1, 1]},
        "PoolFormerImageProcessor",
    ),
    "vit": (
        "ViTForImageClassification",
        "ViTConfig",
        {
            "hidden_size": 96,
            "num_hidden_layers": 3,
            "num_attention_heads": 3,
            "intermediate_size": 192,
        },
        "ViTImageProcessor",
    ),
    # This entry has an even index, because PyTorch's newer exporter fails on this network.
    "swin": (
        "SwinForImageClassification",
        "SwinConfig",
        {"embed_dim": 24, "depths": [1, 1, 2, 1], "num_heads": [1, 2, 4, 8]},
        "ViTImageProcessor",
    ),
    "deit": (
        "DeiTForImageClassification",
        "DeiTConfig",
        {
            "hidden_size": 96,
            "num_hidden_layers": 3,
            "num_attention_heads": 3,
            "intermediate_size": 192,
        },
        "DeiTImageProcessor",
    ),
    "mobilevit": (
        "MobileViTForImageClassification",
        "MobileViTConfig",
        {
            "hidden_sizes": [48, 64, 80],
            "neck_hidden_sizes": [16, 16, 24, 48, 64, 80, 320],
            "num_attention_heads": 4,
        },
        "MobileViTImageProcessor",
    ),
}


# By default MobileViT's crop is larger than the resized image. Models on hubs have this size.
PROCESSORS: dict[str, dict[str, Any]] = {"mobilevit": {"size": {"shortest_edge": 288}}}

VARIANTS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    *((name, "", {}) for name in NETWORKS),
    ("resnet", "-multi-label", {"problem_type": "multi_label_classification"}),
    ("mobilenet-v2", "-one-score", {"id2label": {0: "cat"}, "label2id": {"cat": 0}}),
)
"""Each network, a suffix for its name, and changes to its configuration. The scores of the last two
networks are not converted by softmax."""


def made(name: str, changes: dict[str, Any]) -> tuple[Any, Any]:
    """Return a network with random weights, and its image processor."""
    network_class, config_class, arguments, processor_class = NETWORKS[name]
    config = getattr(transformers, config_class)(**{**SMALL, **arguments, **changes})
    config.architectures = [network_class]
    network = getattr(transformers, network_class)(config)
    # Since transformers 5, the class without the suffix "Pil" resizes with torchvision if
    # torchvision is installed. Its bilinear pixels differ from Pillow's. Earlier releases use
    # Pillow.
    by_pillow = getattr(transformers, f"{processor_class}Pil", None)
    make = by_pillow or getattr(transformers, processor_class)
    return network, make(**PROCESSORS.get(name, {}))


def meaning_of(config: Any) -> Callable[[Any], Sequence[float]]:
    """Return the function with which transformers' pipeline converts logits to probabilities."""
    if config.num_labels == 1:
        return lambda logits: [1 - sigmoid(logits)[0], sigmoid(logits)[0]]
    return sigmoid if config.problem_type == "multi_label_classification" else softmax


def main() -> None:
    """Export each network, alternating between PyTorch's older and newer exporter."""
    folder, photographs = asked()
    for number, (name, variant, changes) in enumerate(VARIANTS):
        called = f"transformers-{name}{variant}"

        def work(
            number: int = number,
            name: str = name,
            changes: dict[str, Any] = changes,
            called: str = called,
        ) -> None:
            network, processor = made(name, changes)

            def beside(place: Path) -> None:
                network.config.save_pretrained(place)
                processor.save_pretrained(place)

            export(
                folder,
                photographs,
                called,
                network,
                lambda image: processor(image, return_tensors="pt")["pixel_values"][0],
                number=number,
                file="onnx/model.onnx",
                beside=beside,
                meaning=meaning_of(network.config),
            )

        attempt(called, work)


if __name__ == "__main__":
    main()
