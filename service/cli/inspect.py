"""`convoy inspect`: a network, or its plan on a GPU, as a table or as JSON."""

from collections import defaultdict
from dataclasses import asdict
from typing import Annotated

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from models import GPUS, NetworkReport, PlanReport, plan_report, report
from service.cli.options import Expectations, configure_logging, with_settings
from service.cli.tables import left, make_table, print_table, right
from service.hosting.loading import load
from service.settings import Settings, SettingsError


@with_settings("model", "preset", "precision", "tuning", "external_data")
def inspect(
    settings: Settings,
    n: Annotated[int, typer.Option("-n", min=1, help="Batch size to cost.")] = 1,
    expectations: Expectations = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Show the launches of the CUDA engine instead.")
    ] = False,
    gpu: Annotated[
        str, typer.Option(help=f"GPU to plan for, with --plan: {', '.join(GPUS)}.")
    ] = "h200",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show a model's nodes after rewriting: their cost, their algorithms, and why others refuse."""
    if gpu not in GPUS:
        raise SettingsError(f"--gpu: {gpu} is not known; there are {', '.join(GPUS)}")
    configure_logging()
    classifier = load(settings, expectations)
    if plan:
        print_report(plan_report(classifier, n, GPUS[gpu], settings.tuning), as_json=as_json)
    else:
        print_report(report(classifier, n), as_json=as_json)


def print_report(report: NetworkReport | PlanReport, *, as_json: bool) -> None:
    """Print to standard output, as a table or as JSON."""
    if as_json:
        print(_to_json(report))
    elif isinstance(report, PlanReport):
        print_table(_plan_table(report))
    else:
        print_table(_network_table(report))


def _to_json(report: NetworkReport | PlanReport) -> str:
    totals: dict[str, float]
    if isinstance(report, PlanReport):
        totals = {"launches": len(report.steps), "roofline_us": report.roofline_us}
    else:
        totals = {"flops": report.flops, "bytes": report.bytes}
    return msgspec.json.format(msgspec.json.encode({**asdict(report), **totals})).decode()


def _network_table(report: NetworkReport) -> RenderableType:
    """One row per node, the totals, and every refusal with its reason."""
    columns = [
        *left("node", "operation", "output", "fused"),
        *right("MFLOP", "kB"),
        *left("made by", "can run it"),
    ]
    rows = (
        (
            node.name,
            f"{node.operation} {node.detail}".strip(),
            "x".join(map(str, node.shape)),
            ", ".join(node.fused),
            f"{node.flops / 1e6:,.1f}",
            f"{node.bytes / 1e3:,.0f}",
            ", ".join(node.rules),
            ", ".join(c.algorithm for c in node.choices if c.refusal is None),
        )
        for node in report.nodes
    )
    totals = (
        f"{report.name}, N = {report.n}: {report.nodes_loaded} nodes became {len(report.nodes)}; "
        f"{report.flops / 1e9:,.3f} GFLOP, {report.bytes / 1e6:,.1f} MB moved, "
        f"{report.weight_bytes / 1e6:,.1f} MB of weights"
    )
    return Group(make_table(columns, rows), Text(), Text(totals), *_refusals(report))


def _refusals(report: NetworkReport) -> list[RenderableType]:
    """Why algorithms and rules refused, one row per reason."""
    nodes_of: dict[tuple[str, str], list[str]] = defaultdict(list)
    for node in report.nodes:
        by_algorithm = ((c.algorithm, c.refusal) for c in node.choices if c.refusal is not None)
        for refusal in (*by_algorithm, *node.refusals):
            nodes_of[refusal].append(node.name)
    if not nodes_of:
        return []
    rows = (
        (*refusal, ", ".join(names[:3]) + (f" and {len(names) - 3} more" if names[3:] else ""))
        for refusal, names in sorted(nodes_of.items())
    )
    return [Text(), make_table(left("refused by", "because", "nodes"), rows)]


def _plan_table(report: PlanReport) -> RenderableType:
    """One row per launch, and the totals."""
    columns = [
        *left("node", "algorithm", "kernel"),
        *right("grid", "threads", "MFLOP", "kB", "roofline us", "bound by"),
    ]
    rows = (
        (
            step.name,
            f"{step.chosen}{', measured' * step.measured}",
            step.kernel,
            "x".join(map(str, step.grid)),
            str(step.threads),
            f"{step.flops / 1e6:,.1f}",
            f"{step.bytes / 1e3:,.0f}",
            f"{step.roofline_us:,.2f}",
            step.bound,
        )
        for step in report.steps
    )
    arena, least = report.arena_bytes / 1e6, report.arena_bound / 1e6
    totals = (
        f"{report.name}, N = {report.n}, {report.gpu.name}: {len(report.steps)} launches, "
        f"{report.roofline_us:,.1f} us at the roofline (computed from the data sheet, not "
        f"measured); arena {arena:,.2f} MB, where no layout takes less than {least:,.2f}"
    )
    return Group(make_table(columns, rows), Text(), Text(totals))
