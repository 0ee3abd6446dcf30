"""Defines the result of reading one file, and functions that several readers use."""

import json
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeGuard

from models.errors import PreprocessingError

LARGEST_BATCH = 64  # of --max-batch
LOWEST_PRIORITY = 9
LONGEST = 2**24  # of a file in characters; the labels of 20,000 classes take a tenth
_TOO_LONG = 2**16  # a side in pixels

Keys = dict[str, object]
"""Unchecked keys of `model.toml`."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Holds what one file says about a model.

    `pixels` and `labels` are called only where they may be used. They raise PreprocessingError for
    a content that Convoy does not support or cannot read.
    """

    file: Path
    pixels: Callable[[], Keys] | None = None
    labels: Callable[[], tuple[str, ...]] | None = None
    # Keys beside the pixels': max_batch, timeout_ms, priority, height, width, output.
    serving: Mapping[str, object] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()  # sentences on what contradicts the model
    unclear: str = ""  # why a model is refused whose output nothing else says


def read_text(path: Path, what: str = "", longest: int = LONGEST) -> str:
    """Return a file's text, in UTF-8 or, if it says so, in UTF-16, which Windows writes.

    Raises PreprocessingError saying that `what` cannot be read.
    """
    try:
        with path.open("rb") as binary:
            is_wide = binary.read(2) in (BOM_UTF16_LE, BOM_UTF16_BE)
        with path.open(encoding="utf-16" if is_wide else "utf-8-sig") as file:
            text = file.read(longest + 1)
        if len(text) > longest:
            raise OSError(f"it has more than {longest} characters")
    except (OSError, UnicodeError) as error:
        whole = f"{what} cannot be read from {path}" if what else f"{path} cannot be read"
        why: object = getattr(error, "strerror", None) or error  # without the path once more
        if isinstance(error, UnicodeError):
            why = "it is not text in UTF-8; save it as that"
        raise PreprocessingError(f"{whole}: {why}") from error
    return text


def named_by(source: Path, name: str) -> Path:
    """Return the file that another file names; it must lie in that file's folder or below.

    Raises PreprocessingError: a file that was downloaded must not show others as labels.
    """
    path = source.parent / name
    if not path.resolve().is_relative_to(source.parent.resolve()):
        raise PreprocessingError(
            f"{source}: {name} is not in its folder; name the labels in model.toml, or by --labels"
        )
    return path


def read_json(path: Path) -> Mapping[str, object]:
    """Return the object in a JSON file, or an empty one if the file holds another value."""
    try:
        config = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise PreprocessingError(f"{path} cannot be read: {error}") from error
    return config if isinstance(config, dict) else {}


def is_side(value: object) -> TypeGuard[int]:
    """Return whether a value is a number of pixels."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < _TOO_LONG
