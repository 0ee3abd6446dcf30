"""Defines a row of docs/papers.md: a paper's result, Convoy's result, and the command that prints
Convoy's result."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, unique

Cells = Sequence[Sequence[str]]
"""A table: first its headings, then its rows."""

OURS = "python -m benchmarks.papers "
"""The command that prints one of this package's tables. The table's name follows."""


@unique
class Status(Enum):
    """Lists the possible results of comparing Convoy's number with the paper's."""

    REPRODUCED = "reproduced"
    BETTER = "better"
    IN_PART = "in part"
    CONTRADICTED = "contradicted"
    NEEDS_GPU = "needs a GPU"


@dataclass(frozen=True, slots=True)
class Result:
    """Holds one result of a paper, found at `where` in the paper, and Convoy's result.

    `command` is the command line that prints Convoy's number. `why` gives the reason if Convoy
    reproduces the result only in part, or contradicts it. Raises ValueError if `command` or a
    needed `why` is missing.
    """

    where: str
    what: str
    theirs: str
    ours: str
    status: Status
    command: str
    why: str = ""

    def __post_init__(self) -> None:
        if not self.command:
            raise ValueError(f"{self.where}: add the command that shows {self.what}")
        if not self.why and self.status in (Status.IN_PART, Status.CONTRADICTED):
            raise ValueError(f"{self.where}: {self.what} is {self.status.value}; say why")
