"""`convoy inspect`: a network as a table, or as JSON."""

from dataclasses import asdict

from pydantic_core import to_json
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from models import NetworkReport, NodeReport

PIPED_WIDTH = 200


def to_json_text(report: NetworkReport) -> str:
    """Everything that is known of the network."""
    totals = {"flops": report.flops, "bytes": report.bytes}
    return to_json({**asdict(report), **totals}, indent=2).decode()


def as_table(report: NetworkReport) -> Group:
    """One row a node, the totals below, then every refusal with its reason."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("node", "operation", "output", "fused"):
        table.add_column(heading, overflow="fold")
    for heading in ("MFLOP", "kB"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("made by", overflow="fold")
    table.add_column("can run it", overflow="fold")
    for node in report.nodes:
        table.add_row(
            Text(node.name),
            Text(f"{node.operation} {node.detail}".strip()),
            "x".join(map(str, node.shape)),
            Text(", ".join(node.fused)),
            f"{node.flops / 1e6:,.1f}",
            f"{node.bytes / 1e3:,.0f}",
            Text(", ".join(node.rules)),
            Text(", ".join(c.algorithm for c in node.choices if c.refusal is None)),
        )
    return Group(table, Text(), Text(_totals(report)), *_refusals(report))


def _totals(report: NetworkReport) -> str:
    return (
        f"{report.name}, N = {report.n}: {report.nodes_loaded} nodes became {len(report.nodes)}; "
        f"{report.flops / 1e9:,.3f} GFLOP, {report.bytes / 1e6:,.1f} MB moved, "
        f"{report.weight_bytes / 1e6:,.1f} MB of weights"
    )


def _refusals(report: NetworkReport) -> list[Text | Table]:
    """Why algorithms and rules refused, nodes of one reason together."""
    reasons: dict[tuple[str, str], list[NodeReport]] = {}
    for node in report.nodes:
        for choice in node.choices:
            if choice.refusal is not None:
                reasons.setdefault((choice.algorithm, choice.refusal), []).append(node)
        for rule, reason in node.refusals:
            reasons.setdefault((rule, reason), []).append(node)
    if not reasons:
        return []
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("refused by", "because", "nodes"):
        table.add_column(heading, overflow="fold")
    for (who, why), nodes in sorted(reasons.items(), key=lambda item: item[0]):
        names = [node.name for node in nodes]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        table.add_row(Text(who), Text(why), Text(", ".join(names[:3]) + more))
    return [Text(), table]


def print_report(report: NetworkReport, *, as_json: bool) -> None:
    """To standard output; where that is no terminal, the table does not fold at 80 columns."""
    if as_json:
        print(to_json_text(report))
        return
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPED_WIDTH)
    console.print(as_table(report))
