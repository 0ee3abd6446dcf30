"""Compares GPU architectures by compute capability, such as 75 for sm_75 and 90 for sm_90a."""

import re
from typing import NamedTuple


class Architectures(NamedTuple):
    """A range of architectures from `first` to `last`, both included."""

    first: int = 0
    last: int = 1000

    def includes(self, architecture: str) -> bool:
        """Return whether an `architecture` such as "90a" is in the range. "cusim" is in every
        range."""
        number = re.match(r"\d+", architecture)
        return number is None or self.first <= int(number[0]) <= self.last


ALL = Architectures()
