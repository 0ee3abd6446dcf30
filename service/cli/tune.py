"""`convoy tune`: a bar while it measures, then a table of what has won and by how much."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from operator import attrgetter
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from models import DEFAULT_TUNING, TOP_CANDIDATES, ProblemReport, TuningReport
from models import tune as measure
from service.cli.inspect import print_table
from service.cli.options import (
    Expectations,
    ExternalData,
    MaxBatch,
    Model,
    Tuning,
    configure_logging,
)
from service.hosting.loading import load
from service.settings import Settings, load_settings


def tune(
    model: Model,
    max_batch: MaxBatch = None,
    top: Annotated[
        int, typer.Option(min=1, help="Candidates a problem, those estimated to be fastest.")
    ] = TOP_CANDIDATES,
    exhaustive: Annotated[
        bool, typer.Option("--exhaustive", help="Measure every candidate there is.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Measure anew what the file knows already.")
    ] = False,
    tuning: Tuning = None,
    external_data: ExternalData = None,
    expectations: Expectations = None,
) -> None:
    """Measure on a GPU which kernels run a model's convolutions fastest, for engines to run those.

    Whatever was measured is kept, also when this is interrupted: run it again to go on. What gives
    wrong results is reported, and never used; the exit status is 1 then.
    """
    flags = {name: value for name, value in locals().items() if name in Settings.model_fields}
    settings = load_settings(flags)
    configure_logging(verbose=False)
    classifier = load(settings, expectations)
    try:
        with _bar() as show:
            report = measure(
                classifier,
                max_batch=settings.max_batch,
                tuning=settings.tuning,
                top=None if exhaustive else top,
                anew=again,
                progress=show,
            )
    except KeyboardInterrupt:
        typer.echo(
            "Interrupted. What was measured is kept in"
            f" {settings.tuning or DEFAULT_TUNING}; run it again to go on",
            err=True,
        )
        raise typer.Exit(1) from None
    print_table(tuning_table(report))
    failed = [(each, failure) for each in report.problems for failure in each.failures]
    for problem, (candidate, reason) in failed:
        typer.echo(f"Error: {candidate} is not used for {problem.problem}: {reason}", err=True)
    if failed:
        raise typer.Exit(1)


@contextmanager
def _bar() -> Iterator[Callable[[str, int, int], None]]:
    """On standard error, from the first that it is told on."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    bar = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True))
    task = bar.add_task("", total=None)

    def show(what: str, done: int, total: int) -> None:
        bar.start()
        bar.update(task, description=what, completed=done, total=total)

    try:
        yield show
    finally:
        if bar.live.is_started:
            bar.stop()


def tuning_table(report: TuningReport) -> RenderableType:
    """One row a problem, and below what the convolutions of a batch take together."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("layers", "problem", "winner"):
        table.add_column(heading, overflow="fold")
    for heading in ("us warm", "us cold"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("runner-up", overflow="fold")
    for heading in ("slower", "TFLOPS", "roofline"):
        table.add_column(heading, justify="right", no_wrap=True)
    for problem in report.problems:
        table.add_row(*_row(problem))
    totals = [
        _total(n, list(each))
        for n, each in groupby(sorted(report.problems, key=attrgetter("n")), attrgetter("n"))
    ]
    return Group(
        table,
        Text(),
        Text(
            f"{report.name} on {report.device}. TFLOPS are direct convolution's operations in the"
            " mean of both times; roofline is what those would take at the device's peaks, as a"
            f" share of it. Measured in {report.store}"
        ),
        *map(Text, totals),
    )


def _row(problem: ProblemReport) -> list[Text]:
    more = f" and {len(problem.nodes) - 1} more" if len(problem.nodes) > 1 else ""
    cells = [problem.nodes[0] + more, problem.problem]
    if not problem.ranked:
        return list(map(Text, [*cells, "none could be used"]))
    winner, *others = problem.ranked
    cells += [winner.name, f"{winner.warm_us:,.1f}", f"{winner.cold_us:,.1f}"]
    cells += [others[0].name, f"{others[0].us / winner.us - 1:.0%}"] if others else ["", ""]
    cells += [f"{problem.effective_tflops:,.2f}", f"{problem.roofline_share:.0%}"]
    return list(map(Text, cells))


def _total(n: int, problems: list[ProblemReport]) -> str:
    """Every node counts, also where several have one problem."""
    measured = [each for each in problems if each.ranked]
    us = sum(len(each.nodes) * each.ranked[0].us for each in measured)
    flops = sum(len(each.nodes) * each.flops for each in measured)
    count = sum(len(each.nodes) for each in measured)
    rate = f", {flops / us / 1e6:,.2f} TFLOPS" if us else ""
    return f"N = {n}: {count} convolutions, {us:,.1f} us{rate}"
