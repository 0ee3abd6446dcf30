"""GPU architectures, by compute capability: 75 is sm_75, 90 is sm_90a."""

import re
from typing import NamedTuple


class Architectures(NamedTuple):
    """The architectures from `first` to `last`, both included."""

    first: int = 0
    last: int = 1000

    def includes(self, architecture: str) -> bool:
        """Return whether `architecture`, such as "90a", is one of them; "cusim" is one of all."""
        number = re.match(r"\d+", architecture)
        return number is None or self.first <= int(number[0]) <= self.last


ALL = Architectures()
