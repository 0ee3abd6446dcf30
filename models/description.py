"""Reads a model's description, `model.toml`, presets and flags, into a Preprocessing.

    preset = "imagenet"        # where to start from: imagenet, caffe, inception, raw, digits
    size = 224                 # or height and width
    frames = 16                # of a clip, for a model of clips; normally read from the model
    resize = 256               # length of the shorter side before the crop
    crop_pct = 0.875           # instead of resize: the part of it that the crop is
    crop_mode = "crop"         # or "squash": both sides are resized; "pad": the longer one
    interpolation = "bilinear" # or "nearest", "bicubic", "lanczos", "box", "hamming"
    exact = false              # true: pixels to the bit as in training
    channels = "rgb"           # or "bgr", "grey"
    layout = "nchw"            # or "nhwc"; normally read from the model
    scale = 0.00392156862745098
    mean = [0.485, 0.456, 0.406]
    std = [0.229, 0.224, 0.225]
    output = "logits"          # or "probabilities"
    labels = "labels.txt"      # one a line, UTF-8; the path counts from the TOML file
    precision = "fp32"         # of a GPU: or "3xtf32", "tf32", "fp16"

Every key is optional. A flag overrides the file, the file overrides timm's `config.json` beside
the model, and that overrides the preset. What none of them sets is guessed from the shape of the
model's input.
"""

import logging
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Any

from kernels.problems.precision import Precision
from models.errors import PreprocessingError
from models.preprocessing import (
    PRESETS,
    ChannelOrder,
    CropMode,
    Interpolation,
    Layout,
    OutputKind,
    Preprocessing,
)
from models.timm_config import find_timm_config, read_timm_config

_log = logging.getLogger(__name__)


def load_preprocessing(
    model_path: Path,
    input_shape: Sequence[int | None],
    overrides: Mapping[str, object] | None = None,
) -> Preprocessing:
    """Return what the model at `model_path` expects, by `<stem>.toml` or `model.toml` beside it.

    `input_shape` is one image's in the model's own layout, such as (3, 224, 224), or for clips of
    16 frames (3, 16, 112, 112); None or a number below 1 marks a size that the model leaves open.
    `overrides` are flags under the file's keys, None where not given; a preset among them replaces
    the file's preset. A guess is logged as a warning.

    Raises PreprocessingError where the file or a flag is invalid or does not fit `input_shape`.
    """
    shape = _known(input_shape)
    flags = _parse("the flags", _given(overrides))
    path = _description_of(model_path)
    described = _parse(str(path), _read(path), path.parent) if path else {}
    if "preset" in flags:
        described = {k: v for k, v in described.items() if k in _NOT_OF_PIXELS}
    for key, other in (("resize", "crop_pct"), ("crop_pct", "resize")):
        if key in flags:
            described.pop(other, None)
    given = _read_trained(model_path, described | flags) | described | flags
    source = str(path) if path and described else "the preprocessing"

    layout: Layout = given.get("layout") or _guess_layout(shape)
    channels, *spatial = shape if layout is Layout.NCHW else (shape[-1], *shape[:-1])
    *depth, height, width = spatial
    name, guess = given.get("preset"), ""
    if name is None:
        name = "digits" if channels == 1 else "imagenet"
        _say_guess(model_path, name, given)
        guess = "" if _PIXELS & given.keys() else name
    preset = PRESETS[name]

    height, width = given.get("height") or height, given.get("width") or width
    if not (height and width):
        if "preset" not in given:
            raise PreprocessingError(
                f"the model takes images of {_shown(input_shape)} and leaves open how large they"
                " are; say size = 224, or as large as it was trained on, in"
                f" {model_path.with_suffix('.toml').name} or with --set size=224"
            )
        height, width = height or preset.size, width or preset.size
        _log.warning(
            "%s takes images of any size; they are made %d×%d, as in the preset %r",
            model_path.name,
            height,
            width,
            name,
        )
    crop_mode = given.get("crop_mode", preset.crop_mode)
    resize = given.get("resize")
    if "crop_pct" in given:
        resize = math.floor(max(height, width) / given["crop_pct"])  # rounded down, as timm does
    elif resize is None:
        cuts = crop_mode is CropMode.CROP
        resize = preset.resized(height, width) if cuts else max(height, width)
    preprocessing = Preprocessing(
        height=height,
        width=width,
        crop_mode=crop_mode,
        resize=resize,
        interpolation=given.get("interpolation", preset.interpolation),
        channels=given.get("channels", preset.channels),
        layout=layout,
        scale=given.get("scale", preset.scale),
        mean=given.get("mean", preset.mean),
        std=given.get("std", preset.std),
        output=given.get("output", preset.output),
        labels=given.get("labels", ()),
        frames=_frames(source, depth, given.get("frames"), shape),
        exact=given.get("exact", False),
        guess=guess,
    )
    _check(source, preprocessing, shape)
    return preprocessing


def _read_trained(model_path: Path, given: Mapping[str, object]) -> dict[str, Any]:
    """Return what timm's file sets and `given` does not; a preset in that leaves only labels."""
    path = find_timm_config(model_path)
    if path is None:
        return {}
    keys, labels = read_timm_config(path)
    values = {} if "preset" in given else _parse(str(path), keys)
    if "resize" in given:
        values.pop("crop_pct", None)
    if labels:
        values["labels"] = labels
    values = {key: value for key, value in values.items() if key not in given}
    if values:
        _log.info("%s: %s are those of %s", model_path.name, ", ".join(values), path)
    return values


def load_precision(
    model_path: Path, overrides: Mapping[str, object] | None = None
) -> Precision | None:
    """Return the precision that flags or the file set, or None. Raises PreprocessingError."""
    path = _description_of(model_path)
    said = (_read(path) if path else {}) | _given(overrides)
    table = {key: value for key, value in said.items() if key == "precision"}
    precision: Precision | None = _parse(str(path), table).get("precision")
    return precision


def _given(overrides: Mapping[str, object] | None) -> dict[str, object]:
    return {key: value for key, value in (overrides or {}).items() if value is not None}


# --- reading -------------------------------------------------------------------------------------

_MAX_SIDE = 16_384


def _side(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MAX_SIDE:
        return value
    raise ValueError


def _number(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise ValueError


def _positive(value: object) -> float:
    number = _number(value)
    if number <= 0:
        raise ValueError
    return number


def _share(value: object) -> float:
    share = _positive(value)
    if share > 1:
        raise ValueError
    return share


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _per_channel(entry: Callable[[object], float]) -> Callable[[object], tuple[float, ...]]:
    def parse(value: object) -> tuple[float, ...]:
        if not isinstance(value, list | tuple) or len(value) not in (1, 3):
            raise ValueError
        return tuple(entry(number) for number in value)

    return parse


def _preset_name(value: object) -> str:
    if not isinstance(value, str) or value not in PRESETS:
        raise ValueError
    return value


def _one_of(kind: type[Enum]) -> tuple[Callable[[object], Enum], str]:
    return kind, "one of " + ", ".join(f'"{member.value}"' for member in kind)


def _label_path(value: object) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError
    return Path(value)


_SIDE = (_side, f"a whole number of pixels, 1 to {_MAX_SIDE}")
_FRAMES = (_side, f"a whole number of frames, 1 to {_MAX_SIDE}")

# Every key: how its value is read, and what it must be.
_KEYS: Mapping[str, tuple[Callable[[object], object], str]] = {
    "preset": (_preset_name, "one of " + ", ".join(f'"{name}"' for name in PRESETS)),
    "size": _SIDE,
    "height": _SIDE,
    "width": _SIDE,
    "frames": _FRAMES,
    "resize": _SIDE,
    "crop_pct": (_share, "a number above 0 and at most 1"),
    "crop_mode": _one_of(CropMode),
    "interpolation": _one_of(Interpolation),
    "exact": (_truth, "true or false"),
    "channels": _one_of(ChannelOrder),
    "layout": _one_of(Layout),
    "scale": (_positive, "a number above 0"),
    "mean": (_per_channel(_number), "a list of 3 numbers, or 1 for grey"),
    "std": (_per_channel(_positive), "a list of 3 numbers above 0, or 1 for grey"),
    "output": _one_of(OutputKind),
    "labels": (_label_path, "the path of a text file with one label a line"),
    "precision": _one_of(Precision),
}
_PIXELS = {"channels", "scale", "mean", "std"}
"""Keys that make a preset a choice, not a guess."""
_NOT_OF_PIXELS = ("exact", "frames", "layout", "labels", "precision")
"""Keys that `--preset` does not override."""


def _description_of(model_path: Path) -> Path | None:
    candidates = (model_path.with_suffix(".toml"), model_path.with_name("model.toml"))
    return next((path for path in candidates if path.is_file()), None)


def _read(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # ValueError: not TOML, or not UTF-8
        raise PreprocessingError(f"{path} cannot be read: {error}") from error


def _parse(source: str, table: Mapping[str, object], folder: Path = Path()) -> dict[str, Any]:
    """Return the checked values of a file or of flags, with height and width for `size`."""
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in _KEYS:
            raise PreprocessingError(f"{source}: there is no {key!r}; there are {', '.join(_KEYS)}")
        parse, right = _KEYS[key]
        try:
            values[key] = parse(value)
        except ValueError:
            shown = str(value) if isinstance(value, Path) else repr(value)
            meant = get_close_matches(shown.strip("'"), PRESETS, n=1) if key == "preset" else []
            raise PreprocessingError(
                f"{source}: {key} = {shown} is not allowed; it must be {right}"
                + "".join(f". Did you mean {name}?" for name in meant)
            ) from None
    if "size" in values:
        if "height" in values or "width" in values:
            raise PreprocessingError(f"{source}: give either size, or height and width")
        values["height"] = values["width"] = values.pop("size")
    if "resize" in values and "crop_pct" in values:
        raise PreprocessingError(f"{source}: give either resize or crop_pct")
    if "labels" in values:
        values["labels"] = _read_labels(source, folder / values["labels"])
    return values


def _read_labels(source: str, path: Path) -> tuple[str, ...]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise PreprocessingError(
            f"{source}: the labels cannot be read from {path}: {error}"
        ) from error
    labels = tuple(line.strip() for line in text.rstrip().split("\n"))
    if "" in labels:
        raise PreprocessingError(f"{path}: line {labels.index('') + 1} is empty; one label a line")
    return labels


# --- fitting to the model ------------------------------------------------------------------------


def _known(input_shape: Sequence[int | None]) -> tuple[int, ...]:
    """Return the shape with 0 for an unknown size."""
    if len(input_shape) not in (3, 4):
        raise PreprocessingError(
            f"the model's input has the shape {_shown(input_shape)}; an image has three axes "
            "besides the batch: channels, height, width; a clip has its frames before the height"
        )
    return tuple(max(side or 0, 0) for side in input_shape)


def _guess_layout(shape: Sequence[int]) -> Layout:
    if shape[0] not in (1, 3) and shape[-1] in (1, 3):
        return Layout.NHWC
    return Layout.NCHW


def _frames(
    source: str, depth: Sequence[int], given: int | None, shape: Sequence[int]
) -> int | None:
    """Return the number of frames of a clip; None for a model of images, which have no depth
    axis.
    """
    if not depth:
        if given is not None:
            raise PreprocessingError(
                f"{source}: frames = {given}, but the model takes images of {_shown(shape)}"
            )
        return None
    frames = given or depth[0]
    if not frames:
        raise PreprocessingError(
            f"the model takes clips of {_shown(shape)} and leaves open how many frames they have; "
            "say frames = 16, or as many as it was trained on"
        )
    return frames


def _say_guess(model_path: Path, name: str, given: Mapping[str, object]) -> None:
    guessed = [key for key in ("channels", "scale", "mean", "std", "output") if key not in given]
    if guessed:
        _log.warning(
            "%s has no preprocessing settings: %s are those of the preset %r, guessed from its "
            "input. If answers are wrong, set them in %s or choose a --preset",
            model_path.name,
            ", ".join(guessed),
            name,
            model_path.with_suffix(".toml").name,
        )


def _channel_count(channels: ChannelOrder) -> int:
    return 1 if channels is ChannelOrder.GREY else 3


def _check(source: str, preprocessing: Preprocessing, shape: Sequence[int]) -> None:
    p = preprocessing
    for key, entries in (("mean", p.mean), ("std", p.std)):
        if len(entries) != _channel_count(p.channels):
            raise PreprocessingError(
                f"{source}: {key} has length {len(entries)}, but channels = "
                f'"{p.channels.value}" takes {_channel_count(p.channels)}'
            )
    if p.crop_mode is not CropMode.PAD and p.resize < max(p.height, p.width):
        raise PreprocessingError(
            f"{source}: resize = {p.resize} is smaller than the crop of {p.height}×{p.width}; "
            f"it must be at least {max(p.height, p.width)}"
        )
    if any(known not in (0, side) for known, side in zip(shape, p.input_shape, strict=True)):
        kind = "images" if p.frames is None else "clips"
        raise PreprocessingError(
            f"{source} gives {kind} of {_shown(p.input_shape)} ({p.layout.value}, "
            f"{p.channels.value}), but the model takes {_shown(shape)}"
        )


def _shown(shape: Sequence[int | None]) -> str:
    return "×".join(str(side) if side else "?" for side in shape) or "()"
