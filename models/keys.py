"""Defines the keys of `model.toml`, their parsers, and their allowed values."""

import math
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from reprlib import Repr
from typing import Any

from kernels.problems.interpolation import Interpolation
from kernels.problems.precision import Precision
from models.errors import PreprocessingError
from models.preprocessing import (
    PRESETS,
    ChannelOrder,
    CropMode,
    Layout,
    Preset,
    Rounding,
    Sampling,
)
from models.readers.labels import read_label_file
from models.readers.reading import LARGEST_BATCH, LOWEST_PRIORITY
from models.scores import OutputKind
from models.torchvision import TORCHVISION

EVERY_PRESET: Mapping[str, Preset] = {**PRESETS, **TORCHVISION}
"""All presets by name, including torchvision's weights."""

# The values of a YAML file may share parts. Written out, they could fill the memory.
_BRIEF = Repr()
_BRIEF.maxlevel = 2

_MAX_SIDE = 16_384
_COLOURS = {"white": (255, 255, 255), "black": (0, 0, 0)}


def _side(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MAX_SIDE:
        return value
    raise ValueError


def _batch(value: object) -> int:
    if _side(value) > LARGEST_BATCH:
        raise ValueError
    return _side(value)


def _level(value: object) -> int:
    if _side(value) > LOWEST_PRIORITY:
        raise ValueError
    return _side(value)


def _number(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(OverflowError):
            if math.isfinite(value):
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


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError
    return value


def _per_channel(entry: Callable[[object], float]) -> Callable[[object], tuple[float, ...]]:
    def parse(value: object) -> tuple[float, ...]:
        if not isinstance(value, list | tuple) or len(value) not in (1, 3):
            raise ValueError
        return tuple(entry(number) for number in value)

    return parse


def _colour(value: object) -> tuple[int, ...]:
    if isinstance(value, str):
        return _COLOURS[value]
    if not isinstance(value, list | tuple) or len(value) not in (1, 3):
        raise ValueError
    if not all(isinstance(part, int) and not isinstance(part, bool) for part in value):
        raise ValueError
    if not all(0 <= part <= 255 for part in value):
        raise ValueError
    return tuple(value)


def _preset_name(value: object) -> str:
    if not isinstance(value, str) or value not in EVERY_PRESET:
        raise ValueError
    return value


def _one_of(kind: type[Enum]) -> tuple[Callable[[object], Enum], str]:
    return kind, "one of " + ", ".join(f'"{member.value}"' for member in kind)


def _output_kinds() -> tuple[Callable[[object], Enum], str]:
    parse, right = _one_of(OutputKind)
    return parse, right.replace('"logits"', '"logits" or "softmax"', 1)


def _label_path(value: object) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError
    return Path(value)


_SIDE = (_side, f"a whole number of pixels, 1 to {_MAX_SIDE}")
_FRAMES = (_side, f"a whole number of frames, 1 to {_MAX_SIDE}")

KEYS: Mapping[str, tuple[Callable[[object], object], str]] = {
    "preset": (
        _preset_name,
        "one of "
        + ", ".join(f'"{name}"' for name in PRESETS)
        + ', or torchvision\'s weights, as "resnet50.IMAGENET1K_V2"',
    ),
    "size": _SIDE,
    "height": _SIDE,
    "width": _SIDE,
    "frames": _FRAMES,
    "sampling": _one_of(Sampling),
    "stride": (_side, f"a whole number of frames, 1 to {_MAX_SIDE}"),
    "resize": _SIDE,
    "crop_pct": (_share, "a number above 0 and at most 1"),
    "crop_mode": _one_of(CropMode),
    "longer_side": _one_of(Rounding),
    "crop_offset": _one_of(Rounding),
    "pad": (
        _colour,
        'a colour as [red, green, blue], each from 0 to 255, or one of "white", "black"',
    ),
    "interpolation": _one_of(Interpolation),
    "exact": (_truth, "true or false"),
    "channels": _one_of(ChannelOrder),
    "layout": _one_of(Layout),
    "scale": (_positive, "a number above 0"),
    "mean": (_per_channel(_number), "a list of 3 numbers, or 1 for grey"),
    "std": (_per_channel(_positive), "a list of 3 numbers above 0, or 1 for grey"),
    "output": _output_kinds(),
    "scores": (_text, "the name of an output, or of a value inside the model"),
    "labels": (_label_path, "the path of a file of labels, one per line, or in JSON, YAML or CSV"),
    "precision": _one_of(Precision),
    "max_batch": (_batch, f"a whole number of images, 1 to {LARGEST_BATCH}"),
    "timeout_ms": (_positive, "a number of milliseconds above 0"),
    "priority": (_level, f"a whole number, 1 to {LOWEST_PRIORITY}"),
    "embedding": (_text, 'the name of a node, or "none"'),
}
CHOICES = {"channels", "scale", "mean", "std"}
"""A preset counts as chosen, and not as guessed, if one of these keys is set."""
BESIDE_PIXELS = {
    "exact",
    "frames",
    "sampling",
    "stride",
    "layout",
    "labels",
    "output",
    "scores",
    "precision",
    "max_batch",
    "timeout_ms",
    "priority",
    "embedding",
}
"""The keys that a preset does not override."""


def parse_keys(source: str, table: Mapping[str, object], folder: Path = Path()) -> dict[str, Any]:
    """Return the checked values of a file or of flags, with `size` replaced by height and width.

    The path of a label file is relative to `folder`. Raises PreprocessingError, whose message names
    `source`.
    """
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in KEYS:
            raise PreprocessingError(
                f"{source}: unknown key {key!r}; the keys are {', '.join(KEYS)}{_meant(key, KEYS)}"
            )
        parse, right = KEYS[key]
        try:
            values[key] = parse(value)
        except (KeyError, ValueError):
            shown = str(value) if isinstance(value, Path) else _BRIEF.repr(value)
            meant = _meant(shown.strip("'"), EVERY_PRESET) if key == "preset" else ""
            raise PreprocessingError(
                f"{source}: {key} = {shown} is not allowed; it must be {right}{meant}"
            ) from None
    if "size" in values:
        if "height" in values or "width" in values:
            raise PreprocessingError(f"{source}: set either size, or height and width, not both")
        values["height"] = values["width"] = values.pop("size")
    if "resize" in values and "crop_pct" in values:
        raise PreprocessingError(f"{source}: set either resize or crop_pct, not both")
    if "labels" in values:
        values["labels"] = read_label_file(folder / values["labels"], source)
    return values


def _meant(word: str, names: Collection[str]) -> str:
    """Return the end of an error message that suggests a similar name, such as ". Did you mean
    size?". Return "" if no name is similar."""
    longer = (name for name in names if name.startswith(f"{word}."))
    near = [*longer, *get_close_matches(word, names, n=1)]
    return f". Did you mean {near[0]}?" if near else ""
