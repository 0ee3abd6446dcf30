"""Exports networks of transformers with optimum. optimum reads each network from a folder that
`save_pretrained` has written."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from networks import Then, lively, scores_of
from optimum.exporters.onnx import main_export
from PIL import Image
from recorded import asked, attempt, record
from transformers_models import VARIANTS, made, meaning_of


def main() -> None:
    """Export each network."""
    folder, photographs = asked()
    images = [Image.open(photograph).convert("RGB") for photograph in photographs]
    for name, variant, changes in VARIANTS:
        called = f"optimum-{name}{variant}"

        def work(name: str = name, changes: dict[str, Any] = changes, called: str = called) -> None:
            network, processor = made(name, changes)
            lively(network, processor(images, return_tensors="pt")["pixel_values"])
            logits = Then(network, scores_of).eval()
            meaning = meaning_of(network.config)

            def write(place: Path) -> None:
                with TemporaryDirectory() as source:
                    network.save_pretrained(source)
                    processor.save_pretrained(source)
                    main_export(source, place, task="image-classification", do_validation=False)

            def answer(image: Image.Image) -> Any:
                pixels = processor(image, return_tensors="pt")["pixel_values"]
                with torch.no_grad():
                    return meaning(logits(pixels).numpy()[0])

            record(folder, called, write, answer, photographs)

        attempt(called, work)


if __name__ == "__main__":
    main()
