"""Defines the result of reading one file, and functions that several readers share."""

import json
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeGuard

from models.errors import PreprocessingError

LARGEST_BATCH = 64  # the largest value of --max-batch
LOWEST_PRIORITY = 9
LONGEST = 2**24  # the most characters of a file; the labels of 20,000 classes take a tenth
_TOO_LONG = 2**16  # a side in pixels

Keys = dict[str, object]
"""Unchecked keys of `model.toml`."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The information about a model that one file contains.

    `pixels` and `labels` are functions, which are called only if their result may be used. They
    raise PreprocessingError if Convoy cannot read or does not support the file's contents.
    """

    file: Path
    pixels: Callable[[], Keys] | None = None
    labels: Callable[[], tuple[str, ...]] | None = None
    # Keys that do not concern pixels: max_batch, timeout_ms, priority, height, width, output.
    serving: Mapping[str, object] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()  # sentences about contradictions to the model
    unclear: str = ""  # why the model is refused if no source names its output


def read_text(path: Path, what: str = "", longest: int = LONGEST) -> str:
    """Return the text of a file in UTF-8, or in UTF-16 with a byte order mark, as Windows writes
    it.

    Raises PreprocessingError, whose message says that `what` cannot be read.
    """
    try:
        if not (path.is_file() or path.is_dir()) and path.exists():  # a pipe may never end
            raise OSError("it is not a regular file")
        with path.open("rb") as binary:
            is_wide = binary.read(2) in (BOM_UTF16_LE, BOM_UTF16_BE)
        with path.open(encoding="utf-16" if is_wide else "utf-8-sig") as file:
            text = file.read(longest + 1)
        if len(text) > longest:
            raise OSError(f"it has more than {longest} characters, which is the limit")
    except (OSError, UnicodeError) as error:
        whole = f"{what} cannot be read from {path}" if what else f"{path} cannot be read"
        why: object = getattr(error, "strerror", None) or error  # without repeating the path
        if isinstance(error, UnicodeError):
            why = "it is not UTF-8 text; save it in this encoding"
        raise PreprocessingError(f"{whole}: {why}") from error
    return text


def named_by(source: Path, name: str) -> Path:
    """Return the path of a file to which the file `source` refers.

    Raises PreprocessingError if the path is outside the folder of `source`, because a downloaded
    file must not expose other files as labels.
    """
    path = source.parent / name
    if not path.resolve().is_relative_to(source.parent.resolve()):
        raise PreprocessingError(
            f"{source} names {name}, which is outside its folder; set labels in model.toml, or pass"
            " --labels"
        )
    return path


def read_json(path: Path) -> Mapping[str, object]:
    """Return the object in a JSON file, or an empty mapping if the file contains no object."""
    try:
        config = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise PreprocessingError(f"{path} cannot be read: {error}") from error
    return config if isinstance(config, dict) else {}


def is_side(value: object) -> TypeGuard[int]:
    """Return whether a value is a valid height or width in pixels."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < _TOO_LONG
