"""Compares two versions of a model by their answers to the same images."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from models import classes_of
from service.engine.ranking import probabilities
from service.errors import EngineFailedError
from service.hosting.model_info import ModelInfo
from service.hosting.recent import Example
from service.telemetry.metrics import Comparison


def compare(
    old: ModelInfo, before: Sequence[Example], new: ModelInfo, after: Sequence[Example]
) -> Comparison:
    """Compare the scores of two model versions for the same images.

    Compare them once with classes matched by index, because labels may have been corrected. Compare
    them again with classes matched by label, because the order of classes may have changed. Return
    the comparison with more agreement. An image whose scores are not finite counts as a
    disagreement.
    """
    if not after:
        return Comparison()
    classes = classes_of(before[0].scores.size), classes_of(after[0].scores.size)
    by_number = [np.arange(count) for count in classes]
    columns: dict[str, int] = {}  # of each class of either version
    by_label = [
        _columns(info, count, columns) for info, count in zip((old, new), classes, strict=True)
    ]
    compared = [_compare(old, before, new, after, *matched) for matched in (by_number, by_label)]
    return max(compared, key=lambda one: (one.agreement or 0, -(one.largest_change or 0)))


def relabelled(old: ModelInfo, new: ModelInfo) -> str:
    """Return a phrase that says how many classes have another label in the new version, or an empty
    string if all labels are the same."""
    pairs = list(zip(old.labels, new.labels, strict=False))
    changed = [f"{after!r} instead of {before!r}" for before, after in pairs if before != after]
    if not changed and len(old.labels) == len(new.labels):
        return ""
    count = max(len(old.labels), len(new.labels)) - len(pairs) + len(changed)
    what = f", for example {changed[0]}" if changed else ""
    return (
        f"{count} {'class has another label' if count == 1 else 'classes have other labels'}{what}"
    )


def _compare(
    old: ModelInfo,
    before: Sequence[Example],
    new: ModelInfo,
    after: Sequence[Example],
    olds: NDArray[np.intp],
    news: NDArray[np.intp],
) -> Comparison:
    """Compare scores whose classes have been matched. `olds` has a column number for each class of
    the old version, and `news` for each class of the new version. Matching classes have the same
    column."""
    count = int(max(olds.max(), news.max())) + 1
    same, largest = 0, 0.0
    for first, second in zip(before, after, strict=True):
        try:
            was = np.bincount(olds, probabilities(first.scores, old.output), count)
            now = np.bincount(news, probabilities(second.scores, new.output), count)
        except EngineFailedError:
            largest = 1.0
            continue
        # If several classes have the largest score, the version's answer is the first of them.
        same += int(olds[was[olds].argmax()] == news[now[news].argmax()])
        largest = max(largest, float(np.abs(was - now).max()))
    return Comparison(len(after), same / len(after), largest)


def _columns(info: ModelInfo, classes: int, columns: dict[str, int]) -> NDArray[np.intp]:
    """Return a column number for each class of a model. `columns` maps each label to its column.
    Labels that it lacks are added with new columns."""
    names = [*info.labels[:classes], *map(str, range(len(info.labels), classes))]
    return np.array([columns.setdefault(name, len(columns)) for name in names])
