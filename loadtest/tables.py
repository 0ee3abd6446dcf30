"""Prints tables to standard output, also those of `convoy classify`, `inspect` and `tune`."""

from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.table import Column, Table
from rich.text import Text

_PIPED_WIDTH = 200


def left(*headings: str) -> list[Column]:
    """Return columns of text, which is folded where it is too wide."""
    return [Column(heading, overflow="fold") for heading in headings]


def right(*headings: str) -> list[Column]:
    """Return columns of numbers, aligned to the right."""
    return [Column(heading, justify="right", no_wrap=True) for heading in headings]


def make_table(columns: Iterable[Column], rows: Iterable[Iterable[str]]) -> Table:
    """Return a table without borders, whose cells are plain text: [b] in a name is no markup."""
    table = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def print_table(table: RenderableType) -> None:
    """Print to standard output; a pipe gets 200 columns, where a terminal would fold at 80."""
    console = Console()
    console = console if console.is_terminal else Console(width=_PIPED_WIDTH)
    console.print(table)
