"""Defines what a reader returns of one file, and what readers share."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from models.errors import PreprocessingError

LARGEST_BATCH = 64  # of --max-batch
LOWEST_PRIORITY = 9

Keys = dict[str, object]
"""Keys of `model.toml`, unchecked."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Holds what one file says.

    `pixels` and `labels` are called only where they may be used. They raise PreprocessingError for
    what Convoy does not do, or cannot read.
    """

    file: Path
    pixels: Callable[[], Keys] | None = None
    labels: Callable[[], tuple[str, ...]] | None = None
    serving: Mapping[str, object] = field(default_factory=dict)  # max_batch, timeout_ms, priority
    ignored: tuple[str, ...] = ()


def read_text(path: Path, what: str = "") -> str:
    """Return the text of a file. Raises PreprocessingError, which says `what` cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        whole = f"{what} cannot be read from {path}" if what else f"{path} cannot be read"
        raise PreprocessingError(f"{whole}: {error}") from error


def named_by(source: Path, name: str) -> Path:
    """Return the file that another one names, which must be in its folder or below.

    Raises PreprocessingError: a file that was downloaded must not show others as labels.
    """
    path = source.parent / name
    if not path.resolve().is_relative_to(source.parent.resolve()):
        raise PreprocessingError(
            f"{source}: {name} is not in its folder; name the labels in model.toml, or by --labels"
        )
    return path


def read_json(path: Path) -> Mapping[str, object]:
    """Return a JSON file's object; another value counts as an empty one."""
    try:
        config = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise PreprocessingError(f"{path} cannot be read: {error}") from error
    return config if isinstance(config, dict) else {}


def read_label_file(path: Path, source: str = "") -> tuple[str, ...]:
    """Return the labels of a file, one a line; numbers 0, 1, 2, ... before all of them are cut off.

    `source` is the file that names it, if one does.
    """
    text = read_text(path, f"{source}: the labels" if source else "")
    labels = tuple(line.strip() for line in text.rstrip().split("\n"))
    if "" in labels:
        raise PreprocessingError(f"{path}: line {labels.index('') + 1} is empty; one label a line")
    parts = [label.partition(" ") for label in labels]
    if all(rest and number == str(i) for i, (number, _, rest) in enumerate(parts)):
        labels = tuple(rest.strip() for *_, rest in parts)
    return labels
