"""Finds labels in file names such as `tench/1.jpg`, `tench_1.jpg`, `n01440764_tench.JPEG`."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from service.hosting.presets import label_names, plain_words

_NUMBERED = re.compile(r"^n\d{8}[ _-]")


def names_of_labels(labels: Sequence[str]) -> Mapping[str, str]:
    """Return a mapping from each plain name to the label that contains it. A name in several labels
    maps to the first of them."""
    names: dict[str, str] = {}
    for label in labels:
        for name in label_names(label):
            names.setdefault(name, label)
    return names


def expected_of(file: Path, names: Mapping[str, str]) -> list[str]:
    """Return all names of the label after which a file, or its folder, is named.

    The folder's name is tried first. A file's name may continue after the label's name. The longest
    name that fits counts: `tiger_cat.jpg` is not a tiger. Returns an empty list if no name fits.
    """
    label = names.get(plain_words(file.absolute().parent.name))
    if label is None:
        words = plain_words(_NUMBERED.sub("", file.stem)).split()
        starts = (" ".join(words[:count]) for count in range(len(words), 0, -1))
        label = next((names[start] for start in starts if start in names), None)
    return [] if label is None else label_names(label)
