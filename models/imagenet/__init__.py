"""Lists the 1000 classes of the ImageNet challenge (ILSVRC 2012) in the order that models use."""

from functools import cache
from pathlib import Path

CLASSES = 1000


@cache
def labels() -> tuple[str, ...]:
    """Return the label of each class. A few classes have the same label."""
    text = Path(__file__).with_name("labels.txt").read_text(encoding="utf-8")
    return tuple(text.splitlines())
