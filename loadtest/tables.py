"""Prints tables to standard output, for `convoy loadtest` and other commands."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Column, Table
from rich.text import Text

_PIPED_WIDTH = 200

_GAP = 2  # between columns
_FOLDED = 24


def left(*headings: str) -> list[Column]:
    """Return left-aligned columns. Text that is too wide for its column is folded."""
    return [Column(heading, overflow="fold") for heading in headings]


def right(*headings: str) -> list[Column]:
    """Return right-aligned columns, for numbers."""
    return [Column(heading, justify="right", no_wrap=True) for heading in headings]


class WideTable:
    """A table without borders. If the terminal is too narrow for all columns, the last columns are
    printed in another part below.

    Each part of the table begins with the first column. Text is never cut off. It is folded
    instead, but not to fewer than _FOLDED characters. Cells are plain text, so [b] in a name is not
    markup.
    """

    def __init__(self, columns: Iterable[Column], rows: Iterable[Iterable[str]]) -> None:
        self._columns = list(columns)
        self._rows = [self._padded(tuple(map(Text, row))) for row in rows]

    def _padded(self, row: tuple[Text, ...]) -> tuple[Text, ...]:
        return row + (Text(),) * (len(self._columns) - len(row))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        """Yield the parts of the table."""
        widths = [self._width(index) for index in range(len(self._columns))]
        parts: list[list[int]] = [[0]]
        room = options.max_width - widths[0]
        for index, width in enumerate(widths[1:], start=1):
            if width + _GAP > room and len(parts[-1]) > 1:
                parts.append([0])
                room = options.max_width - widths[0]
            parts[-1].append(index)
            room -= width + _GAP
        for part in parts:
            table = Table(
                *(replace(self._columns[index]) for index in part),
                box=None,
                header_style="bold",
                pad_edge=False,
            )
            for row in self._rows:
                table.add_row(*(row[index] for index in part))
            yield table

    def _width(self, index: int) -> int:
        """Return the smallest number of characters that a column needs."""
        column = self._columns[index]
        header = column.header if isinstance(column.header, str) else ""
        width = max([len(header), *(row[index].cell_len for row in self._rows)])
        return width if column.no_wrap else min(width, _FOLDED)


def make_table(columns: Iterable[Column], rows: Iterable[Iterable[str]]) -> WideTable:
    """Return a table with these columns and rows, as an object that `print_table` prints."""
    return WideTable(columns, rows)


def print_table(table: RenderableType) -> None:
    """Print a table to standard output. If standard output is a pipe, the table is folded at 200
    characters instead of 80."""
    console = Console()
    console = console if console.is_terminal else Console(width=_PIPED_WIDTH)
    console.print(table)
