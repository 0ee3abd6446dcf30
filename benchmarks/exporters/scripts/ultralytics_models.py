"""Exports Ultralytics' classifiers with Ultralytics' own command, and runs them with Ultralytics'
own pipeline."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from networks import lively
from PIL import Image
from recorded import asked, attempt, record, resized
from ultralytics import YOLO

NAMES = {0: "daisy", 1: "rose", 2: "tulip", 3: "sun, flower", 4: "it's a lily"}


def pixels(photographs: Sequence[Path]) -> torch.Tensor:
    """Return the photographs' pixels in [0, 1], N×3×224×224."""
    images = [resized(Image.open(each).convert("RGB"), 224, 224) for each in photographs]
    return torch.from_numpy(np.stack(images).transpose(0, 3, 1, 2) / 255).float()


def main() -> None:
    """Build networks with five classes, set the statistics of their normalisations, and export
    them."""
    folder, photographs = asked()
    for name, options in (
        ("yolov8n-cls", {}),
        ("yolov8n-cls", {"imgsz": 96}),
        ("yolov8n-cls", {"dynamic": True}),
        ("yolo11n-cls", {}),
        ("yolo26n-cls", {"half": False}),
    ):
        called = "-".join([name, *(f"{key}-{value}" for key, value in options.items())])

        def work(name: str = name, options: dict[str, Any] = options, called: str = called) -> None:
            torch.manual_seed(0)
            made = YOLO(f"{name}.yaml")
            made.model.model[-1].linear = torch.nn.Linear(
                made.model.model[-1].linear.in_features, len(NAMES)
            )
            made.model.names = NAMES
            made.model.yaml["nc"] = len(NAMES)
            lively(made.model, pixels(photographs))
            exported = Path(made.export(format="onnx", **{"imgsz": 224, **options}))
            pipeline = YOLO(exported, task="classify")

            def write(place: Path) -> None:
                shutil.copy(exported, place / "model.onnx")

            def answer(image: Image.Image) -> Any:
                size = options.get("imgsz", 224)
                (found,) = pipeline.predict(image, imgsz=size, verbose=False)
                return found.probs.data.tolist()

            record(folder, f"ultralytics-{called}", write, answer, photographs)

        attempt(f"ultralytics-{called}", work)


if __name__ == "__main__":
    main()
