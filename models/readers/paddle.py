"""Reads PaddleClas' `inference.yml`, and the `inference_cls.yaml` that was used before it."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from models.errors import PreprocessingError
from models.readers.reading import Keys, Reading, named_by, read_label_file, read_text


def read_paddle(path: Path) -> Reading | None:
    """Read the transforms before the network and its labels; None of another program's file."""
    try:
        config = yaml.safe_load(read_text(path))
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a long number
        raise PreprocessingError(f"{path} cannot be read: {error}") from error
    operations = _part(_part(config, "PreProcess"), "transform_ops")
    if not isinstance(operations, list):
        return None
    try:
        steps = {
            str(name): dict(step or {}) for one in operations for name, step in dict(one).items()
        }
    except (TypeError, ValueError) as error:
        raise PreprocessingError(
            f"{path}: transform_ops must be a list of transforms, each with its settings"
        ) from error
    ranking = _part(_part(config, "PostProcess"), "Topk")
    labels, file = _part(ranking, "label_list"), _part(ranking, "class_id_map_file")
    source = partial(_labels, path, labels) if isinstance(labels, list) else None
    if source is None and isinstance(file, str) and (path.parent / file).is_file():
        source = partial(_listed, path, file)
    own = _part(steps.get("ResizeImage"), "backend") != "pil"
    return Reading(
        path,
        pixels=partial(_pixels, path, steps),
        labels=source,
        ignored=("OpenCV's resize, which is not antialiased",) if own else (),
    )


def _labels(path: Path, labels: Sequence[object]) -> tuple[str, ...]:
    if not all(isinstance(label, str | int | float) for label in labels):
        raise PreprocessingError(f"{path}: label_list must be a list of labels")
    return tuple(map(str, labels))


def _listed(path: Path, file: str) -> tuple[str, ...]:
    return read_label_file(named_by(path, file), str(path))


def _part(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, dict) else None


def _pixels(path: Path, steps: Mapping[str, Mapping[str, object]]) -> Keys:
    known = {"DecodeImage", "ResizeImage", "CropImage", "NormalizeImage", "ToCHWImage"}
    if others := sorted(steps.keys() - known):
        raise PreprocessingError(
            f"{path}: {others[0]} is not supported; Convoy resizes, crops and normalises; or"
            " replace what the file says by a preset: --preset, or in model.toml"
        )
    keys: Keys = {}
    resize, crop = (steps.get(name, {}) for name in ("ResizeImage", "CropImage"))
    if (size := _sides(crop.get("size", resize.get("size")))) is not None:
        keys |= {"width": size[0], "height": size[1]}
    if (shorter := resize.get("resize_short")) is not None:
        keys |= {"resize": shorter, "crop_mode": "crop"}
    elif (whole := _sides(resize.get("size"))) is not None:
        keys |= {"resize": max(whole), "crop_mode": "squash"}
    if (kind := resize.get("interpolation")) is not None:
        keys["interpolation"] = kind
    normalise = steps.get("NormalizeImage", {})
    keys |= {key: normalise[key] for key in ("mean", "std") if key in normalise}
    if (scale := normalise.get("scale")) is not None:
        keys["scale"] = _number(scale)
    to_rgb = steps.get("DecodeImage", {}).get("to_rgb", True)
    return keys | {"channels": "rgb" if to_rgb else "bgr"}


def _sides(size: object) -> tuple[int, int] | None:
    """Return width and height of one number or of two."""
    pair = size if isinstance(size, list) else [size, size]
    width, height = pair if len(pair) == 2 else (None, None)
    return (width, height) if isinstance(width, int) and isinstance(height, int) else None


def _number(scale: object) -> object:
    """Return a number, written as one or as a quotient, such as 1.0/255.0; else the text."""
    if not isinstance(scale, str):
        return scale
    above, _, below = scale.partition("/")
    try:
        return float(above) / float(below or 1)
    except (ValueError, ZeroDivisionError):
        return scale
