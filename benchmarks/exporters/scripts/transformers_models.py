"""Exports networks of transformers beside the two files that save_pretrained writes."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from networks import Then, lively
from PIL import Image
from pytorch_options import NEW, OLD
from recorded import asked, attempt, record, sigmoid, softmax

LABELS = {number: f"thing {number}" for number in range(8)}
SMALL = {"id2label": LABELS, "label2id": {label: number for number, label in LABELS.items()}}

# The class of the network, of its configuration with its arguments, and of its image processor.
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
        {"width_coefficient": 0.5, "depth_coefficient": 0.5, "image_size": 224},
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
}


def main() -> None:
    """Export each network with softmax's labels, and two with other meanings."""
    folder, photographs = asked()
    images = [Image.open(photograph).convert("RGB") for photograph in photographs]
    variants = [(name, "", {}) for name in NETWORKS]
    variants += [
        ("resnet", "-multi-label", {"problem_type": "multi_label_classification"}),
        ("mobilenet-v2", "-one-score", {"id2label": {0: "cat"}, "label2id": {"cat": 0}}),
    ]
    for number, (name, variant, changes) in enumerate(variants):
        options = (OLD, NEW)[number % 2]

        def work(
            name: str = name,
            variant: str = variant,
            changes: dict[str, Any] = changes,
            options: dict[str, Any] = options,
        ) -> None:
            network_class, config_class, arguments, processor_class = NETWORKS[name]
            config = getattr(transformers, config_class)(**{**SMALL, **arguments, **changes})
            network = getattr(transformers, network_class)(config)
            processor = getattr(transformers, processor_class)()
            pixels = processor(images, return_tensors="pt")["pixel_values"]
            network = lively(network, pixels)
            scores = Then(network, lambda output: output.logits)

            def write(place: Path) -> None:
                config.architectures = [network_class]
                config.save_pretrained(place)
                processor.save_pretrained(place)
                (place / "onnx").mkdir(exist_ok=True)
                file = str(place / "onnx" / "model.onnx")
                torch.onnx.export(scores, (pixels[:2],), file, input_names=["pixels"], **options)

            def answer(image: Image.Image) -> Any:
                with torch.no_grad():
                    found = np.asarray(
                        scores(processor(image, return_tensors="pt")["pixel_values"])
                    )[0]
                if config.num_labels == 1:
                    (yes,) = sigmoid(found)
                    return [1 - yes, yes]
                many = config.problem_type == "multi_label_classification"
                return sigmoid(found) if many else softmax(found)

            record(folder, f"transformers-{name}{variant}", write, answer, photographs)

        attempt(f"transformers-{name}{variant}", work)


if __name__ == "__main__":
    main()
