"""Implements `convoy inspect`, which shows a network or its plan for a GPU, as a table or JSON."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from loadtest.tables import left, make_table, print_table, right
from models import (
    GPUS,
    Classifier,
    DeviceKind,
    NetworkReport,
    PlanReport,
    measure_timeline,
    open_engine,
    plan_report,
    report,
)
from service.cli.options import Expectations, with_settings
from service.cli.plots import plot_timeline, plot_times, shortened
from service.hosting.reading import load
from service.settings import Settings, SettingsError
from service.telemetry.logs import configure_logging

# The most characters of an algorithm's name in a table of 80 columns.
_ALGORITHM = 24


@with_settings("model", "preset", "precision", "resize", "decode", "tuning", "external_data")
def inspect(
    settings: Settings,
    n: Annotated[int, typer.Option("-n", min=1, help="Batch size for all costs.")] = 1,
    expectations: Expectations = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Show the CUDA engine's launches instead of nodes.")
    ] = False,
    gpu: Annotated[
        str, typer.Option(help=f"GPU to plan for, with --plan: {', '.join(GPUS)}.")
    ] = "h200",
    wide: Annotated[
        bool, typer.Option("--wide", help="Show all facts about each node, in wide columns.")
    ] = False,
    why: Annotated[
        bool,
        typer.Option(
            "--why",
            help="Show why rules and algorithms were not used, and why other algorithms are slower"
            " on --gpu; one reason per row.",
        ),
    ] = False,
    plot_file: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Plot each layer's modelled time on --gpu as a PNG.",
        ),
    ] = None,
    timeline_file: Annotated[
        Path | None,
        typer.Option(
            "--timeline",
            metavar="FILE",
            help="Draw when each launch runs on --gpu, as modelled, as an SVG or PNG.",
        ),
    ] = None,
    measured: Annotated[
        bool, typer.Option("--measure", help="Measure the --timeline on this machine's GPU.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show a model's nodes after rewriting, with their cost and the algorithm for --gpu."""
    if gpu not in GPUS:
        raise SettingsError(f"--gpu: {gpu} is not known; choose one of {', '.join(GPUS)}")
    if measured and timeline_file is None:
        raise SettingsError("--measure needs --timeline FILE, the file for the drawing")
    configure_logging()
    classifier = load(settings, expectations)
    network = report(classifier, n, layers_on_cpu=_layers_on_cpu(classifier))
    planned = plan_report(classifier, n, GPUS[gpu], settings.tuning, settings.takes)
    if plot_file is not None:
        plot_times(planned, plot_file)
    if timeline_file is not None:
        timeline = (
            measure_timeline(classifier, n, settings.tuning) if measured else planned.timeline
        )
        plot_timeline(timeline, timeline_file)
    if as_json or plan:
        print_report(planned if plan else network, as_json=as_json)
    elif why:
        print_table(Group(*_refusals(network, planned)))
    elif wide:
        print_report(network, as_json=False)
    else:
        print_table(_summary(network, planned))


def _layers_on_cpu(classifier: Classifier) -> str:
    """Return a phrase that says how many layers of a quantized model are computed with integers on
    this machine's CPU."""
    if not classifier.network.quantized:
        return ""
    engine = open_engine(classifier, device=DeviceKind.CPU, max_batch=1, threads=1)
    engine.close()
    return engine.layers


def print_report(report: NetworkReport | PlanReport, *, as_json: bool) -> None:
    """Print a report to standard output, as a table or as JSON."""
    if as_json:
        print(_to_json(report))
    elif isinstance(report, PlanReport):
        print_table(_plan_table(report))
    else:
        print_table(_network_table(report))


def _to_json(report: NetworkReport | PlanReport) -> str:
    totals: dict[str, float]
    if isinstance(report, PlanReport):
        totals = {
            "launches": len(report.steps),
            "roofline_us": report.roofline_us,
            "us": report.timeline.us,
            "gaps_us": report.timeline.gaps_us,
        }
    else:
        totals = {"flops": report.flops, "bytes": report.bytes}
    return msgspec.json.format(msgspec.json.encode({**asdict(report), **totals})).decode()


def _summary(network: NetworkReport, plan: PlanReport) -> RenderableType:
    """Return the totals, then one row per node, at most 80 columns wide."""
    chosen = {step.name: step.chosen for step in plan.steps if step.chosen}
    rows = (
        (
            shortened(node.name),
            "x".join(map(str, node.shape)),
            f"{node.flops / 1e6:,.1f}",
            chosen.get(node.name, node.operation.lower())[:_ALGORITHM].rstrip(" ,"),
        )
        for node in network.nodes
    )
    columns = [*left("node", "output"), *right("MFLOP"), *left("algorithm")]
    legend = f"Algorithms are chosen for {plan.gpu.name} (--gpu). --wide, --why, --plan show more."
    head = [
        Text(line) for line in (*_totals(network), *_precision(network), network.scores, legend)
    ]
    return Group(*head, Text(), make_table(columns, rows))


def _totals(report: NetworkReport) -> Iterator[str]:
    """Yield lines with the network's total operations and bytes, and with the names of the files
    that describe the model."""
    yield (
        f"{report.name}, N = {report.n}: {report.nodes_loaded} nodes became {len(report.nodes)}; "
        f"{report.flops / 1e9:,.3f} GFLOP, {report.bytes / 1e6:,.1f} MB moved, "
        f"{report.weight_bytes / 1e6:,.1f} MB of weights"
    )
    if report.origin:
        yield f"described by {report.origin}"


_MEANING = {
    "tf32": "convolutions multiply 11 bits of each factor on tensor cores",
    "3xtf32": "convolutions sum three TF32 products, each with up to 1.7 times float32's rounding "
    "error",
    "fp16": "stored as halves, which tensor cores multiply; sums are float32",
}


def _precision(report: NetworkReport) -> Iterator[str]:
    """Yield lines about a precision other than fp32: how it computes, which nodes stay in float32,
    and why."""
    if report.precision in _MEANING:
        yield f"{report.precision}: {_MEANING[report.precision]}"
    for where, layers in (("on a GPU", report.layers), ("on this CPU", report.layers_on_cpu)):
        if layers:
            yield f"int8 {where}: {layers}"
    for reason, kept in groupby(sorted(report.kept, key=itemgetter(1)), itemgetter(1)):
        names = [name for name, _ in kept]
        more = f" and {len(names) - 1} more" if names[1:] else ""
        yield f"float32: {shortened(names[0])}{more}: {reason}"


def _network_table(report: NetworkReport) -> RenderableType:
    """Return one row per node, the totals, and the algorithms and rules that cannot be used, with
    the reasons."""
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
    return Group(
        *map(Text, _totals(report)),
        *map(Text, _precision(report)),
        Text(report.scores),
        Text(),
        make_table(columns, rows),
        Text(),
        *_refusals(report),
    )


def _refusals(report: NetworkReport, plan: PlanReport | None = None) -> list[RenderableType]:
    """Return a table of the algorithms and rules that cannot be used, one row per reason.

    With a plan, the table also has the algorithms that can run but are not used, and the reasons.
    """
    nodes_of: dict[tuple[str, str], list[str]] = defaultdict(list)
    for node in report.nodes:
        by_algorithm = ((c.algorithm, c.refusal) for c in node.choices if c.refusal is not None)
        for refusal in (*by_algorithm, *node.refusals):
            nodes_of[refusal].append(node.name)
    for loser in plan.losers if plan else ():
        nodes_of[loser.algorithm, loser.reason].append(loser.node)
    if not nodes_of:
        return [Text("nothing was refused")]
    rows = (
        (*refusal, names[0] + (f" and {len(names) - 1} more" if names[1:] else ""))
        for refusal, names in sorted(nodes_of.items())
    )
    return [make_table(left("not by", "because", "nodes"), rows)]


def _plan_table(report: PlanReport) -> RenderableType:
    """Return one row per launch, and the totals."""
    columns = [
        *left("node", "precision", "algorithm", "kernel"),
        *right("grid", "threads", "MFLOP", "kB", "roofline us", "bound by"),
    ]
    rows = (
        (
            step.name,
            step.precision,
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
    timeline = report.timeline
    totals = (
        f"{report.name}, N = {report.n}, {report.gpu.name}: {len(report.steps)} launches, "
        f"{report.roofline_us:,.1f} us at the roofline (computed from the data sheet), "
        f"{timeline.us:,.1f} us by the cost model, of which {timeline.gaps_us:,.1f} us are "
        f"gaps; arena {report.arena_bytes / 1e6:,.2f} MB. Nothing was measured. Ceilings are "
        "shares of the peak, counted in machine code"
    )
    return Group(make_table(columns, rows), Text(), _code_table(report), Text(), Text(totals))


def _code_table(report: PlanReport) -> RenderableType:
    """Return one row per kernel whose machine instructions were counted."""

    def percent(share: float | None) -> str:
        return "" if share is None else f"{share:.0%}"

    columns = [
        *left("kernel"),
        *right("registers", "blocks per SM", "multiply", "issue ceiling", "LDS ceiling"),
    ]
    by_kernel = {step.kernel: step.code for step in report.steps if step.code}
    rows = (
        (
            kernel,
            str(code.registers),
            str(code.blocks),
            percent(code.products),
            percent(code.issue_ceiling),
            percent(code.shared_ceiling),
        )
        for kernel, code in by_kernel.items()
    )
    return make_table(columns, rows)
