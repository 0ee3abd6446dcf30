"""`convoy loadtest`: its command line and its exit status."""

from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import msgspec
import typer
import uvloop
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from loadtest.errors import LoadTestError
from loadtest.journal import MIXED_UP, Journal
from loadtest.options import (
    Conditions,
    Options,
    check_url,
    parse_headers,
    positive_seconds,
    seconds,
)
from loadtest.pictures import SAMPLES, load_pictures
from loadtest.report import as_rows, as_table, details, milliseconds
from loadtest.schedule import Arrivals
from loadtest.summary import Load, Summary
from loadtest.sweep import MAX_RATE, Found
from service.cli.tables import print_table
from service.settings import SettingsError

DEFAULT_CLIENTS = 8
FIRST_RATE = 10.0

_INTERRUPTED = 130  # as shells say it of SIGINT


def loadtest(
    url: Annotated[str, typer.Argument(help="Where the server is: http://127.0.0.1:8000.")],
    rate: Annotated[
        list[float] | None,
        typer.Option(
            min=0.01,
            max=MAX_RATE,
            help="Requests a second, sent whatever became of earlier ones (open loop). May be "
            "given more than once.",
        ),
    ] = None,
    clients: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            max=10_000,
            help="Clients that each wait for an answer before they ask again (closed loop). May be "
            f"given more than once. [{DEFAULT_CLIENTS}, if there is no --rate]",
        ),
    ] = None,
    find: Annotated[
        bool,
        typer.Option(
            "--find-rate",
            help="Search for the highest rate with p99 within --p99 and no errors, from --rate "
            f"on. [{FIRST_RATE:g}]",
        ),
    ] = False,
    p99: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Bound for p99; the exit status is 1 beyond it."),
    ] = None,
    duration: Annotated[
        str, typer.Option(metavar="TIME", help="How long each load is measured.")
    ] = "10s",
    warmup: Annotated[
        str, typer.Option(metavar="TIME", help="Under the same load, before that.")
    ] = "2s",
    arrivals: Annotated[
        Arrivals, typer.Option(help="How an open loop spreads its requests.")
    ] = Arrivals.POISSON,
    images: Annotated[
        Path,
        typer.Option(help="Folder of JPEG, PNG and WebP files. [samples]", show_default=False),
    ] = SAMPLES,
    model: Annotated[
        str | None, typer.Option(help="The model to ask, of a server with several.")
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Ask for answers in this time, and count those that are. What the server refuses "
            "because of it (504) is counted by itself, not among the errors.",
        ),
    ] = None,
    timeout: Annotated[
        str, typer.Option(metavar="TIME", help="Longest wait for an answer.")
    ] = "10s",
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Ask about every picture alone first, and compare: mixed-up answers are errors, "
            "and one of them is enough for exit status 1.",
        ),
    ] = False,
    max_errors: Annotated[
        float,
        typer.Option(min=0, max=1, help="Share of errors beyond which the exit status is 1."),
    ] = 0.01,
    max_outstanding: Annotated[
        int,
        typer.Option(
            min=1,
            max=60_000,
            help="Most requests under way in an open loop; one more is not sent, an error.",
        ),
    ] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Of the Poisson arrivals.")] = 0,
    header: Annotated[
        list[str] | None,
        typer.Option(
            metavar="'NAME: VALUE'", help="Send this header too. May be given more than once."
        ),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write everything there as JSON.")
    ] = None,
    plot_file: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Draw latency over throughput there, a PNG."),
    ] = None,
) -> None:
    """Load a running server, and measure it as its clients see it.

    Latency counts from the moment at which a request was to be sent. Times are written 50ms, 1.5s
    or 10m. Ctrl-C ends it with what was measured so far.
    """
    check_url(url)
    if clients and (rate or find):
        raise SettingsError("--clients cannot be given with --rate or --find-rate")
    if find and p99 is None:
        raise SettingsError("--find-rate needs a bound, as --p99 50ms")
    if find and rate and len(rate) > 1:
        raise SettingsError("--find-rate begins at one --rate")
    _check_installed(*(["aiohttp", "matplotlib"] if plot_file else ["aiohttp"]))
    bound_ms = None if p99 is None else positive_seconds("--p99", p99) * 1e3
    if clients:
        loads = [Load(clients=count) for count in clients]
    elif rate:
        loads = [Load(rate=each) for each in rate]
    else:
        loads = [Load(clients=DEFAULT_CLIENTS)]
    options = Options(
        url=url,
        pictures=load_pictures(images),
        headers=parse_headers(header or ()),
        conditions=Conditions(
            seconds=positive_seconds("--duration", duration),
            warmup_s=seconds("--warmup", warmup),
            arrivals=arrivals,
            seed=seed,
            max_outstanding=max_outstanding,
            deadline_s=None if deadline is None else positive_seconds("--deadline", deadline),
            timeout_s=positive_seconds("--timeout", timeout),
            model=model,
        ),
        loads=loads,
        p99_ms=bound_ms,
        search_from=(rate or [FIRST_RATE])[0] if find else None,
        verify=verify,
    )
    found = _run(options)
    _show(options, found)
    if json_file is not None:
        json_file.write_bytes(_as_json(options, found))
    if plot_file is not None:
        from loadtest.plot import plot  # noqa: PLC0415  needs what the extra installs

        plot(found.steps, plot_file, title=url, bound_ms=options.p99_ms)
    status = _status(options, found, max_errors)
    if status:
        raise typer.Exit(status)


def _check_installed(*packages: str) -> None:
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise LoadTestError(
            f"{' and '.join(missing)}: not installed, and needed here; "
            "pip install -c constraints.txt -e '.[loadtest]'"
        )


def _run(options: Options) -> Found:
    from loadtest.course import run  # noqa: PLC0415  needs what the extra installs

    console = Console(stderr=True)
    total_s = options.conditions.warmup_s + options.conditions.seconds
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f} of {task.total:.0f} s"),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    ) as bar:
        task = bar.add_task("asking", total=total_s)

        def show(load: Load, elapsed_s: float, journal: Journal) -> None:
            failed = len(journal) - journal.good
            text = f"{load}: {journal.good:,} answers, {failed:,} errors"
            bar.update(task, description=text, completed=min(elapsed_s, total_s))

        def tell(summary: Summary) -> None:
            p99 = milliseconds(summary.latency_ms["p99"])
            if console.is_terminal:
                bar.console.print(f"{summary.load}: p99 {p99} ms, {summary.failed:,} errors")

        return uvloop.run(run(options, show, tell))


def _show(options: Options, found: Found) -> None:
    print_table(as_table(found.steps))
    closer = found.best or found.steps[-1]
    print_table(details(closer))
    if options.search_from is None:
        return
    bound = f"p99 within {options.p99_ms:g} ms and no errors"
    if found.best is None:
        typer.echo(f"no rate that was tried had {bound}")
    else:
        typer.echo(f"highest rate with {bound}: {found.best.load}")
    if found.limited_by_client:
        typer.echo("it is the load generator that may not do more, rather than the server")


def _as_json(options: Options, found: Found) -> bytes:
    return msgspec.json.format(
        msgspec.json.encode(
            {
                "url": options.url,
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "convoy": version("convoy"),
                "pictures": len(options.pictures),
                "verify": options.verify,
                **asdict(options.conditions),
                "p99_bound_ms": options.p99_ms,
                "highest_rate": found.best.load.rate if found.best else None,
                "limited_by_client": found.limited_by_client,
                "loads": as_rows(found.steps),
            },
        )
    )


def _status(options: Options, found: Found, max_errors: float) -> int:
    """0: all as it should be. 1: not so. 130: interrupted."""
    if any(each.interrupted for each in found.steps):
        return _INTERRUPTED
    if any(MIXED_UP in each.errors for each in found.steps):
        return 1
    if options.search_from is not None:
        return 0 if found.best else 1
    return 0 if all(_good(each, max_errors, options.p99_ms) for each in found.steps) else 1


def _good(each: Summary, max_errors: float, p99_ms: float | None) -> bool:
    p99 = each.latency_ms["p99"]
    return p99 is not None and each.error_share <= max_errors and (p99_ms is None or p99 <= p99_ms)
