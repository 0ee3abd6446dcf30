"""Summarises the rows: Convoy beside each peer's best, and which promises are kept."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.peers.catalogue import LITSERVE, PEERS, PROTOCOL
from benchmarks.peers.comparison import CONNECTIONS, NOT_INSTALLED, WORKS
from benchmarks.rows import Row
from benchmarks.serving.targets import CONVOY

# What the project promises, under load.
LOAD = max(CONNECTIONS)
AT_LEAST = 5.0


@dataclass(frozen=True)
class Best:
    """Holds a server's best numbers, which may come from different settings."""

    requests_a_second: float
    p99_ms: float


@dataclass(frozen=True)
class Standing:
    """Compares Convoy's numbers under load with a server's best."""

    ratio: float  # of requests a second
    p99_ms: float
    their_p99_ms: float

    @property
    def kept(self) -> bool:
        """Return whether the promise about LitServe is kept."""
        return self.ratio >= AT_LEAST and self.p99_ms < self.their_p99_ms


def best(rows: Sequence[Row], server: str, work: str, connections: int) -> Best | None:
    """Return a server's best numbers for one kind of work, or None if it has none."""
    measured = [
        row
        for row in rows
        if (row["server"], row["work"], row["connections"]) == (server, work, connections)
        and "error" not in row
    ]
    if not measured:
        return None
    return Best(
        max(row["requests_a_second"] for row in measured), min(row["p99_ms"] for row in measured)
    )


def standing(rows: Sequence[Row], server: str, work: str, connections: int) -> Standing | None:
    """Return the comparison of Convoy with a server's best, or None if either has no numbers."""
    ours, theirs = (best(rows, name, work, connections) for name in (CONVOY, server))
    if ours is None or theirs is None:
        return None
    ratio = ours.requests_a_second / theirs.requests_a_second
    return Standing(ratio, ours.p99_ms, theirs.p99_ms)


def verdicts(rows: Sequence[Row]) -> list[str]:
    """Return lines that say for each kind of work whether the promise is kept, and how other
    servers compare."""
    lines = []
    works = [work for work in WORKS if any(row["work"] == work for row in rows)]
    for work in works:
        found = standing(rows, LITSERVE.name, work, LOAD)
        promise = (
            f"at least {AT_LEAST:g} times {LITSERVE.name}'s requests/s and a lower p99, {work}"
        )
        if found is None:
            lines.append(f"not measured: {promise}")
            continue
        verdict = "met" if found.kept else "NOT MET"
        lines.append(f"{verdict}: {promise}, {LOAD} connections: {_told(found)}")
    for server in dict.fromkeys(row["server"] for row in rows):
        for work in works:
            if server in (CONVOY, LITSERVE.name):
                continue
            found = standing(rows, server, work, LOAD)
            lines.append(f"{server}, {work}: {_told(found) if found else 'not measured'}")
    return lines


def _told(found: Standing) -> str:
    return (
        f"{found.ratio:.1f} times the requests/s, "
        f"p99 {found.p99_ms:.2f} ms against {found.their_p99_ms:.2f} ms"
    )


def readme_table(rows: Sequence[Row]) -> str:
    """Return the last record in Markdown: its conditions, and each server's best under load."""
    rows = [row for row in rows if row["date"] == rows[-1]["date"]]
    last = rows[-1]
    packages = {peer.name: peer.package for peer in PEERS}
    lines = [f"| | {' | '.join(WORKS.values())} |", "| --- |" + " --- |" * len(WORKS)]
    for server in dict.fromkeys(row["server"] for row in rows):
        cells = []
        for work in WORKS:
            found = best(rows, server, work, LOAD)
            cells.append(
                f"{found.requests_a_second:.0f}/s, {found.p99_ms:.1f} ms"
                if found
                else "not measured"
            )
        versions = next(row.get("versions", {}) for row in rows if row["server"] == server)
        name = f"{server} {versions.get(packages.get(server), '')}".strip()
        lines.append(f"| {name} | {' | '.join(cells)} |")
    unmeasured = _unmeasured(rows)
    return (
        f"Requests per second and p99 with {LOAD} connections, each server at the best of several "
        f"settings; {last['cpu']}, {last['cores']} cores shared by server and clients, "
        f"ONNX Runtime {last['onnxruntime']}, {last['date'][:10]}, {_tree(last['commit'])}:\n\n"
        + "\n".join(lines)
        + (f"\n\nNot measured yet: {'; '.join(unmeasured)}." if unmeasured else "")
    )


def _tree(commit: str) -> str:
    """Return a phrase that names the sources that were measured."""
    if commit.endswith("+"):
        return f"commit {commit[:-1]} with changes that were not committed"
    return f"commit {commit}"


def _unmeasured(rows: Sequence[Row]) -> list[str]:
    """Return the settings of servers without a number, which failed or were added later."""
    measured = {(row["server"], row["setting"]) for row in rows if "error" not in row}
    lacking = {
        peer.name: [s.name for s in peer.settings if (peer.name, s.name) not in measured]
        for peer in PEERS
        if any(row["server"] == peer.name and "error" not in row for row in rows)
    }
    return [f"{name} with {', or '.join(found)}" for name, found in lacking.items() if found]


def show(rows: Sequence[Row], console: Console) -> None:
    """Print a table of all settings for each kind of work and number of connections, with Convoy's
    ratios."""
    for work, title in WORKS.items():
        for connections in CONNECTIONS:
            shown = [r for r in rows if (r["work"], r["connections"]) == (work, connections)]
            if shown:
                plural = "s" if connections > 1 else ""
                console.print(_table(f"{title}; {connections} connection{plural}", shown))
    reasons = {(r["server"], r["setting"], r["work"]): r["error"] for r in rows if "error" in r}
    for where, reason in reasons.items():
        about = ", ".join(part for part in where if part)
        console.print(f"{about}: {reason}", soft_wrap=True, markup=False)
    for line in verdicts(rows):
        console.print(line, soft_wrap=True)
    console.print(
        "Each peer counts with the best of each number over all its settings. The servers ran one "
        "at a time, in turns: two cores are too few for idle ones beside it.",
        soft_wrap=True,
    )


def _table(title: str, rows: Sequence[Row]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE)
    for heading in ("", "setting"):
        table.add_column(heading)
    for heading in ("requests/s", "p50 ms", "p99 ms", "Convoy ×"):
        table.add_column(heading, justify="right", no_wrap=True)
    packages = {peer.name: peer.package for peer in PEERS}
    ours = best(rows, CONVOY, rows[0]["work"], rows[0]["connections"])
    for row in rows:
        server = row["server"]
        version = row.get("versions", {}).get(packages.get(server), "")
        setting = row["setting"]
        if row.get("protocol") == PROTOCOL["form"]:
            setting += " (form)"
        table.add_row(f"{server} {version}".strip(), setting, *_cells(row, ours))
    return table


def _cells(row: Row, ours: Best | None) -> list[str]:
    if "error" in row:
        return ["not installed" if row["error"].startswith(NOT_INSTALLED) else "failed"]
    return [
        f"{row['requests_a_second']:.0f}",
        f"{row['p50_ms']:.2f}",
        f"{row['p99_ms']:.2f}",
        f"{ours.requests_a_second / row['requests_a_second']:.1f}" if ours else "-",
    ]
