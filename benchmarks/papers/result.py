"""Defines a row of docs/papers.md: what a paper says, what Convoy has, and what shows it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, unique

Cells = Sequence[Sequence[str]]
"""A table as its headings and its rows."""

OURS = "python -m benchmarks.papers "
"""The command that prints one of this package's tables, by its name."""


@unique
class Status(Enum):
    """Says how Convoy's number compares with the paper's."""

    REPRODUCED = "reproduced"
    BETTER = "better"
    IN_PART = "in part"
    CONTRADICTED = "contradicted"
    NEEDS_GPU = "needs a GPU"


@dataclass(frozen=True, slots=True)
class Result:
    """Holds one result of a paper, at `where` in it, and Convoy's.

    `command` shows Convoy's number; `why` is the reason where that is in part or contradicted.
    Raises ValueError where either is missing.
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
            raise ValueError(f"{self.where}: no command shows {self.what}")
        if not self.why and self.status in (Status.IN_PART, Status.CONTRADICTED):
            raise ValueError(f"{self.where}: {self.what} is {self.status.value}, but why?")
