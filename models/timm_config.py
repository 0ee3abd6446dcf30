"""Reads timm's `config.json`, which lies beside a model of timm, into keys of `model.toml`."""

import json
from collections.abc import Mapping
from pathlib import Path

from models.errors import PreprocessingError

_CROP_MODES = {"center": "crop", "squash": "squash", "border": "pad"}
_COPIED = ("interpolation", "crop_pct", "mean", "std")
_CHANNELS = {1: "grey", 3: "rgb"}


def find_timm_config(model_path: Path) -> Path | None:
    """Return the `config.json` beside a model."""
    path = model_path.with_name("config.json")
    return path if path.is_file() else None


def read_timm_config(path: Path) -> tuple[dict[str, object], tuple[str, ...]]:
    """Return the keys of `model.toml` that timm's file sets, and its labels.

    Both are empty where the file is another program's: it has no `pretrained_cfg`.
    Raises PreprocessingError where the file cannot be read, or asks for what Convoy does not do.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # ValueError: not JSON, or not UTF-8
        raise PreprocessingError(f"{path} cannot be read: {error}") from error
    trained = config.get("pretrained_cfg") if isinstance(config, dict) else None
    if not isinstance(trained, dict):
        return {}, ()
    keys = {key: trained[key] for key in _COPIED if trained.get(key) is not None}
    keys |= {"scale": 1 / 255, "output": "logits"}
    keys |= _read_size(path, trained)
    if (mode := trained.get("crop_mode")) is not None:
        if not isinstance(mode, str) or mode not in _CROP_MODES:
            raise PreprocessingError(
                f"{path}: crop_mode = {mode!r} is not allowed; it must be one of "
                + ", ".join(f'"{name}"' for name in _CROP_MODES)
            )
        keys["crop_mode"] = _CROP_MODES[mode]
    return keys, _read_labels(path, config, trained)


def _read_size(path: Path, trained: Mapping[str, object]) -> dict[str, object]:
    size = trained.get("input_size")
    if size is None:
        return {}
    if not isinstance(size, list) or len(size) != 3 or size[0] not in (1, 3) or size[1] != size[2]:
        raise PreprocessingError(
            f"{path}: input_size = {size!r} is not allowed; it must be channels (1 or 3), height "
            "and the same width, such as [3, 224, 224]"
        )
    return {"channels": _CHANNELS[size[0]], "height": size[1], "width": size[2]}


def _read_labels(
    path: Path, config: Mapping[str, object], trained: Mapping[str, object]
) -> tuple[str, ...]:
    labels = config.get("label_names") or trained.get("label_names") or []
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise PreprocessingError(f"{path}: label_names must be a list of strings")
    return tuple(labels)
