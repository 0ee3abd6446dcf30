"""Compares two versions of a model by their answers to the same images."""

from collections.abc import Sequence

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
    same, largest = 0, 0.0
    for first, second in zip(before, after, strict=True):
        try:
            olds = _by_class(first, old)
            news = _by_class(second, new)
        except EngineFailedError:
            largest = 1.0
            continue
        same += max(olds, key=olds.__getitem__) == max(news, key=news.__getitem__)
        largest = max(largest, *(abs(olds.get(c, 0.0) - news.get(c, 0.0)) for c in olds | news))
    return Comparison(len(after), same / len(after) if after else 1.0, largest)


def _by_class(example: Example, info: ModelInfo) -> dict[str, float]:
    """Return each class's probability by the class's name."""
    found = probabilities(example.scores, info.output).tolist()
    names = info.labels or [str(index) for index in range(len(found))]
    shared: dict[str, float] = {}
    for number, probability in enumerate(found):
        name = names[number] if number < len(names) else str(number)
        shared[name] = shared.get(name, 0.0) + probability
    return shared
