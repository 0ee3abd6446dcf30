"""Defines the result of reading one file, and functions that several readers use."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeGuard

from models.errors import PreprocessingError

LARGEST_BATCH = 64  # of --max-batch
LOWEST_PRIORITY = 9
_LONGEST = 2**24  # file in characters; the labels of 20,000 classes take a tenth
_TOO_LONG = 2**16  # a side in pixels

Keys = dict[str, object]
"""Unchecked keys of `model.toml`."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Holds what one file says about a model.

    `pixels` and `labels` are called only where they may be used. They raise PreprocessingError for
    what Convoy does not do, or cannot read.
    """

    file: Path
    pixels: Callable[[], Keys] | None = None
    labels: Callable[[], tuple[str, ...]] | None = None
    serving: Mapping[str, object] = field(default_factory=dict)  # max_batch, timeout_ms, priority
    ignored: tuple[str, ...] = ()


def read_text(path: Path, what: str = "") -> str:
    """Return a file's text. Raises PreprocessingError saying that `what` cannot be read."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            text = file.read(_LONGEST + 1)
        if len(text) > _LONGEST:
            raise OSError(f"it has more than {_LONGEST} characters")
    except (OSError, UnicodeDecodeError) as error:
        whole = f"{what} cannot be read from {path}" if what else f"{path} cannot be read"
        raise PreprocessingError(f"{whole}: {error}") from error
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


def labels_by_number(path: Path, key: str, names: Mapping[str, object]) -> tuple[str, ...]:
    """Return the labels of a JSON object whose keys are the numbers of the classes."""
    labels = [names.get(str(number)) for number in range(len(names))]
    if not all(isinstance(label, str) for label in labels):
        raise PreprocessingError(f"{path}: {key} must have a label for each number from 0 on")
    return tuple(map(str, labels))


def read_label_file(path: Path, source: str = "") -> tuple[str, ...]:
    """Return the labels in a file with one label on each line.

    Where numbers 0, 1, 2, ... are before all of them, in any order, these are cut off and give the
    order. `source` is the file that names it, if one does.
    """
    text = read_text(path, f"{source}: the labels" if source else "")
    labels = tuple(line.strip() for line in text.rstrip().split("\n"))
    if "" in labels:
        raise PreprocessingError(f"{path}: line {labels.index('') + 1} is empty; one label a line")
    numbered = dict(pair for label in labels if len(pair := label.split(maxsplit=1)) == 2)
    numbers = [str(number) for number in range(len(labels))]
    return tuple(numbered[n] for n in numbers) if numbered.keys() == set(numbers) else labels
