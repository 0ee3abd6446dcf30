"""Reads timm's `config.json`."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from models.errors import PreprocessingError
from models.readers.labels import labels_by_number
from models.readers.reading import Keys, Reading, read_json

_CROP_MODES = {"center": "crop", "squash": "squash", "border": "pad"}
# timm's defaults for evaluation if its file does not set these keys.
_DEFAULTS: Keys = {
    "interpolation": "bicubic",
    "crop_pct": 0.875,
    "mean": [0.485, 0.456, 0.406],
    "std": [0.229, 0.224, 0.225],
}
# timm's keys for other evaluations, and texts that it shows beside labels.
_NOT_USED = ("test_input_size", "test_crop_pct", "label_descriptions")
_CHANNELS = {1: "grey", 3: "rgb"}


def read_timm(path: Path) -> Reading | None:
    """Read the preprocessing in `pretrained_cfg` and the labels in `label_names`.

    In older files, all keys are on one level. Return None if timm did not write the file.
    """
    config = read_json(path)
    older = "architecture" in config and "input_size" in config  # all keys on one level
    trained = config.get("pretrained_cfg", config if older else None)
    if not isinstance(trained, dict):
        return None
    names = (config.get("label_names"), trained.get("label_names"), trained.get("labels"))
    labels = next(filter(None, names), None)
    return Reading(
        path,
        pixels=partial(_pixels, path, trained),
        labels=partial(_labels, path, labels) if labels else None,
        ignored=tuple(key for key in _NOT_USED if config.get(key) or trained.get(key)),
    )


def _pixels(path: Path, trained: Mapping[str, object]) -> Keys:
    keys = {key: trained.get(key) or default for key, default in _DEFAULTS.items()}
    keys |= {"scale": 1 / 255, **_size(path, trained.get("input_size"))}
    if (mode := trained.get("crop_mode")) is not None:
        if not isinstance(mode, str) or mode not in _CROP_MODES:
            raise PreprocessingError(
                f"{path}: crop_mode = {mode!r} is not allowed; it must be one of "
                + ", ".join(f'"{name}"' for name in _CROP_MODES)
            )
        keys["crop_mode"] = _CROP_MODES[mode]
    return keys


def _size(path: Path, size: object) -> Keys:
    if size is None:
        return {}
    if not isinstance(size, list) or len(size) != 3 or size[0] not in (1, 3) or size[1] != size[2]:
        raise PreprocessingError(
            f"{path}: input_size = {size!r} is not allowed; it must have 1 or 3 channels, and equal"
            " height and width, such as [3, 224, 224]"
        )
    return {"channels": _CHANNELS[size[0]], "height": size[1], "width": size[2]}


def _labels(path: Path, labels: object) -> tuple[str, ...]:
    if isinstance(labels, dict):
        return labels_by_number(path, "label_names", labels)
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise PreprocessingError(f"{path}: label_names must be a list of strings")
    return tuple(labels)
