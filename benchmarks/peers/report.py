"""Summarises the recorded results. The cases in which another server is better than Convoy (losses)
come first. Medians with their spread follow.

The spread is the range in which the median of a second run is expected. It is computed from the
differences between the rounds. The README has the losses and a small table; docs/comparison.md has
all results.
"""

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.peers.catalogue import CONVOY, MOSEC, PEERS, TRITON
from benchmarks.peers.comparison import CONNECTIONS, NOT_INSTALLED
from benchmarks.peers.fairness import UnfairError, differences
from benchmarks.peers.works import DIGITS, WORKS
from benchmarks.rows import Row, markdown

LOAD = 8
"""The number of connections of the rows that provide start time and memory, and that decide which
of the other servers is best."""

# With ten normally distributed rounds, one median in 3000 lies further away. A run has 200 medians.
_DEVIATIONS = 5

ALWAYS = (CONVOY, TRITON, MOSEC)
"""The servers in the README's table, which also has the best of the others."""

NOTHING = "Nothing has been measured yet."

_ABOUT = {peer.name: peer.about for peer in PEERS}


@dataclass(frozen=True)
class Number:
    """A result, such as requests per second: its median over all rounds, and the spread of this
    median."""

    median: float
    low: float
    high: float

    def shown(self, digits: int) -> str:
        """Return the median and its spread as text."""
        return f"{self.median:,.{digits}f} ({self.low:,.{digits}f}–{self.high:,.{digits}f})"


@dataclass(frozen=True)
class Column:
    """Describes a column of the tables: a result, such as p50, that is compared between servers."""

    key: str
    heading: str
    digits: int
    most_is_best: bool = False

    def shown(self, value: float) -> str:
        """Return a value as text, with the column's number of digits."""
        return f"{value:,.{self.digits}f}"

    def best(self, values: Iterable[tuple[float, str]]) -> tuple[float, str]:
        """Return the best of several values, and the server that has it."""
        return max(values) if self.most_is_best else min(values)


RATE = Column("requests_a_second", "requests/s", 0, most_is_best=True)
P50 = Column("p50_ms", "p50 ms", 2)
P99 = Column("p99_ms", "p99 ms", 1)
CPU = Column("cpu_ms", "CPU ms per request", 2)
COLUMNS = (
    *(RATE, P50, P99, CPU),
    Column("switches", "switches per request", 1),
    Column("memory_mb", "MB", 0),
    Column("threads", "threads", 0),
)

JUDGED = (RATE, P50, CPU)
"""The numbers in which another server may be better."""


def number(row: Row, column: Column) -> Number:
    """Return the median and the spread of one column, computed from the rounds of a row.

    Let s be the standard deviation of the logarithms of the rounds. If the logarithms are normally
    distributed, the difference between the medians of two runs of n rounds has the standard
    deviation √(π/n)·s (Kenney and Keeping 1962, section 3.5). On each side of the median, the
    spread is _DEVIATIONS times as wide as this standard deviation.
    """
    values = row[column.key]
    median = statistics.median(values)
    if min(values) <= 0 or len(values) < 2:  # for example, no switch in a round
        return Number(median, min(values), max(values))
    deviation = statistics.stdev(map(math.log, values)) * math.sqrt(math.pi / len(values))
    times = math.exp(_DEVIATIONS * deviation)
    return Number(median, median / times, median * times)


def find(rows: Sequence[Row], server: str, work: str, connections: int) -> Row | None:
    """Return the row of results of one server, or None if the server was not measured."""
    named = (server, work, connections)
    for row in rows:
        if (row["server"], row["work"], row["connections"]) == named and "error" not in row:
            return row
    return None


def latest(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the last recording of each work. Raises UnfairError if the servers of a
    recording had different conditions."""
    dates = {row["work"]: row["date"] for row in rows}
    last = [row for row in rows if row["date"] == dates[row["work"]]]
    if unfair := differences(last):
        raise UnfairError("; ".join(unfair))
    return last


def losses(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each workload in which another server has a better median than Convoy at the
    same number of connections."""
    for work, title in WORKS.items():
        said = [
            f"{_plural(connections)}: {'; '.join(lost)}"
            for connections in CONNECTIONS
            if (lost := list(_lost(rows, work, connections)))
        ]
        if said:
            yield f"{title}. {'. '.join(said)}"


def _lost(rows: Sequence[Row], work: str, connections: int) -> Iterator[str]:
    """Yield a text for each column in which another server has a better median than Convoy. The
    text compares Convoy with the best server."""
    ours = find(rows, CONVOY.name, work, connections)
    theirs = [
        row for peer in PEERS if (row := find(rows, peer.name, work, connections)) is not None
    ]
    if ours is None or not theirs:
        return
    for column in JUDGED:
        own = number(ours, column).median
        best, name = column.best((number(row, column).median, row["server"]) for row in theirs)
        if best > own if column.most_is_best else best < own:
            values = f"{column.shown(best)} ({name}), {column.shown(own)} (Convoy)"
            yield f"{column.heading} {values}"


def _plural(connections: int) -> str:
    return f"{connections} connection{'s' if connections > 1 else ''}"


BETTER = "Another server has a better median in these cases:"


def _losses(rows: Sequence[Row]) -> str:
    return "\n".join(f"- {line}" for line in losses(rows)) or "- nowhere"


def shown(rows: Sequence[Row]) -> str:
    """Return the text to print: whether the comparison is fair, and all measurements."""
    return "\n\n".join([*(f"UNFAIR: {each}" for each in differences(rows)), *_all_of_it(rows)])


def _all_of_it(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the parts of the report: the losses, a table for each work and number of connections, a
    table of start times and memory, and the failures."""
    yield f"{BETTER}\n\n{_losses(rows)}"
    for work, title in WORKS.items():
        for connections in CONNECTIONS:
            found = [r for r in rows if (r["work"], r["connections"]) == (work, connections)]
            if found:
                headings = ("server", "best setting", *(column.heading for column in COLUMNS))
                table = markdown(headings, *map(_cells, found))
                yield f"{title}; {_plural(connections)}:\n\n{table}"
    if starts := [_start(row) for row in rows if _starts(row)]:
        yield f"Start and memory, digits:\n\n{markdown(('server', *_STARTS), *starts)}"
    reasons = {(row["server"], row["work"], row["error"]) for row in rows if "error" in row}
    reasons |= {
        (f"{row['server']}, {setting}", row["work"], reason)
        for row in rows
        for setting, reason in row.get("failed", {}).items()
    }
    if reasons:
        yield "\n".join(f"- {server}, {work}: {why}" for server, work, why in sorted(reasons))


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


_STARTS = (
    "s to the first right answer",
    "MB idle",
    "MB under load",
    "threads",
    "switches per request",
    "MB installed",
)


def _starts(row: Row) -> bool:
    return (row["work"], row["connections"]) == (DIGITS, LOAD) and "error" not in row


def _start(row: Row) -> list[str]:
    memory, threads, switches = (
        statistics.median(row[name]) for name in ("memory_mb", "threads", "switches")
    )
    return [
        _named(row),
        f"{row['start_s']:.1f}",
        f"{row['idle_mb']:.0f}",
        f"{memory:.0f}",
        f"{threads:.0f}",
        f"{switches:.1f}",
        f"{row['installed_mb']:.0f}",
    ]


def page(rows: Sequence[Row]) -> str:
    """Return the text for docs/comparison.md, with all results of the last recording of each work.
    Raises UnfairError."""
    last = latest(rows)
    if not last:
        return NOTHING
    conditions: dict[str, list[str]] = {}
    for row in last:
        titles = conditions.setdefault(_conditions(row), [])
        if WORKS[row["work"]] not in titles:
            titles.append(WORKS[row["work"]])
    told = (f"- {'; '.join(titles)}: {about}" for about, titles in conditions.items())
    about = "Medians of alternating rounds; brackets have the range expected for another run:"
    return "\n\n".join([about, "\n".join(told), *_all_of_it(last)])


def _conditions(row: Row) -> str:
    return (
        f"{row['rounds']} rounds of {row['seconds_a_round']:g} s, {row['cpu']}, {row['cores']} "
        f"cores shared by server and clients, load average {row['load_average']} before, ONNX "
        f"Runtime {row['onnxruntime']}, {row['date'][:10]}, {_tree(row['commit'])}"
    )


def readme_table(rows: Sequence[Row]) -> str:
    """Return the text for the README: the losses, and a table for the digits with Convoy, Triton,
    mosec and the best of the other servers. Raises UnfairError."""
    last = latest(rows)
    if not last:
        return NOTHING
    about = next((row for row in last if row["work"] == DIGITS), last[-1])
    first = (
        f"{about['cpu']}, {about['cores']} cores shared by server and clients, "
        f"{about['date'][:10]}, {_tree(about['commit'])}. {BETTER}"
    )
    names = [peer.name for peer in ALWAYS]
    others = [
        row
        for row in last
        if (row["work"], row["connections"]) == (DIGITS, LOAD)
        and row["server"] not in names
        and "error" not in row
    ]
    if others:
        _, best = RATE.best((number(row, RATE).median, row["server"]) for row in others)
        names.append(best)
    lines = []
    for name in names:
        found = [find(last, name, DIGITS, connections) for connections in CONNECTIONS]
        told = next((_named(row) for row in found if row), name)
        best = f"{told}, the best of {len(others)} others" if name == names[-1] and others else told
        lines.append((best, *map(_judged, found)))
    headings = (f"{WORKS[DIGITS]}: {_JUDGED}", *map(_plural, CONNECTIONS))
    return "\n\n".join([first, _losses(last), markdown(headings, *lines)])


_JUDGED = " / ".join(column.heading for column in JUDGED)


def _judged(row: Row | None) -> str:
    if row is None:
        return "not measured"
    return " / ".join(column.shown(number(row, column).median) for column in JUDGED)


def moved(rows: Sequence[Row]) -> Iterator[str]:
    """Compare the last two recordings of each work. Yield a line for each median of the last
    recording that lies outside the spread of the previous recording. Servers whose best setting has
    changed are left out."""
    for work in WORKS:
        dates = list(dict.fromkeys(row["date"] for row in rows if row["work"] == work))
        if len(dates) < 2:
            continue
        before, after = ([r for r in rows if r["date"] == date] for date in dates[-2:])
        for row in after:
            server, connections = row["server"], row["connections"]
            old = find(before, server, work, connections)
            if row["work"] != work or "error" in row or old is None:
                continue
            if row["setting"] != old["setting"]:  # the spread belongs to another setting
                continue
            for column in JUDGED:
                spread, now = number(old, column), number(row, column).median
                if not spread.low <= now <= spread.high:
                    yield (
                        f"{WORKS[work]}; {_plural(connections)}: {server}, {column.heading} "
                        f"{column.shown(now)}; preceding recording {spread.shown(column.digits)}"
                    )


def _tree(commit: str) -> str:
    """Return a phrase that names the version of the source code that was measured."""
    if commit.endswith("+"):
        return f"commit {commit[:-1]} with changes that were not committed"
    return f"commit {commit}"
