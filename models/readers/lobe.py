"""Reads `signature.json`, which Lobe's exports contain."""

from functools import partial
from pathlib import Path

from models.readers.labels import NotLabelsError, labels_in
from models.readers.reading import Keys, Reading, read_json


def read_lobe(path: Path) -> Reading | None:
    """Read the labels of a Lobe export, and add the preprocessing of Lobe's example code. Return
    None if another program wrote the file."""
    config = read_json(path)
    classes = config.get("classes")
    if "outputs" not in config or not isinstance(classes, dict):
        return None
    return Reading(path, pixels=_pixels, labels=partial(_labels, path, classes.get("Label")))


def _labels(path: Path, names: object) -> tuple[str, ...]:
    labels = labels_in(names)
    if not labels:
        raise NotLabelsError(f"{path}: classes must have a list of labels under the key Label")
    return labels


def _pixels() -> Keys:
    """Return the preprocessing of Lobe: the largest square in the centre, in RGB from 0 to 1."""
    return {
        "channels": "rgb",
        "scale": 1 / 255,
        "mean": [0, 0, 0],
        "std": [1, 1, 1],
        "crop_mode": "crop",
        "crop_pct": 1.0,
    }
