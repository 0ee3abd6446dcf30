"""What a model expects of its pixels and what its scores mean: `model.toml`, presets, flags.

    preset = "imagenet"        # where to start from: imagenet, caffe, digits
    size = 224                 # or height and width
    resize = 256               # length of the shorter side before the crop
    fit = "crop"               # or "stretch"
    channels = "rgb"           # or "bgr", "grey"
    layout = "nchw"            # or "nhwc"; normally read from the model
    scale = 0.00392156862745098
    mean = [0.485, 0.456, 0.406]
    std = [0.229, 0.224, 0.225]
    output = "logits"          # or "probabilities"
    labels = "labels.txt"      # one a line, UTF-8; the path counts from the TOML file

Every key may be left out. A flag wins over the file, the file over its preset, and what nobody
says comes from the shape of the model's input.
"""

import logging
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, unique
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.errors import PreprocessingError

_log = logging.getLogger(__name__)


@unique
class ChannelOrder(Enum):
    """The order of the channels that the model reads."""

    RGB = "rgb"
    BGR = "bgr"
    GREY = "grey"  # one channel, ITU-R 601 luma


@unique
class Layout(Enum):
    """The order of the axes of the model's input, batch first."""

    NCHW = "nchw"
    NHWC = "nhwc"


@unique
class Fit(Enum):
    """How a picture is brought to height × width."""

    CROP = "crop"  # shorter side to `resize`, then the centre height × width
    STRETCH = "stretch"  # straight to height × width, the aspect ratio lost


@unique
class OutputKind(Enum):
    """What the model's scores are."""

    LOGITS = "logits"
    PROBABILITIES = "probabilities"


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """Pixels in: x = (pixel · scale - mean[c]) / std[c], pixel in 0..255, one mean a channel.

    `mean` and `std` follow `channels` (so BGR models give BGR means) and have 1 entry for GREY,
    3 otherwise.
    """

    height: int
    width: int
    fit: Fit
    resize: int  # length of the shorter side before the crop; unused by STRETCH
    channels: ChannelOrder
    layout: Layout
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    output: OutputKind
    labels: tuple[str, ...]  # empty: classes are named by their index

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """One image's shape as the model takes it, C×H×W or H×W×C by `layout`."""
        channels = _channel_count(self.channels)
        if self.layout is Layout.NHWC:
            return self.height, self.width, channels
        return channels, self.height, self.width


@dataclass(frozen=True, slots=True)
class Preset:
    """What models of one origin expect; a model of another size gets `resize` in proportion."""

    size: int
    resize: int
    fit: Fit
    channels: ChannelOrder
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    output: OutputKind


PRESETS: Mapping[str, Preset] = {
    # torchvision and most of what was trained in PyTorch
    "imagenet": Preset(
        size=224,
        resize=256,
        fit=Fit.CROP,
        channels=ChannelOrder.RGB,
        scale=1 / 255,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        output=OutputKind.LOGITS,
    ),
    # Caffe's model zoo, and what was converted from it
    "caffe": Preset(
        size=224,
        resize=256,
        fit=Fit.CROP,
        channels=ChannelOrder.BGR,
        scale=1.0,
        mean=(103.939, 116.779, 123.68),
        std=(1.0, 1.0, 1.0),
        output=OutputKind.PROBABILITIES,
    ),
    # the built-in model; plain grey for any other model of one channel
    "digits": Preset(
        size=32,
        resize=32,
        fit=Fit.CROP,
        channels=ChannelOrder.GREY,
        scale=1 / 255,
        mean=(0.0,),
        std=(1.0,),
        output=OutputKind.LOGITS,
    ),
}


def load_preprocessing(
    model_path: Path,
    input_shape: Sequence[int | None],
    overrides: Mapping[str, object] | None = None,
) -> Preprocessing:
    """What the model at `model_path` expects, from `<stem>.toml` or `model.toml` beside it.

    `input_shape` is one image's in the model's own layout, such as (3, 224, 224); None or a
    number below 1 stands for a side that the model leaves open. `overrides` are flags under the
    file's keys, None meaning not given; a preset among them replaces all that a preset says.
    What had to be guessed is logged as a warning.

    PreprocessingError: a file or flag that makes no sense, or does not fit `input_shape`.
    """
    shape = _known(input_shape)
    flags = _parse("the flags", {k: v for k, v in (overrides or {}).items() if v is not None})
    path = _description_of(model_path)
    described = _parse(str(path), _read(path), path.parent) if path else {}
    if "preset" in flags:
        described = {k: v for k, v in described.items() if k in ("layout", "labels")}
    given = described | flags
    source = str(path) if path and described else "the preprocessing"

    layout: Layout = given.get("layout") or _guess_layout(shape)
    channels, height, width = shape if layout is Layout.NCHW else (shape[2], *shape[:2])
    name = given.get("preset")
    if name is None:
        name = "digits" if channels == 1 else "imagenet"
        _say_guess(model_path, name, given)
    preset = PRESETS[name]

    height = given.get("height") or height or preset.size
    width = given.get("width") or width or preset.size
    resize = given.get("resize") or round(max(height, width) * preset.resize / preset.size)
    preprocessing = Preprocessing(
        height=height,
        width=width,
        fit=given.get("fit", preset.fit),
        resize=resize,
        channels=given.get("channels", preset.channels),
        layout=layout,
        scale=given.get("scale", preset.scale),
        mean=given.get("mean", preset.mean),
        std=given.get("std", preset.std),
        output=given.get("output", preset.output),
        labels=given.get("labels", ()),
    )
    _check(source, preprocessing, shape)
    return preprocessing


def check_labels(preprocessing: Preprocessing, classes: int) -> None:
    """PreprocessingError unless there is one label a class, or none at all."""
    count = len(preprocessing.labels)
    if count not in (0, classes):
        raise PreprocessingError(
            f"there are {count} labels, but the model has {classes} classes; "
            "the label file must have one line a class, in the order of the model's output"
        )


def normalisation(
    preprocessing: Preprocessing,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(multiplier, offset), one entry a channel: x = pixel · multiplier + offset."""
    mean, std = np.array(preprocessing.mean), np.array(preprocessing.std)
    return (preprocessing.scale / std).astype(np.float32), (-mean / std).astype(np.float32)


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

# Every key: how its value is read, and what it must be.
_KEYS: Mapping[str, tuple[Callable[[object], object], str]] = {
    "preset": (_preset_name, "one of " + ", ".join(f'"{name}"' for name in PRESETS)),
    "size": _SIDE,
    "height": _SIDE,
    "width": _SIDE,
    "resize": _SIDE,
    "fit": _one_of(Fit),
    "channels": _one_of(ChannelOrder),
    "layout": _one_of(Layout),
    "scale": (_positive, "a number above 0"),
    "mean": (_per_channel(_number), "a list of 3 numbers, or 1 for grey"),
    "std": (_per_channel(_positive), "a list of 3 numbers above 0, or 1 for grey"),
    "output": _one_of(OutputKind),
    "labels": (_label_path, "the path of a text file with one label a line"),
}


def _description_of(model_path: Path) -> Path | None:
    candidates = (model_path.with_suffix(".toml"), model_path.with_name("model.toml"))
    return next((path for path in candidates if path.is_file()), None)


def _read(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # ValueError: not TOML, or not UTF-8
        raise PreprocessingError(f"{path} cannot be read: {error}") from error


def _parse(source: str, table: Mapping[str, object], folder: Path = Path()) -> dict[str, Any]:
    """The values of a file or of flags, checked one by one; `size` becomes height and width."""
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in _KEYS:
            raise PreprocessingError(f"{source}: there is no {key!r}; there are {', '.join(_KEYS)}")
        parse, right = _KEYS[key]
        try:
            values[key] = parse(value)
        except ValueError:
            shown = str(value) if isinstance(value, Path) else repr(value)
            raise PreprocessingError(
                f"{source}: {key} = {shown} is not allowed; it must be {right}"
            ) from None
    if "size" in values:
        if "height" in values or "width" in values:
            raise PreprocessingError(f"{source}: give either size, or height and width")
        values["height"] = values["width"] = values.pop("size")
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


def _known(input_shape: Sequence[int | None]) -> tuple[int, int, int]:
    """The shape with 0 for what is unknown."""
    if len(input_shape) != 3:
        raise PreprocessingError(
            f"the model's input has the shape {_shown(input_shape)}; an image has three axes "
            "besides the batch: channels, height, width"
        )
    first, second, third = (max(side or 0, 0) for side in input_shape)
    return first, second, third


def _guess_layout(shape: tuple[int, int, int]) -> Layout:
    if shape[0] not in (1, 3) and shape[2] in (1, 3):
        return Layout.NHWC
    return Layout.NCHW


def _say_guess(model_path: Path, name: str, given: Mapping[str, object]) -> None:
    guessed = [key for key in ("channels", "scale", "mean", "std", "output") if key not in given]
    if guessed:
        _log.warning(
            "nothing says what %s expects of its pixels: %s as in the preset %r, judging by its "
            "input. If answers are wrong, say otherwise in %s or with a preset",
            model_path.name,
            ", ".join(guessed),
            name,
            model_path.with_suffix(".toml").name,
        )


def _channel_count(channels: ChannelOrder) -> int:
    return 1 if channels is ChannelOrder.GREY else 3


def _check(source: str, preprocessing: Preprocessing, shape: tuple[int, int, int]) -> None:
    p = preprocessing
    for key, entries in (("mean", p.mean), ("std", p.std)):
        if len(entries) != _channel_count(p.channels):
            raise PreprocessingError(
                f"{source}: {key} has length {len(entries)}, but channels = "
                f'"{p.channels.value}" takes {_channel_count(p.channels)}'
            )
    if p.fit is Fit.CROP and p.resize < max(p.height, p.width):
        raise PreprocessingError(
            f"{source}: resize = {p.resize} is smaller than the crop of {p.height}×{p.width}; "
            f"it must be at least {max(p.height, p.width)}"
        )
    if any(known not in (0, side) for known, side in zip(shape, p.input_shape, strict=True)):
        raise PreprocessingError(
            f"{source} gives images of {_shown(p.input_shape)} ({p.layout.value}, "
            f"{p.channels.value}), but the model takes {_shown(shape)}"
        )


def _shown(shape: Sequence[int | None]) -> str:
    return "×".join(str(side) if side else "?" for side in shape) or "()"
