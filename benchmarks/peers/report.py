"""Summarises the rows: medians with their spread, and where another server is better than Convoy.

The spread is from the least to the most of all rounds: where a second run's median should be.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.peers.catalogue import CONVOY, PEERS
from benchmarks.peers.comparison import CONNECTIONS, NOT_INSTALLED
from benchmarks.peers.fairness import UnfairError, differences
from benchmarks.peers.works import DIGITS, WORKS
from benchmarks.rows import Row, markdown

LOAD = 8
"""The number of connections whose rates the README shows."""

_ABOUT = {peer.name: peer.about for peer in PEERS}


@dataclass(frozen=True)
class Number:
    """Holds what a row says of one number in all rounds."""

    median: float
    least: float
    most: float

    def shown(self, digits: int) -> str:
        """Return the median with its spread."""
        return f"{self.median:,.{digits}f} ({self.least:,.{digits}f}–{self.most:,.{digits}f})"


@dataclass(frozen=True)
class Column:
    """Describes a number that is compared."""

    key: str
    heading: str
    digits: int
    most_is_best: bool = False


RATE = Column("requests_a_second", "requests/s", 0, most_is_best=True)
P50 = Column("p50_ms", "p50 ms", 2)
P99 = Column("p99_ms", "p99 ms", 1)
CPU = Column("cpu_ms", "CPU ms a request", 2)
COLUMNS = (
    *(RATE, P50, P99, CPU),
    Column("switches", "switches a request", 1),
    Column("memory_mb", "MB", 0),
    Column("threads", "threads", 0),
)

JUDGED = (RATE, P50, CPU)
"""Of what it is told where another server is better."""


def number(row: Row, column: Column) -> Number:
    """Return the median and the spread of a number over the rounds."""
    values = row[column.key]
    return Number(statistics.median(values), min(values), max(values))


def find(rows: Sequence[Row], server: str, work: str, connections: int) -> Row | None:
    """Return a server's row, or None if it was not measured."""
    named = (server, work, connections)
    for row in rows:
        if (row["server"], row["work"], row["connections"]) == named and "error" not in row:
            return row
    return None


def losses(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each work and number of connections in which another server is better: its
    median is better than all of Convoy's rounds."""
    for work in WORKS:
        for connections in CONNECTIONS:
            ours = find(rows, CONVOY.name, work, connections)
            if ours is None:
                continue
            said = []
            for column in JUDGED:
                own = number(ours, column)
                theirs = [
                    (number(row, column).median, row["server"])
                    for peer in PEERS
                    if (row := find(rows, peer.name, work, connections))
                ]
                if not theirs:
                    continue
                best, name = max(theirs) if column.most_is_best else min(theirs)
                if best > own.most if column.most_is_best else best < own.least:
                    values = f"{best:,.{column.digits}f} beside {own.median:,.{column.digits}f}"
                    said.append(f"{column.heading} {values} ({name})")
            if said:
                yield f"{WORKS[work]}; {_plural(connections)}: {', '.join(said)}"


def _plural(connections: int) -> str:
    return f"{connections} connection{'s' if connections > 1 else ''}"


def shown(rows: Sequence[Row]) -> str:
    """Return whether the comparison is fair, a table for each work and number of connections, what
    failed, and where another server is better."""
    parts = [f"UNFAIR: {sentence}" for sentence in differences(rows)]
    for work, title in WORKS.items():
        for connections in CONNECTIONS:
            found = [r for r in rows if (r["work"], r["connections"]) == (work, connections)]
            if found:
                headings = ("", "best setting", *(column.heading for column in COLUMNS))
                table = markdown(headings, *map(_cells, found))
                parts.append(f"{title}; {_plural(connections)}\n\n{table}")
    parts.append(f"Start and memory, digits:\n\n{_starts(rows)}")
    reasons = {(row["server"], row["work"], row["error"]) for row in rows if "error" in row}
    reasons |= {
        (f"{row['server']}, {setting}", row["work"], reason)
        for row in rows
        for setting, reason in row.get("failed", {}).items()
    }
    parts += [f"{server}, {work}: {reason}" for server, work, reason in sorted(reasons)]
    return "\n\n".join([*parts, BETTER, _losses(rows)])


BETTER = "Where another server is better than every round of Convoy:"


def _losses(rows: Sequence[Row]) -> str:
    return "\n".join(f"- {line}" for line in losses(rows)) or "- nowhere"


def _cells(row: Row) -> list[str]:
    if "error" in row:
        missing = row["error"].startswith(NOT_INSTALLED)
        return [row["server"], "not installed" if missing else "failed", *[""] * len(COLUMNS)]
    values = (number(row, column).shown(column.digits) for column in COLUMNS)
    return [_named(row), row["setting"], *values]


def _named(row: Row) -> str:
    about = _ABOUT.get(row["server"], "")
    name = f"{row['server']} {row['version']}".strip()
    return f"{name} ({about})" if about else name


def _starts(rows: Sequence[Row]) -> str:
    measured = _measured(rows, DIGITS, LOAD)
    return markdown(("", *_STARTS), *((_named(row), *_start(row)) for row in measured))


_STARTS = (
    "s to the first right answer",
    "MB idle",
    "MB under load",
    "threads",
    "switches a request",
    "MB installed",
)


def _start(row: Row) -> list[str]:
    memory, threads, switches = (
        statistics.median(row[name]) for name in ("memory_mb", "threads", "switches")
    )
    return [
        f"{row['start_s']:.1f}",
        f"{row['idle_mb']:.0f}",
        f"{memory:.0f}",
        f"{threads:.0f}",
        f"{switches:.1f}",
        f"{row['installed_mb']:.0f}",
    ]


def _measured(rows: Sequence[Row], work: str, connections: int) -> list[Row]:
    servers = dict.fromkeys(row["server"] for row in rows)
    return [row for name in servers if (row := find(rows, name, work, connections))]


def readme_table(rows: Sequence[Row]) -> str:
    """Return the last record in Markdown: where another server is better first, then its tables.

    Raises UnfairError if servers were measured under different conditions.
    """
    if not rows:
        return "Nothing has been measured yet."
    rows = [row for row in rows if row["date"] == rows[-1]["date"]]
    unfair = differences(rows)
    if unfair:
        raise UnfairError("; ".join(unfair))
    last = rows[-1]
    works = [work for work in WORKS if any(row["work"] == work for row in rows)]
    servers = list(dict.fromkeys(row["server"] for row in rows))
    names = {row["server"]: _named(row) for row in rows if "error" not in row}

    def table(connections: int, *columns: Column) -> str:
        lines = []
        for server in servers:
            cells = []
            for work in works:
                row = find(rows, server, work, connections)
                cells.append(
                    "<br>".join(number(row, c).shown(c.digits) for c in columns)
                    if row
                    else "not measured"
                )
            lines.append((names.get(server, server), *cells))
        return markdown(("", *(WORKS[work] for work in works)), *lines)

    return "\n\n".join(
        [
            f"{last['cpu']}, {last['cores']} cores shared by server and clients, load "
            f"{last['load_average']} before, ONNX Runtime {last['onnxruntime']} without telemetry "
            f"in every server, {last['date'][:10]}, {_tree(last['commit'])}. Each server is at the "
            f"best of its settings; medians of {last['rounds']} alternating rounds of "
            f"{last['seconds_a_round']:g} s, with the least and the most of them.",
            BETTER,
            _losses(rows),
            f"Requests per second, and p99 in ms, with {LOAD} connections:",
            table(LOAD, RATE, P99),
            "p50 in ms with 1 connection, and CPU milliseconds a request of all of a server's "
            "processes:",
            table(1, P50, CPU),
            "Start and memory, digits:",
            _starts(rows),
        ]
    )


def _tree(commit: str) -> str:
    """Return a phrase that names the sources that were measured."""
    if commit.endswith("+"):
        return f"commit {commit[:-1]} with changes that were not committed"
    return f"commit {commit}"
