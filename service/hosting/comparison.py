"""Compares two versions of a model by their answers to the same images."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from service.engine.ranking import probabilities
from service.errors import EngineFailedError
from service.hosting.pipeline import ModelInfo
from service.hosting.recent import Example
from service.telemetry.metrics import Comparison


def compare(
    old: ModelInfo, before: Sequence[Example], new: ModelInfo, after: Sequence[Example]
) -> Comparison:
    """Compare the answers of two versions to the same images.

    Classes are matched by their labels, or by their numbers where they have none. Scores that are
    not finite agree with nothing.
    """
    if not after:
        return Comparison()
    columns: dict[str, int] = {}  # of each class of either version
    olds = _columns(old, before[0].scores.size, columns)
    news = _columns(new, after[0].scores.size, columns)
    same, largest = 0, 0.0
    for first, second in zip(before, after, strict=True):
        try:
            was = np.bincount(olds, probabilities(first.scores, old.output), len(columns))
            now = np.bincount(news, probabilities(second.scores, new.output), len(columns))
        except EngineFailedError:
            largest = 1.0
            continue
        # Of several largest the first of its version, which is the answer.
        same += int(olds[was[olds].argmax()] == news[now[news].argmax()])
        largest = max(largest, float(np.abs(was - now).max()))
    return Comparison(len(after), same / len(after), largest)


def _columns(info: ModelInfo, classes: int, columns: dict[str, int]) -> NDArray[np.intp]:
    """Return the column of each class by its name, and add columns for new names."""
    names = [*info.labels[:classes], *map(str, range(len(info.labels), classes))]
    return np.array([columns.setdefault(name, len(columns)) for name in names])
