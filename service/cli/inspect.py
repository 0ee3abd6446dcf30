"""`convoy inspect`: a network, or its plan on a GPU, as a table or as JSON."""

from dataclasses import asdict
from typing import Annotated

import msgspec
import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from models import GPUS, NetworkReport, NodeReport, PlanReport, plan_report, report
from service.cli.options import (
    Expectations,
    ExternalData,
    Model,
    Preset,
    Tuning,
    configure_logging,
)
from service.hosting.loading import load
from service.settings import SettingsError, load_settings

PIPED_WIDTH = 200


def inspect(
    model: Model,
    n: Annotated[int, typer.Option("-n", min=1, help="Images in the batch that is costed.")] = 1,
    preset: Preset = None,
    external_data: ExternalData = None,
    expectations: Expectations = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Show the launches of the CUDA engine instead.")
    ] = False,
    gpu: Annotated[
        str, typer.Option(help=f"The GPU that --plan is for: {', '.join(GPUS)}.")
    ] = "h200",
    tuning: Tuning = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show what a model becomes: its nodes, what they cost, what can run them and what cannot."""
    if gpu not in GPUS:
        raise SettingsError(f"--gpu: {gpu} is not known; there are {', '.join(GPUS)}")
    settings = load_settings(
        {"model": model, "preset": preset, "tuning": tuning, "external_data": external_data}
    )
    configure_logging(verbose=False)
    classifier = load(settings, expectations)
    if plan:
        print_report(plan_report(classifier, n, GPUS[gpu], settings.tuning), as_json=as_json)
    else:
        print_report(report(classifier, n), as_json=as_json)


def to_json_text(report: NetworkReport | PlanReport) -> str:
    """Everything that is known, with the totals."""
    totals: dict[str, float]
    if isinstance(report, PlanReport):
        totals = {"launches": len(report.steps), "roofline_us": report.roofline_us}
    else:
        totals = {"flops": report.flops, "bytes": report.bytes}
    return msgspec.json.format(msgspec.json.encode({**asdict(report), **totals})).decode()


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


def plan_table(report: PlanReport) -> Group:
    """One row a launch, and below what all of them take."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("node", overflow="fold")
    table.add_column("algorithm", overflow="fold")
    table.add_column("kernel", overflow="fold")
    for heading in ("grid", "threads", "MFLOP", "kB", "roofline us", "bound by"):
        table.add_column(heading, justify="right", no_wrap=True)
    for step in report.steps:
        table.add_row(
            Text(step.name),
            Text(f"{step.chosen}{', measured' * step.measured}"),
            Text(step.kernel),
            "x".join(map(str, step.grid)),
            str(step.threads),
            f"{step.flops / 1e6:,.1f}",
            f"{step.bytes / 1e3:,.0f}",
            f"{step.roofline_us:,.2f}",
            step.bound,
        )
    arena, least = report.arena_bytes / 1e6, report.arena_bound / 1e6
    totals = (
        f"{report.name}, N = {report.n}, {report.gpu.name}: {len(report.steps)} launches, "
        f"{report.roofline_us:,.1f} us at the roofline (computed from the data sheet, not "
        f"measured); arena {arena:,.2f} MB, where no layout takes less than {least:,.2f}"
    )
    return Group(table, Text(), Text(totals))


def print_report(report: NetworkReport | PlanReport, *, as_json: bool) -> None:
    """To standard output, as a table or as JSON."""
    if as_json:
        print(to_json_text(report))
    elif isinstance(report, PlanReport):
        print_table(plan_table(report))
    else:
        print_table(as_table(report))


def print_table(table: RenderableType) -> None:
    """To standard output; where that is no terminal, nothing folds at 80 columns."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPED_WIDTH)
    console.print(table)
