"""Implements `convoy loadtest`: its command line and exit status."""

import re
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer
import uvloop
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from loadtest import LoadTestError, OptionsError
from loadtest.images import SAMPLES, load_images
from loadtest.journal import MIXED_UP
from loadtest.loops import Arrivals
from loadtest.report.record import Run, as_json, read_run
from loadtest.report.text import as_table
from loadtest.summary import Load
from loadtest.sweep import MAX_RATE, SweepResult
from loadtest.tables import print_table
from models import how_to_install

if TYPE_CHECKING:
    from loadtest.run import Conditions

_INTERRUPTED = 130  # what shells report after SIGINT
_UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):(.*)")  # RFC 9110, section 5.6.2


def _seconds(text: str | float) -> float:
    if not isinstance(text, str):  # a default
        return text
    found = re.fullmatch(r"(\d+\.?\d*|\.\d+)(us|ms|s|m)?", text.strip())
    if found is None:
        raise typer.BadParameter(f"{text} is not a time, such as 50ms, 1.5s or 10m")
    if found[2] is None and float(found[1]):
        raise typer.BadParameter(f"{text} has no unit; write a time such as {text}ms or {text}s")
    return float(found[1]) * _UNITS_S[found[2] or "s"]


def _positive_seconds(text: str | float) -> float:
    if (seconds := _seconds(text)) == 0:
        raise typer.BadParameter(f"{text} must be longer than 0s")
    return seconds


def _url(text: str) -> str:
    text = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(text)
        wrong = parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0
    except ValueError:  # a port that is not a number, an invalid address
        wrong = True
    if wrong or parts.query or parts.fragment or parts.path.rstrip("/").endswith("/classify"):
        raise typer.BadParameter(f"{text} is not a server's address, such as http://127.0.0.1:8000")
    return text


def _header(text: str) -> str:
    found = _HEADER.fullmatch(text)
    if found is None or not found[2].strip().isprintable():
        raise typer.BadParameter(f"{text!r} is not a header; write 'Name: value'")
    return text


_TIME: dict[str, Any] = {"metavar": "TIME", "parser": _positive_seconds, "show_default": False}


def loadtest(
    url: Annotated[str, typer.Argument(metavar="URL", parser=_url, help="http://127.0.0.1:8000")],
    rate: Annotated[
        list[float] | None,
        typer.Option(min=0.01, max=MAX_RATE, help="Open loop: requests per second. Repeatable."),
    ] = None,
    clients: Annotated[
        list[int] | None,
        typer.Option(min=1, max=10_000, help="Closed loop: clients. Repeatable. [8, if no --rate]"),
    ] = None,
    find: Annotated[
        bool,
        typer.Option(
            "--find-rate", help="Find the highest rate within --p99 and without errors. [from 10]"
        ),
    ] = False,
    p99: Annotated[
        float | None, typer.Option(help="Bound on p99; above it the exit status is 1.", **_TIME)
    ] = None,
    duration: Annotated[
        float, typer.Option(help="Time to measure each load. [10s]", **_TIME)
    ] = 10.0,
    warmup: Annotated[
        float,
        typer.Option(
            help="Time to apply each load before it is measured. [2s]",
            **{**_TIME, "parser": _seconds},
        ),
    ] = 2.0,
    arrivals: Annotated[
        Arrivals, typer.Option(help="How an open loop spaces its requests.")
    ] = Arrivals.POISSON,
    images: Annotated[
        Path,
        typer.Option(help="Folder of images. [samples]", show_default=False),
    ] = SAMPLES,
    model: Annotated[
        str | None, typer.Option(help="Name of the model, if the server has several.")
    ] = None,
    deadline: Annotated[
        float | None,
        typer.Option(
            help="Deadline of requests; only answers in time count, and 504 is no error.", **_TIME
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="Longest wait for an answer. [10s]", **_TIME)
    ] = 10.0,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Compare each answer with the answer to the same image sent alone. If an answer "
            "belongs to another image, the exit status is 1.",
        ),
    ] = False,
    max_errors: Annotated[
        float, typer.Option(min=0, max=1, help="Share of errors above which the exit status is 1.")
    ] = 0.01,
    max_outstanding: Annotated[
        int, typer.Option(min=1, max=60_000, help="Open loop: limit on requests in flight.")
    ] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the Poisson arrivals.")] = 0,
    header: Annotated[
        list[str] | None,
        typer.Option(metavar="'NAME: VALUE'", parser=_header, help="Header to add. Repeatable."),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all results as JSON.")
    ] = None,
    plot_file: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Plot latency over throughput, as PNG or SVG."),
    ] = None,
    report_file: Annotated[
        Path | None,
        typer.Option("--report", metavar="FILE", help="Write plots and tables as one HTML file."),
    ] = None,
    beside: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="JSON of an earlier run, to show with this one in plot and report. Repeatable.",
        ),
    ] = None,
) -> None:
    """Measure the latency and throughput of a running server under load.

    Latency is measured from the intended send time of a request. Times are written as 50ms, 1.5s or
    10m. Ctrl-C ends the test and shows the results so far.
    """
    if clients and (rate or find):
        raise OptionsError("--clients cannot be combined with --rate or --find-rate")
    if find and p99 is None:
        raise OptionsError("--find-rate needs a bound, such as --p99 50ms")
    if find and rate and len(rate) > 1:
        raise OptionsError(f"--find-rate needs a single --rate, not {len(rate)}")
    drawn = plot_file is not None or report_file is not None
    needed = ["aiohttp", "matplotlib"] if drawn else ["aiohttp"]
    if missing := [package for package in needed if find_spec(package) is None]:
        raise LoadTestError(f"{' and '.join(missing)}: not installed; {how_to_install('loadtest')}")
    from loadtest.run import Conditions, run  # noqa: PLC0415  needs the extra `loadtest`

    conditions = Conditions(
        url=url,
        model=model,
        verify=verify,
        seconds=duration,
        warmup_s=warmup,
        arrivals=arrivals,
        seed=seed,
        max_outstanding=max_outstanding,
        deadline_s=deadline,
        timeout_s=timeout,
        p99_bound_ms=None if p99 is None else p99 * 1e3,
    )
    earlier = [read_run(file) for file in beside or ()]
    rates = rate or ([10.0] if find else [])
    loads = [Load(rate=rate) for rate in rates] or [Load(clients=n) for n in clients or [8]]
    bodies = load_images(images)
    headers = {name: value.strip() for name, _, value in (h.partition(":") for h in header or ())}
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(8), TimeRemainingColumn(compact=True))
    quiet = not console.is_terminal
    with Progress(*columns, console=console, disable=quiet, transient=True) as bar:
        asked, found = uvloop.run(run(conditions, bodies, headers, loads, find=find, bar=bar))
    this = Run("this run", asked, found)
    print_table(as_table(found))
    if find:
        bound = f"p99 within {conditions.p99_bound_ms:g} ms and no errors"
        best = f"highest rate with {bound}: {found.best.load}" if found.best else None
        typer.echo(best or f"no rate had {bound}")
    if found.limited_by_client:
        typer.echo("the load generator, rather than the server, may be the limit")
    if json_file is not None:
        json_file.write_bytes(as_json(asdict(conditions), len(bodies), this))
    if drawn:
        _draw([this, *earlier], conditions, plot_file, report_file)
    if status := _status(found, find, max_errors, conditions.p99_bound_ms):
        raise typer.Exit(status)


def _draw(
    runs: Sequence[Run], conditions: "Conditions", plot_file: Path | None, report_file: Path | None
) -> None:
    """Write the plot and the report. Both need Matplotlib."""
    from loadtest.report.page import as_html  # noqa: PLC0415
    from loadtest.report.plots import latency_plot  # noqa: PLC0415

    bound_ms = conditions.p99_bound_ms
    try:
        if plot_file is not None:
            latency_plot(runs, bound_ms).savefig(plot_file, dpi=120)
        if report_file is not None:
            page = as_html(runs, asdict(conditions), bound_ms)
            report_file.write_text(page, encoding="utf-8")
    except ValueError as error:  # a suffix that is no format
        raise OptionsError(f"--plot {plot_file}: {error}") from error


def _status(found: SweepResult, find: bool, max_errors: float, p99_ms: float | None) -> int:
    """Return the exit status: 130 if the test was interrupted, 1 if a result exceeds its limit or
    an answer belongs to another image, and 0 otherwise."""
    if any(step.interrupted for step in found.steps):
        return _INTERRUPTED
    if any(MIXED_UP in step.errors for step in found.steps):
        return 1
    if find:
        return 0 if found.best else 1
    latencies_ms = [step.latency_ms["p99"] for step in found.steps]
    kept = all(p99 is not None and (p99_ms is None or p99 <= p99_ms) for p99 in latencies_ms)
    return 0 if kept and all(step.error_share <= max_errors for step in found.steps) else 1
