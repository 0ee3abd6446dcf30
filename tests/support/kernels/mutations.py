"""Kernels with one defect planted, to see whether the tests notice."""

import shutil
from pathlib import Path

from kernels.device.device import SOURCE_ROOT


def mutant(folder: Path, file: str, begin: int, end: int, new: str) -> Path:
    """All sources in `folder`, the characters from `begin` to `end` of one of them replaced."""
    root = shutil.copytree(SOURCE_ROOT, folder / "src")
    text = (root / file).read_text(encoding="utf-8")
    (root / file).write_text(text[:begin] + new + text[end:], encoding="utf-8")
    return root


def replaced(folder: Path, file: str, old: str, new: str, which: int = 0) -> Path:
    """Likewise, for one occurrence of `old`, the first being 0."""
    text = (SOURCE_ROOT / file).read_text(encoding="utf-8")
    begin = -1
    for _ in range(which + 1):
        begin = text.index(old, begin + 1)
    return mutant(folder, file, begin, begin + len(old), new)
