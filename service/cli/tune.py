"""Implements `convoy tune`, which measures kernels on a GPU and prints the fastest kernel for each
convolution."""

from itertools import groupby
from operator import attrgetter
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from loadtest.tables import left, make_table, print_table, right
from models import DEFAULT_TUNING, TOP_CANDIDATES, ProblemReport, TuningReport
from models import tune as measure
from service.cli.options import Expectations, with_settings
from service.hosting.reading import load
from service.progress import progress
from service.settings import Settings
from service.telemetry.logs import configure_logging


@with_settings("model", "precision", "max_batch", "tuning", "external_data")
def tune(
    settings: Settings,
    top: Annotated[
        int, typer.Option(min=1, help="Candidates to measure per problem: the fastest by estimate.")
    ] = TOP_CANDIDATES,
    exhaustive: Annotated[
        bool, typer.Option("--exhaustive", help="Measure every candidate.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Repeat measurements that are already in the file.")
    ] = False,
    expectations: Expectations = None,
) -> None:
    """Measure which kernels run a model's convolutions fastest on a GPU. Engines then use these
    kernels.

    Results are saved, so the command can be interrupted, and continues when it is run again. If a
    candidate computes wrong results, it is reported and never used, and the exit status is 1.
    """
    configure_logging()
    classifier = load(settings, expectations)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    try:
        with progress(*columns, TimeRemainingColumn()) as show:
            report = measure(
                classifier,
                max_batch=settings.max_batch,
                tuning=settings.tuning,
                top=None if exhaustive else top,
                anew=again,
                progress=show,
                threads=settings.thread_count,
            )
    except KeyboardInterrupt:
        store = settings.tuning or DEFAULT_TUNING
        kept = f"Results so far are in {store}; run the command again to continue"
        typer.echo(f"Interrupted. {kept}", err=True)
        raise typer.Exit(1) from None
    print_table(tuning_table(report))
    failed = [
        (report_.problem, *failure) for report_ in report.problems for failure in report_.failures
    ]
    for problem, candidate, reason in failed:
        typer.echo(f"Error: {candidate} is not used for {problem}: {reason}", err=True)
    if failed:
        raise typer.Exit(1)


def tuning_table(report: TuningReport) -> RenderableType:
    """Return a table with one row per convolution problem, followed by the totals per batch
    size."""
    columns = [
        *left("layers", "problem", "winner"),
        *right("us warm", "us cold"),
        *left("runner-up"),
        *right("slower", "TFLOPS", "roofline"),
    ]
    legend = (
        f"{report.name} on {report.device}. TFLOPS: operations of direct convolution, divided by"
        " the mean of both times. Roofline: the time at the device's peak rates, as a share of"
        f" this mean. The measurements are in {report.store}"
    )
    by_n = groupby(sorted(report.problems, key=attrgetter("n")), attrgetter("n"))
    totals = (Text(_total(n, list(problems))) for n, problems in by_n)
    table = make_table(columns, map(_row, report.problems))
    return Group(table, Text(), Text(legend), *totals)


def _row(problem: ProblemReport) -> list[str]:
    more = f" and {len(problem.nodes) - 1} more" if len(problem.nodes) > 1 else ""
    cells = [problem.nodes[0] + more, problem.problem]
    if not problem.ranked:
        return [*cells, "none could be used"]
    winner, *others = problem.ranked
    cells += [winner.name, f"{winner.warm_us:,.1f}", f"{winner.cold_us:,.1f}"]
    cells += [others[0].name, f"{others[0].us / winner.us - 1:.0%}"] if others else ["", ""]
    return [*cells, f"{problem.effective_tflops:,.2f}", f"{problem.roofline_share:.0%}"]


def _total(n: int, problems: list[ProblemReport]) -> str:
    """Return a line with the totals of all convolutions at one batch size. If several nodes have
    the same problem, each of them counts."""
    measured = [problem for problem in problems if problem.ranked]
    us = sum(len(problem.nodes) * problem.ranked[0].us for problem in measured)
    flops = sum(len(problem.nodes) * problem.flops for problem in measured)
    count = sum(len(problem.nodes) for problem in measured)
    rate = f", {flops / us / 1e6:,.2f} TFLOPS" if us else ""
    return f"N = {n}: {count} convolutions, {us:,.1f} us{rate}"
