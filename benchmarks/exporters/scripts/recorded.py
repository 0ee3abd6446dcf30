"""Writes a model's files with its exporter, and the answers of the exporter's own pipeline.

Runs in the exporter's environment, without the project, so only Pillow and NumPy are imported here.

    FOLDER/MODEL/*                the files as the exporter writes them
    FOLDER/MODEL/expected.json    {"photograph": [score per class]}, the pipeline's answers
    FOLDER/MODEL/otherwise.json   a quantized model's answers when the runtime runs it another way
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

EXPECTED, OTHERWISE = "expected.json", "otherwise.json"

# The colours between which the small networks distinguish, as 8-bit RGB.
COLOURS = {
    "black": (0, 0, 0),
    "white": (255, 255, 255),
    "grey": (128, 128, 128),
    "red": (220, 30, 30),
    "green": (40, 170, 60),
    "blue": (40, 70, 200),
    "yellow": (230, 210, 50),
}


def asked() -> tuple[Path, list[Path]]:
    """Read the command line. Return the folder to write to, and the paths of the photographs."""
    folder, photographs = map(Path, sys.argv[1:3])
    return folder, sorted(photographs.glob("*.jpg"))


def record(
    folder: Path,
    name: str,
    write: Callable[[Path], object],
    answer: Callable[[Image.Image], Sequence[float]],
    photographs: Sequence[Path],
    otherwise: Callable[[Image.Image], Sequence[float]] | None = None,
) -> None:
    """Write one model with `write(folder)`. Then call `answer` for each photograph, and write the
    scores to EXPECTED. If `otherwise` is given, also write the scores that it returns to
    OTHERWISE."""
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    write(place)
    for file, scores_of in ((EXPECTED, answer), (OTHERWISE, otherwise)):
        if scores_of is None:
            continue
        scores = {}
        for photograph in photographs:
            with Image.open(photograph) as image:
                scores[photograph.name] = [float(each) for each in scores_of(image.convert("RGB"))]
        (place / file).write_text(json.dumps(scores))
    print(f"{name}: written", flush=True)


def attempt(name: str, work: Callable[[], None]) -> None:
    """Export one model. If the exporter fails, print its error and continue."""
    try:
        work()
    except Exception as error:
        print(f"{name}: not exported: {type(error).__name__}: {error}"[:500], flush=True)


def resized(image: Image.Image, size: int, shorter: int, resample: Any = Image.BILINEAR) -> Any:
    """Resize an image so that its shorter side has `shorter` pixels. Return the centre of the
    resized image, size×size×3 in uint8."""
    width, height = image.size
    if width <= height:
        small = image.resize((shorter, int(shorter * height / width)), resample)
    else:
        small = image.resize((int(shorter * width / height), shorter), resample)
    left, top = round((small.width - size) / 2), round((small.height - size) / 2)
    return np.asarray(small.crop((left, top, left + size, top + size)))


def softmax(scores: Any) -> Any:
    """Convert logits to probabilities by softmax, in float64."""
    powers = np.exp(np.asarray(scores, np.float64) - np.max(scores))
    return powers / powers.sum()


def sigmoid(scores: Any) -> Any:
    """Convert each logit to a probability by the sigmoid function, in float64."""
    return 1 / (1 + np.exp(-np.asarray(scores, np.float64)))


def colours() -> Iterator[tuple[str, Any]]:
    """Yield the names of the colours and their RGB values in [0, 1]."""
    for name, colour in COLOURS.items():
        yield name, np.array(colour, np.float32) / 255
