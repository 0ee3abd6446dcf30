"""Reads timm's `config.json`."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from models.errors import PreprocessingError
from models.readers.reading import Keys, Reading, read_json

_CROP_MODES = {"center": "crop", "squash": "squash", "border": "pad"}
_COPIED = ("interpolation", "crop_pct", "mean", "std")
_CHANNELS = {1: "grey", 3: "rgb"}


def read_timm(path: Path) -> Reading | None:
    """Read `pretrained_cfg` and `label_names`; None of a file without the first."""
    config = read_json(path)
    trained = config.get("pretrained_cfg")
    if not isinstance(trained, dict):
        return None
    labels = config.get("label_names") or trained.get("label_names")
    return Reading(
        path,
        pixels=partial(_pixels, path, trained),
        labels=partial(_labels, path, labels) if labels else None,
    )


def _pixels(path: Path, trained: Mapping[str, object]) -> Keys:
    keys = {key: trained[key] for key in _COPIED if trained.get(key) is not None}
    keys |= {"scale": 1 / 255, "output": "logits"}
    keys |= _size(path, trained.get("input_size"))
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
            f"{path}: input_size = {size!r} is not allowed; it must be channels (1 or 3), height "
            "and the same width, such as [3, 224, 224]"
        )
    return {"channels": _CHANNELS[size[0]], "height": size[1], "width": size[2]}


def _labels(path: Path, labels: object) -> tuple[str, ...]:
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise PreprocessingError(f"{path}: label_names must be a list of strings")
    return tuple(labels)
