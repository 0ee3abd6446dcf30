"""Reads `inference.yml` of PaddleClas, and its older `inference_cls.yaml`."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from models.errors import PreprocessingError
from models.readers.labels import read_label_file
from models.readers.reading import Keys, Reading, is_side, named_by, read_text

# In the order in which Convoy applies the same steps.
_STEPS = ("DecodeImage", "ResizeImage", "CropImage", "NormalizeImage")

# PaddleClas's normalisation if its file does not set one.
_DEFAULTS: Keys = {
    "scale": 1 / 255,
    "mean": [0.485, 0.456, 0.406],
    "std": [0.229, 0.224, 0.225],
}

_OTHERWISE = (
    "; Convoy resizes, crops and normalises, in this order. Change the file, or choose a preset"
    " instead: --preset, or preset in model.toml"
)


def read_paddle(path: Path) -> Reading | None:
    """Read the image transforms and the labels. Return None if another program wrote the file."""
    import yaml  # type: ignore[import-untyped]  # noqa: PLC0415  few models need it

    try:
        config = yaml.safe_load(read_text(path))
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a long number
        raise PreprocessingError(f"{path} cannot be read: {error}") from error
    operations = _part(_part(config, "PreProcess"), "transform_ops")
    if not isinstance(operations, list):
        return None
    try:
        steps = [(str(name), _given(step)) for one in operations for name, step in one.items()]
    except (AttributeError, TypeError, ValueError) as error:
        raise PreprocessingError(
            f"{path}: transform_ops must be a list of transforms, each with its settings"
        ) from error
    ranking = _part(_part(config, "PostProcess"), "Topk")
    labels, file = _part(ranking, "label_list"), _part(ranking, "class_id_map_file")
    source = partial(_labels, path, labels) if isinstance(labels, list) else None
    if source is None and isinstance(file, str) and (path.parent / file).is_file():
        source = partial(_listed, path, file)
    own = all(str(step.get("backend")).lower() != "pil" for _, step in steps)
    return Reading(
        path,
        pixels=partial(_pixels, path, steps),
        labels=source,
        ignored=("OpenCV's resize, which is not antialiased",) if own else (),
    )


def _labels(path: Path, labels: Sequence[object]) -> tuple[str, ...]:
    if not all(isinstance(label, str | int | float) for label in labels):
        raise PreprocessingError(f"{path}: label_list must have only strings or numbers")
    return tuple(map(str, labels))


def _listed(path: Path, file: str) -> tuple[str, ...]:
    return read_label_file(named_by(path, file), str(path))


def _part(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, dict) else None


def _given(settings: Any) -> Mapping[str, object]:
    return {key: value for key, value in dict(settings or {}).items() if value is not None}


def _pixels(path: Path, steps: Sequence[tuple[str, Mapping[str, object]]]) -> Keys:
    names = [name for name, _ in steps if name != "ToCHWImage"]
    if others := [name for name in names if name not in _STEPS]:
        raise PreprocessingError(f"{path}: the transform {others[0]} is not supported{_OTHERWISE}")
    if names != [name for name in _STEPS if name in names]:
        shown = ", then ".join(names[: len(_STEPS) + 1])  # of so many steps, one is repeated
        raise PreprocessingError(f"{path}: the order {shown} is not supported{_OTHERWISE}")
    settings = dict(steps)
    keys = _geometry(path, settings.get("ResizeImage", {}), settings.get("CropImage"))
    keys |= {"longer_side": "nearest", "crop_offset": "down"}
    if "NormalizeImage" in settings:
        keys |= {key: settings["NormalizeImage"].get(key, _DEFAULTS[key]) for key in _DEFAULTS}
        keys["scale"] = _number(keys["scale"])
    else:
        keys |= {"scale": 1, "mean": [0, 0, 0], "std": [1, 1, 1]}
    to_rgb = settings.get("DecodeImage", {}).get("to_rgb", True)
    return keys | {"channels": "rgb" if to_rgb else "bgr"}


def _geometry(path: Path, resize: Mapping[str, object], crop: Mapping[str, object] | None) -> Keys:
    kind = resize.get("interpolation", "bilinear")
    keys: Keys = {"interpolation": kind.lower() if isinstance(kind, str) else kind}
    cut = None if crop is None else _sides(path, "CropImage", crop.get("size"))
    if shorter := resize.get("resize_short"):
        if not is_side(shorter):
            raise PreprocessingError(f"{path}: resize_short must be a whole number of pixels")
        if cut is None:
            raise PreprocessingError(
                f"{path}: the shorter side becomes {shorter} and nothing is cropped, so that images"
                f" differ in size. Crop the centre (CropImage: {{size: {shorter}}}), or resize both"
                f" sides (ResizeImage: {{size: {shorter}}}){_OTHERWISE}"
            )
        return keys | {"width": cut[0], "height": cut[1], "resize": shorter, "crop_mode": "crop"}
    whole = _sides(path, "ResizeImage", resize.get("size"))
    width, height = cut or whole
    if width * whole[1] != height * whole[0]:
        raise PreprocessingError(
            f"{path}: a crop of {width}×{height} from an image of {whole[0]}×{whole[1]} is not"
            f" supported; both must have the same aspect ratio{_OTHERWISE}"
        )
    return keys | {"width": width, "height": height, "resize": max(whole), "crop_mode": "squash"}


def _sides(path: Path, step: str, size: object) -> tuple[int, int]:
    """Return width and height from two numbers, or from one number for both."""
    pair = size if isinstance(size, list) else [size, size]
    width, height = pair if len(pair) == 2 else (None, None)
    if not is_side(width) or not is_side(height):
        also = "resize_short or " if step == "ResizeImage" else ""
        raise PreprocessingError(
            f"{path}: {step} needs {also}a size, as one number or as width and height{_OTHERWISE}"
        )
    return width, height


def _number(scale: object) -> object:
    """Return the value of a number or of a quotient such as 1.0/255.0. Other text stays
    unchanged."""
    if not isinstance(scale, str):
        return scale
    above, _, below = scale.partition("/")
    try:
        return float(above) / float(below or 1)
    except (ValueError, ZeroDivisionError):
        return scale
