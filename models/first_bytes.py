"""Recognises kinds of files by the bytes with which they begin."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Signature(NamedTuple):
    """Names a kind of file, and its files' bytes at some offsets."""

    name: str
    marks: Mapping[int, bytes]

    def begins(self, data: bytes) -> bool:
        """Return whether a file begins like this kind."""
        return all(data.startswith(mark, at) for at, mark in self.marks.items())


def name_of(data: bytes, kinds: Iterable[Signature]) -> str:
    """Return the name of the first of these kinds that a file begins like, or "" if it begins like
    none."""
    return next((kind.name for kind in kinds if kind.begins(data)), "")
