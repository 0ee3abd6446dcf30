"""Derives the normalisation of pixels from metadata keys such as `mean` and `std`.

The numbers themselves show to which range of pixels they apply:

    mean and std                              pixels
    0.485 and 0.229: nothing above 1          0 to 1
    123.675 and 58.395, 0 and 255             0 to 255
    0 and 1                                   0 to 1; from OpenVINO's keys, 0 to 255
    123.675 and 0.229                         not known, and not used

A factor, such as `rescale_factor`, takes precedence over this table. The largest pixel is then 255
times the factor. If the mean is below 2% of the largest pixel, it contradicts the factor, and no
key is used. If the mean is above the largest pixel, it applies to pixels from 0 to 255, before the
scaling. A std then contradicts the factor, and no key is used.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from models.readers.labels import parse_value
from models.readers.reading import Keys

_ROLES: Mapping[str, Sequence[str]] = {
    "mean": (
        *("mean", "means", "image_mean", "img_mean", "pixel_mean", "input_mean", "rgb_mean"),
        *("norm_mean", "normalize_mean", "normalization_mean", "mean_value", "mean_values"),
    ),
    "std": (
        *("std", "stds", "stddev", "image_std", "img_std", "pixel_std", "input_std", "rgb_std"),
        *("norm_std", "normalize_std", "normalization_std", "std_values", "scale_values"),
    ),
    "scale": ("rescale_factor", "rescale", "scale", "input_scale", "pixel_scale", "scale_factor"),
    "channels": (
        *("channel_order", "channels_order", "color_order", "color_format", "color_space"),
        *("color_mode", "pixel_format", "reverse_input_channels"),
    ),
    "crop_mode": ("resize_type",),
    "crop_pct": ("crop_pct",),
    "interpolation": ("interpolation",),
}
_ROLE_OF = {name: role for role, names in _ROLES.items() for name in names}

# OpenVINO's keys, whose numbers always apply to pixels from 0 to 255.
_OF_BYTES = {"mean_values", "scale_values"}

# Keys of objects that may contain these keys.
_OBJECTS = {
    *("preprocess", "preprocessing", "preprocessor", "preprocessor_config", "pretrained_cfg"),
    *("transform", "transforms", "normalize", "normalization", "config", "metadata"),
    *("model_config", "image_processor", "input"),
}

_ORDERS = {
    "rgb": "rgb",
    "bgr": "bgr",
    "grey": "grey",
    "gray": "grey",
    "grayscale": "grey",
    "l": "grey",
    # Values that tell whether the channels of OpenCV's images, which are BGR, are reversed.
    "true": "rgb",
    "yes": "rgb",
    "false": "bgr",
    "no": "bgr",
}
_SAID_BY_A_TRUTH = {"true", "yes", "false", "no"}
_CROP_MODES = {"standard": "squash", "fit_to_window_letterbox": "pad", "crop": "crop"}
_FILTERS = {"nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"}

_BYTE = 255.0
# The smallest mean of a channel over images, as a fraction of the largest pixel.
_LEAST_OF_RANGE = 0.02
# The mean of ImageNet's photographs, in OpenCV's order of channels.
_MEAN_OF_BGR = (0.406, 0.456, 0.485)
_NEAR = 0.01

_LONGEST = 300  # the most characters of one value; three numbers take 60
_NUMBER = r"[-+]?(?:\d{1,20}\.?\d{0,30}|\.\d{1,30})(?:[eE][-+]?\d{1,3})?"
_NUMBERS = re.compile(
    rf"(?:[a-z.]+\()?[\[(\s]*({_NUMBER}(?:[\s,;]+{_NUMBER}){{0,2}})[\s,]*[\])]*(?:,[^()]*)?\)?"
)
_DEPTH = 3

_Numbers = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class WrittenPixels:
    """Settings for `model.toml` that follow from a model's metadata.

    `doubts` are sentences about contradictions in the metadata.
    """

    keys: Keys
    doubts: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()  # keys whose values are not such numbers


def written_pixels(said: Mapping[str, str], channels: int) -> WrittenPixels:
    """Return the preprocessing that metadata keys describe for a model whose input has `channels`
    channels.

    The metadata keys must be in lower case. If they contradict each other, the result has no keys,
    and `doubts` names the contradictions.
    """
    found: dict[str, dict[str, object]] = {}
    unread = []
    for key, name, value in _flat(said):
        role = _ROLE_OF[name]
        read = _value(role, name, value)
        if read is not None:
            found.setdefault(role, {})[key] = read
        elif role in ("mean", "std"):
            unread.append(f"{key} = {str(value)!r:.60}")
    doubts = [
        f"{' and '.join(values)} contradict each other, so none of them is used; set {role} in"
        " model.toml"
        for role, values in found.items()
        if len(set(values.values())) > 1
    ]
    if doubts or not {"mean", "std"} & found.keys():
        return WrittenPixels({}, tuple(doubts), tuple(unread))
    by_key = {**found.get("mean", {}), **found.get("std", {})}
    one = {role: next(iter(values.values())) for role, values in found.items()}
    if len(by_key) == 1 and _is_one_number(by_key):  # the number may mean anything
        unread += [f"{key} = {str(said.get(key, ''))!r:.60}" for key in by_key]
    if unread:
        return WrittenPixels({}, (), tuple(unread))
    names = {last_part(key) for key in by_key}
    return _normalisation(one, channels, of_bytes=names <= _OF_BYTES)


def _is_one_number(by_key: Mapping[str, object]) -> bool:
    return all(isinstance(numbers, tuple) and len(numbers) == 1 for numbers in by_key.values())


def _flat(said: Mapping[str, str]) -> Iterator[tuple[str, str, object]]:
    """Find the metadata keys that describe a normalisation, also inside JSON objects. Yield each
    key, the last part of its name, and its value."""
    pending: list[tuple[str, object, int]] = [(key, value, 0) for key, value in said.items()]
    while pending:
        key, value, depth = pending.pop(0)
        name = last_part(key)
        if name in _ROLE_OF:
            yield key, name, value
        elif name in _OBJECTS and depth < _DEPTH:
            inside = parse_value(value) if isinstance(value, str) else value
            if isinstance(inside, dict):
                pending += [
                    (f"{key}.{str(inner).lower()}", each, depth + 1)
                    for inner, each in list(inside.items())[:_LONGEST]
                ]


def last_part(key: str) -> str:
    """Return the last part of a key, without prefixes.

    For example, the last part is `mean` for `my.model/mean` and for `model_info mean`.
    """
    return re.split(r"[./: ]", key.strip())[-1].replace("-", "_")


def _value(role: str, name: str, value: object) -> object:
    """Convert a value to the type that its role needs, such as numbers for a mean. Return None if
    this is impossible."""
    if role in ("mean", "std", "scale"):
        numbers = _numbers(value)
        if numbers is None or min(numbers) < 0 or (role != "mean" and not all(numbers)):
            return None
        if role == "scale":
            return numbers[0] if len(set(numbers)) == 1 else None
        return numbers
    if role == "crop_pct":
        numbers = _numbers(value)
        return numbers[0] if numbers and len(numbers) == 1 and 0 < numbers[0] <= 1 else None
    text = str(value).strip().lower()[:_LONGEST]
    if role == "interpolation":
        return text if text in _FILTERS else None
    if role == "crop_mode":
        return _CROP_MODES.get(text)
    if (text in _SAID_BY_A_TRUTH) != (name == "reverse_input_channels"):
        return None
    return _ORDERS.get(text)


def _numbers(value: object) -> _Numbers | None:
    """Return one or three numbers from a list or a text in any common notation, or None."""
    if isinstance(value, list | tuple) and all(isinstance(each, list | tuple) for each in value):
        # For example, an array of shape 3×1×1.
        return _numbers([number for each in value for number in each]) if len(value) == 3 else None
    text = " ".join(map(str, value[:4])) if isinstance(value, list | tuple) else str(value)
    found = _NUMBERS.fullmatch(text.strip().lower()) if len(text) <= _LONGEST else None
    numbers = tuple(map(float, re.split(r"[\s,;]+", found[1]))) if found else ()
    return numbers if len(numbers) in (1, 3) else None


def _normalisation(one: Mapping[str, object], channels: int, *, of_bytes: bool) -> WrittenPixels:
    mean, std = (_given(one.get(role)) for role in ("mean", "std"))
    shown = f"mean is {_shown(mean)} and std is {_shown(std)}"
    grey = channels == 1 or one.get("channels") == "grey"
    counted = [numbers for numbers in (mean, std) if numbers]
    if grey and any(len(set(numbers)) > 1 for numbers in counted):
        doubt = f"{shown}, but its input has one channel, so mean and std are not used"
        return WrittenPixels({}, (doubt,))
    mean, std = mean or (0.0,), std or (1.0,)
    scale, doubt = _scale(one.get("scale"), mean, std, of_bytes=of_bytes)
    if scale is not None and not of_bytes and max(map(abs, mean)) > _BYTE * scale:
        # As in Caffe and OpenCV, the mean is subtracted first, from pixels from 0 to 255.
        if _given(one.get("std")):
            scale, doubt = None, f"but the scale is {scale:g}, so no pixel is as large as the mean"
        else:
            scale, std = 1.0, (1 / scale,)
    if scale is None:
        return WrittenPixels({}, (f"{shown}, {doubt}",))
    count = 1 if grey else 3
    mean, std = ((numbers * 3)[:count] for numbers in (mean, std))
    order = one.get("channels") or ("grey" if grey else _order(mean, scale))
    keys = {"channels": order, "scale": scale, "mean": list(mean), "std": list(std)}
    beside = {role: one[role] for role in ("crop_mode", "crop_pct", "interpolation") if role in one}
    if beside.get("crop_mode") in ("squash", "pad"):
        beside["crop_pct"] = 1.0
    return WrittenPixels(keys | beside, (f"{shown}, {doubt}",) if doubt else ())


def _given(numbers: object) -> _Numbers:
    return numbers if isinstance(numbers, tuple) else ()


def _shown(numbers: _Numbers) -> str:
    return ", ".join(f"{number:g}" for number in numbers) or "not given"


def _scale(
    given: object, mean: _Numbers, std: _Numbers, *, of_bytes: bool
) -> tuple[float | None, str]:
    """Return the factor by which pixels are multiplied before the normalisation, and a warning or
    "".

    If the keys contradict each other, the factor is None.
    """
    if isinstance(given, float):
        scale = given if given <= 1 else 1 / given  # or a divisor, such as 255
        if any(mean) and max(map(abs, mean)) < _LEAST_OF_RANGE * scale * _BYTE:
            return None, f"but the scale is {given:g}, so the mean is far below the range of pixels"
        return scale, ""
    if of_bytes:
        return 1.0, ""
    small, wide = max(map(abs, mean)) <= 1, max(std) > 1
    nothing = not any(mean) and set(std) == {1.0}
    if nothing:
        return 1 / _BYTE, (
            "which does not show whether pixels are from 0 to 1 or from 0 to 255; they are scaled"
            " to 0 to 1. If answers are wrong, set scale = 1 in model.toml"
        )
    if small and not wide:
        return 1 / _BYTE, ""
    if (small and any(mean)) or (not wide and set(std) != {1.0}):
        return None, (
            "one for pixels from 0 to 1 and one for pixels from 0 to 255, so neither is used;"
            " set scale, mean and std in model.toml"
        )
    return 1.0, ""


def _order(mean: _Numbers, scale: float) -> str:
    """Return "bgr" if the mean is ImageNet's in the order blue, green, red, and otherwise "rgb"."""
    most = _BYTE * scale
    near = all(
        abs(number / most - one) < _NEAR for number, one in zip(mean, _MEAN_OF_BGR, strict=True)
    )
    return "bgr" if near else "rgb"
