"""Lists the 1000 classes of the ImageNet challenge (ILSVRC 2012) in the order that models use."""

from functools import cache
from pathlib import Path

CLASSES = 1000


@cache
def labels() -> tuple[str, ...]:
    """Return one label per class; a few classes have equal labels."""
    text = Path(__file__).with_name("labels.txt").read_text(encoding="utf-8")
    return tuple(text.splitlines())
