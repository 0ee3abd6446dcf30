"""Reads `preprocessor_config.json` and `processor_config.json` of transformers, and the labels in
its `config.json`."""

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from models.errors import PreprocessingError
from models.readers.labels import labels_by_number
from models.readers.reading import Keys, Reading, is_side, read_json

Config = Mapping[str, object]

# `resample` is an index into this list, as in Pillow.
_FILTERS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")

# Keys of steps that Convoy does, or that do not change a classifier's images.
_DONE = {
    "do_resize",
    "do_rescale",
    "do_normalize",
    "do_center_crop",
    "do_convert_rgb",
    "do_flip_channel_order",
    "do_reduce_labels",
}

# Other keys that are read, or that do not concern pixels.
_KNOWN = {
    "size",
    "crop_size",
    "resize_short",
    "size_divisor",
    "resample",
    "rescale_factor",
    "include_top",
    "image_mean",
    "image_std",
    "image_processor_type",
    "feature_extractor_type",
    "processor_class",
    "default_to_square",
    "data_format",
    "device",
}

# Image processors for which a `size` with one number means both sides, or the shorter side.
_BOTH_SIDES = {"ViT", "DeiT", "Beit", "EfficientNet", "Pvt", "Segformer"}
_SHORTER_SIDE = {
    "Bit",
    "CLIP",
    "ConvNext",
    "Levit",
    "MobileNetV1",
    "MobileNetV2",
    "MobileViT",
    "PoolFormer",
}

# Image processors that crop the centre unless their file denies it, with their own crop_size.
_CROPS = {
    **dict.fromkeys(_SHORTER_SIDE - {"ConvNext", "MobileViT"}, 224),
    **dict.fromkeys(
        ("ChineseCLIP", "DeiT", "EfficientFormer", "PPLCNet", "ViTHybrid", "Vivit"), 224
    ),
    "MobileViT": 256,
}
_KINDS = {*_BOTH_SIDES, *_SHORTER_SIDE, *_CROPS, "Blip", "Siglip", "TextNet", "Tipsv2"}

# Keys that only these image processors read, with their default. The others ignore them.
_OWN: Mapping[str, Mapping[str, object]] = {
    "crop_pct": {"ConvNext": None, "PoolFormer": 0.9},
    "do_flip_channel_order": {"MobileViT": True},
    "offset": {"Vivit": True},
    "rescale_offset": {"EfficientNet": False},
}

_LEAST = 0.01  # the smallest crop, as a fraction of a side

_TYPE = re.compile(r"(.*?)(ImageProcessor|FeatureExtractor)(Fast|Pil)?")

_REGRESSION = (
    "problem_type is regression, so that the model's output is a quantity. If it is the score of a"
    ' class, set output = "sigmoid", "probabilities" or another kind in model.toml, or with --set'
)

_OTHERWISE = ". Change the file, or choose a preset instead: --preset, or preset in model.toml"


def read_processor(path: Path) -> Reading | None:
    """Read the preprocessing in the file of an image processor, or in the file of a processor that
    contains an image processor. Return None if the file describes no image processor."""
    config = read_json(path)
    if isinstance(inner := config.get("image_processor"), dict):
        config = inner
    if not config.keys() & {"size", "image_mean", "do_resize"}:
        return None
    others = (
        key
        for key, value in config.items()
        if value
        and (
            _own(config, key) is None
            if key in _OWN
            else not key.startswith(("do_", "_")) and key not in _KNOWN
        )
    )
    return Reading(path, pixels=partial(_pixels, path, config), ignored=tuple(others))


def read_config(path: Path) -> Reading | None:
    """Read the labels in `id2label`. Placeholders that transformers generates, such as LABEL_0, are
    not labels."""
    config = read_json(path)
    names = config.get("id2label")
    if not isinstance(names, dict) or not names:
        return None
    unknown = all(name == f"LABEL_{number}" for number, name in names.items())
    problem = config.get("problem_type")
    several = problem == "multi_label_classification"
    return Reading(
        path,
        labels=None if unknown else partial(labels_by_number, path, "id2label", names),
        serving={"output": "sigmoid"} if several else {},
        unclear=_REGRESSION if problem == "regression" else "",
    )


def _pixels(path: Path, config: Config) -> Keys:
    kind = _kind(config)
    odd = [key for key, value in config.items() if key.startswith("do_") and value]
    if others := sorted(set(odd) - _DONE):
        raise PreprocessingError(
            f"{path}: {others[0]} = true is not supported; Convoy resizes, crops and normalises"
            f"{_OTHERWISE}"
        )
    if not config.get("do_resize", True):
        raise PreprocessingError(
            f"{path}: do_resize = false is not supported; Convoy resizes every image{_OTHERWISE}"
        )
    if config.get("size_divisor", 32 if kind == "TextNet" else 1) not in (None, 1):
        raise PreprocessingError(
            f"{path}: size_divisor is not supported; all images must have one size{_OTHERWISE}"
        )
    if kind == "Perceiver":
        raise PreprocessingError(
            f"{path}: Perceiver's image processor crops before it resizes, which is not supported"
            f"{_OTHERWISE}"
        )
    keys = _geometry(path, config, kind)
    keys |= {"crop_offset": "down", "longer_side": "nearest" if kind == "PPLCNet" else "down"}
    keys["interpolation"] = _filter(path, config.get("resample"))
    return keys | _normalisation(path, config, kind)


def _kind(config: Config) -> str:
    """Return the name of an image processor without its ending, such as ViT, or ""."""
    said = config.get("image_processor_type") or config.get("feature_extractor_type")
    match = _TYPE.fullmatch(str(said))
    return match[1] if match else ""


def _own(config: Config, key: str) -> object:
    """Return the value of a key that only some image processors read, or None if this one does not
    read it. An image processor that is not known reads every key except `offset`."""
    kind, readers = _kind(config), _OWN[key]
    reads = kind in readers or (kind not in _KINDS and key != "offset")
    return config.get(key, readers.get(kind)) if reads else None


def _filter(path: Path, resample: object) -> str:
    if resample is None:  # the default depends on the image processor and the release
        raise PreprocessingError(
            f"{path}: resample is missing. Depending on the release of transformers, its default is"
            f' bilinear ("resample": 2), bicubic (3) or nearest (0); add the value used in training'
            f"{_OTHERWISE}"
        )
    if not isinstance(resample, int) or not 0 <= resample < len(_FILTERS):
        raise PreprocessingError(
            f"{path}: resample = {resample!r} is not allowed; it must be the number of one of"
            " Pillow's filters, 0 to 5"
        )
    return _FILTERS[resample]


def _normalisation(path: Path, config: Config, kind: str) -> Keys:
    mean, std = [0.0] * 3, [1.0] * 3
    by_default = kind != "Tipsv2" if kind in _KINDS else "image_mean" in config
    if kind != "MobileViT" and config.get("do_normalize", by_default):  # MobileViT never does
        mean, std = (_channels(path, config, key) for key in ("image_mean", "image_std"))
    rescales = config.get("do_rescale", True)
    if rescales and (
        _own(config, "rescale_offset") or _own(config, "offset")
    ):  # the image is rescaled, then 1 is subtracted
        mean = [number + 1 for number in mean]
    if kind == "EfficientNet" and config.get("include_top", True):  # divides by std once more
        again = _channels(path, config, "image_std")
        std = [a * b for a, b in zip(std, again, strict=False)]
    factor = 127.5 if kind == "Vivit" else 255
    colour = "bgr" if _own(config, "do_flip_channel_order") else "rgb"
    if kind == "PPLCNet":  # it normalises first, then reverses the channels
        colour, mean, std = "bgr", mean[::-1], std[::-1]
    return {
        "scale": config.get("rescale_factor", 1 / factor) if rescales else 1.0,
        "mean": mean,
        "std": std,
        "channels": "grey" if len(mean) == 1 else colour,
    }


def _channels(path: Path, config: Config, key: str) -> list[float]:
    value = config.get(key)
    numbers = [value] * 3 if isinstance(value, int | float) else value
    if not isinstance(numbers, list) or not all(isinstance(n, int | float) for n in numbers):
        raise PreprocessingError(
            f"{path}: {key} = {value!r} is not allowed; it must be a number or a list of numbers"
        )
    return numbers


def _geometry(path: Path, config: Config, kind: str) -> Keys:
    size = config.get("size")
    if kind == "PPLCNet" and is_side(shorter := config.get("resize_short", 256)):
        size = {"shortest_edge": shorter}
    if is_side(size):
        if kind not in _BOTH_SIDES | _SHORTER_SIDE:
            raise PreprocessingError(
                f"{path}: size = {size} is ambiguous, because the image processor is unknown. Write"
                f' {{"shortest_edge": {size}}} for the shorter side, or'
                f' {{"height": {size}, "width": {size}}} for both sides{_OTHERWISE}'
            )
        cuts = kind in _SHORTER_SIDE
        size = {"shortest_edge": size} if cuts else {"height": size, "width": size}
    share = _own(config, "crop_pct")
    crop = _crop(path, config, kind)
    both = _sides(size)
    if both and kind == "PoolFormer" and isinstance(share, float) and _LEAST < share <= 1:
        if both[0] == both[1]:
            size, both = {"shortest_edge": both[0]}, None
        else:
            both = int(both[0] / share), int(both[1] / share)
    if both is not None:
        return _squashed(path, both, crop)
    sides = size if isinstance(size, dict) else {}
    edge = sides.get("shortest_edge")
    if not is_side(edge) or sides.get("longest_edge"):  # both limit the size
        raise PreprocessingError(
            f"{path}: size = {size!r} is not supported; it must have a shortest_edge alone, or"
            f" height and width{_OTHERWISE}"
        )
    if kind == "ConvNext":
        if edge >= 384:
            return _squashed(path, (edge, edge), crop)
        crop, share = (edge, edge), share or 224 / 256
    elif kind == "Levit":
        share = 224 / 256
    if crop is None:
        raise PreprocessingError(
            f"{path}: the shorter side becomes {edge} and nothing is cropped, so that images differ"
            ' in size. Crop the centre ({"do_center_crop": true}), or resize both sides'
            f' ({{"height": {edge}, "width": {edge}}}){_OTHERWISE}'
        )
    if share is not None and not (isinstance(share, int | float) and _LEAST < share <= 1):
        raise PreprocessingError(
            f"{path}: crop_pct = {share!r} is not allowed; it must be above {_LEAST} and at most 1"
        )
    resize = int(edge / share) if share else edge
    return {"height": crop[0], "width": crop[1], "resize": resize, "crop_mode": "crop"}


def _crop(path: Path, config: Config, kind: str) -> tuple[int, int] | None:
    """Return the height and width of the crop, or None if the image is not cropped."""
    size = config.get("crop_size", _CROPS.get(kind))
    crop = _sides(size)
    by_default = kind in _CROPS if kind in _KINDS else crop is not None
    if kind == "Segformer" or not config.get("do_center_crop", by_default):
        return None
    if crop is None and kind != "ConvNext":
        raise PreprocessingError(
            f"{path}: crop_size = {size!r} is not supported; with do_center_crop, it must have"
            f" height and width{_OTHERWISE}"
        )
    return crop


def _squashed(path: Path, both: tuple[int, int], crop: tuple[int, int] | None) -> Keys:
    height, width = crop or both
    if height * both[1] != width * both[0]:
        raise PreprocessingError(
            f"{path}: a crop of {height}×{width} from an image of {both[0]}×{both[1]} is not"
            f" supported; both must have the same aspect ratio{_OTHERWISE}"
        )
    return {"height": height, "width": width, "resize": max(both), "crop_mode": "squash"}


def _sides(size: object) -> tuple[int, int] | None:
    """Return the height and width in `size`, or None if one of them is missing."""
    if is_side(size):
        return size, size
    if isinstance(size, dict):
        height, width = size.get("height"), size.get("width")
        if is_side(height) and is_side(width):
            return height, width
    return None
