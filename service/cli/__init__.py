"""The command line: `convoy serve`, `classify`, `inspect`, `tune`, `compile`, `loadtest`.

Exit status 0: done. 1: it failed. 2: the command line or a setting makes no sense. Errors are one
line on standard error, never a traceback.
"""

import os
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from loadtest.command import loadtest
from loadtest.errors import LoadTestError
from models import (
    GPUS,
    GPUS_OF,
    Classifier,
    Engine,
    ModelError,
    plan_report,
    precompile,
    report,
)
from service.api.schemas import Prediction
from service.cli.inspect import print_report, print_table
from service.cli.options import (
    Device,
    Expectations,
    ExternalData,
    Labels,
    MaxBatch,
    Model,
    Preset,
    Threads,
    Tuning,
    configure_logging,
    setting,
)
from service.cli.serve import edge_options, serve_models
from service.cli.tune import tune_model
from service.engine.ranking import rank, top_k
from service.errors import ServiceError
from service.hosting.loading import decoder, load, open_classifier
from service.http.server import ListenError
from service.processes import WorkersError
from service.settings import Settings, SettingsError, load_settings
from service.telemetry.logs import LogFormat

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")

app = typer.Typer(
    name="convoy",
    help="Serve ONNX image classifiers, with batching that never makes anybody wait.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # errors stay one line
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line; what is foreseen to go wrong becomes a line and an exit status."""
    try:
        app()
    except SettingsError as error:
        _fail(error, 2)
    except (ModelError, ServiceError, ListenError, WorkersError, LoadTestError) as error:
        _fail(error, 1)
    except OSError as error:  # of files it is said where they are read; standard output is full
        _fail(error, 1)


def _fail(error: Exception, status: int) -> None:
    typer.echo(f"Error: {error}", err=True)
    raise SystemExit(status)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"convoy {version('convoy')}")
        raise typer.Exit


@app.callback()
def _convoy(
    _: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    pass


@app.command()
def serve(
    model: Annotated[
        Path | None,
        typer.Argument(
            help="ONNX model file, or a folder with a folder for each of several models; "
            "the built-in digits if not given."
        ),
    ] = None,
    preset: Preset = None,
    labels: Labels = None,
    default_model: Annotated[str | None, setting("default_model")] = None,
    device: Device = None,
    host: Annotated[str | None, setting("host")] = None,
    port: Annotated[int | None, setting("port")] = None,
    max_batch: MaxBatch = None,
    max_queue: Annotated[int | None, setting("max_queue")] = None,
    max_body_mb: Annotated[float | None, setting("max_body_mb")] = None,
    max_megapixels: Annotated[float | None, setting("max_megapixels")] = None,
    decode_mb: Annotated[float | None, setting("decode_mb")] = None,
    threads: Threads = None,
    tuning: Tuning = None,
    max_connections: Annotated[int | None, setting("max_connections")] = None,
    max_connections_per_address: Annotated[
        int | None, setting("max_connections_per_address")
    ] = None,
    max_rate: Annotated[float | None, setting("max_rate")] = None,
    max_per_client: Annotated[int | None, setting("max_per_client")] = None,
    api_key_file: Annotated[Path | None, setting("api_key_file")] = None,
    metrics_port: Annotated[int | None, setting("metrics_port")] = None,
    workers: Annotated[int | None, setting("workers")] = None,
    log_format: Annotated[LogFormat | None, setting("log_format")] = None,
    access_log: Annotated[bool | None, setting("access_log")] = None,
    otel: Annotated[bool | None, setting("otel")] = None,
    drain_s: Annotated[float | None, setting("drain_s")] = None,
    engine_timeout_s: Annotated[float | None, setting("engine_timeout_s")] = None,
    warm_up_timeout_s: Annotated[float | None, setting("warm_up_timeout_s")] = None,
    external_data: ExternalData = None,
    expectations: Expectations = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log what the HTTP server says, too.")
    ] = False,
) -> None:
    """Serve one model or several over HTTP until SIGTERM or Ctrl-C.

    Every setting can be given in the environment too: --max-batch is CONVOY_MAX_BATCH.
    """
    flags = {name: value for name, value in locals().items() if name in Settings.model_fields}
    settings = load_settings(flags)
    configure_logging(verbose=verbose, log_format=settings.log_format)
    edge = edge_options(settings)
    if not serve_models(settings, expectations, edge, verbose=verbose):
        raise typer.Exit(1)


@app.command()
def classify(
    model: Model,
    images: Annotated[
        list[Path], typer.Argument(help="JPEG, PNG or WebP files, or folders of them.")
    ],
    k: Annotated[int, typer.Option("--top-k", "-k", min=1, help="Labels an image.")] = 1,
    preset: Preset = None,
    labels: Labels = None,
    device: Device = None,
    threads: Threads = None,
    tuning: Tuning = None,
    external_data: ExternalData = None,
    expectations: Expectations = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object an image, a line each.")
    ] = False,
) -> None:
    """Classify pictures without a server.

    What cannot be read is reported, the rest classified, and the exit status is 1.
    """
    flags = {name: value for name, value in locals().items() if name in Settings.model_fields}
    settings = load_settings(flags)
    configure_logging(verbose=False)
    classifier = load(settings, expectations)
    engine = open_classifier(classifier, settings, 1)
    if k > classifier.classes:
        raise SettingsError(
            f"--top-k: {k} is not allowed; {classifier.name} has {classifier.classes} classes"
        )
    engine.warm_up()
    table = Table("file", "label", "probability", box=None, header_style="bold")
    failed = False
    for file, outcome in _classify_files(_files(images), classifier, engine, settings, k):
        if isinstance(outcome, Exception):
            failed = True
            typer.echo(f"Error: {_text(file)}: {outcome}", err=True)
            if as_json:
                typer.echo(msgspec.json.encode({"file": _text(file), "error": str(outcome)}))
        elif as_json:
            typer.echo(msgspec.json.encode({"file": _text(file), "predictions": outcome}))
        else:
            for rank, prediction in enumerate(outcome):
                table.add_row(
                    Text("" if rank else _text(file)),  # not markup: [b] in a name is a name
                    Text(prediction["label"]),
                    f"{prediction['probability']:.4f}",
                )
    engine.close()
    if table.row_count:
        print_table(table)
    if failed:
        raise typer.Exit(1)


@app.command()
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
        print_report(report(classifier.network.graph, n), as_json=as_json)


app.command("tune")(tune_model)


@app.command("compile")
def compile_model(
    model: Model,
    arch: Annotated[str, typer.Option(help=f"Architectures, with commas: {', '.join(GPUS_OF)}.")],
    max_batch: MaxBatch = None,
    tuning: Tuning = None,
    external_data: ExternalData = None,
    expectations: Expectations = None,
) -> None:
    """Compile a model's CUDA kernels ahead of time, so that an engine starts warm. Needs no GPU."""
    flags = {name: value for name, value in locals().items() if name in Settings.model_fields}
    settings = load_settings(flags)
    configure_logging(verbose=False)
    classifier = load(settings, expectations)
    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("compiling kernels", total=None)
        count = precompile(
            classifier,
            [name.strip() for name in arch.split(",")],
            max_batch=settings.max_batch,
            tuning=settings.tuning,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    typer.echo(f"{count} kernels are compiled and cached")


app.command()(loadtest)


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    """Files as named; for a folder, the pictures directly in it, by name."""
    for path in paths:
        if path.is_dir():
            yield from sorted(p for p in path.iterdir() if p.suffix.lower() in IMAGE_SUFFIXES)
        else:
            yield path


def _text(file: Path) -> str:
    """A file's name to be printed, which not every name can be: some are no UTF-8."""
    return os.fsencode(file).decode("utf-8", "replace")


def _classify_files(
    files: Iterator[Path], classifier: Classifier, engine: Engine, settings: Settings, k: int
) -> Iterator[tuple[Path, list[Prediction] | Exception]]:
    """What each file shows, or why it could not be read, in order."""
    prepare = decoder(classifier, settings)
    meaning = classifier.preprocessing
    for file in files:
        try:
            with file.open("rb") as opened:
                data = opened.read(settings.max_body_bytes + 1)  # one more shows that it is more
            (row,) = rank(engine.run(prepare(data).run()[np.newaxis]), meaning.output)
            yield file, top_k(row, k, meaning.output, meaning.labels)
        except OSError as error:
            yield file, OSError(error.strerror or error)
        except ServiceError as error:
            yield file, error
