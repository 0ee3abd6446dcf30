"""Recognises the kind of a file by its first bytes."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Signature(NamedTuple):
    """Describes a kind of file by the bytes that its files have at some offsets."""

    name: str
    marks: Mapping[int, bytes]

    def begins(self, data: bytes) -> bool:
        """Return whether the file's first bytes have this signature."""
        return all(data.startswith(mark, at) for at, mark in self.marks.items())


def name_of(data: bytes, kinds: Iterable[Signature]) -> str:
    """Return the name of the first signature that matches a file's first bytes, or "" if none
    does."""
    return next((kind.name for kind in kinds if kind.begins(data)), "")
