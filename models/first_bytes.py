"""Recognises the kind of a file by its first bytes."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Signature(NamedTuple):
    """Describes a file format by the bytes that its files contain at fixed offsets."""

    name: str
    marks: Mapping[int, bytes]

    def begins(self, data: bytes) -> bool:
        """Return whether the file's first bytes match this signature."""
        return all(data.startswith(mark, at) for at, mark in self.marks.items())


def name_of(data: bytes, kinds: Iterable[Signature]) -> str:
    """Return the name of the first file format whose signature matches `data`, or "" if none
    matches."""
    return next((kind.name for kind in kinds if kind.begins(data)), "")
