"""`convoy serve`: opens the models, and serves them from one process or several."""

import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from typing import Annotated

import typer

from models import BUILT_IN_MODEL
from service.api.app import create_app
from service.api.v1 import CLASSIFY_PATH, model_path
from service.cli.options import (
    Device,
    Expectations,
    ExternalData,
    Labels,
    MaxBatch,
    Preset,
    Threads,
    Tuning,
    configure_logging,
    setting,
)
from service.edge.edge import EdgeOptions, Limits
from service.edge.keys import Keys, KeysError
from service.engine.watchdog import Bounds
from service.hosting.loading import decoder, open_models
from service.hosting.repository import Repository
from service.http.metrics_port import metrics_port
from service.http.server import bind, ended_by_sigterm, run_server
from service.processes import Options, prepare, run_workers
from service.settings import Settings, SettingsError, load_settings
from service.telemetry.logs import LogFormat

_log = logging.getLogger("convoy")


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


def serve_models(
    settings: Settings, expectations: Sequence[str] | None, edge: EdgeOptions, *, verbose: bool
) -> bool:
    """Serve until told to stop; whether all that was accepted was answered."""
    # The address first: it takes no time, and a model may take long.
    with ExitStack() as stack:
        stack.enter_context(ended_by_sigterm())
        listener = stack.enter_context(bind(settings.host, settings.port))
        if settings.workers:
            if not hasattr(os, "memfd_create"):
                raise SettingsError("--workers: processes share memory here as only Linux can")
            prepare(["service.cli"])
        make = partial(
            Repository,
            max_batch=settings.max_batch,
            max_queue=settings.max_queue,
            max_body_bytes=settings.max_body_bytes,
            decode_bytes=settings.decode_bytes,
            default=settings.default_model,
            bounds=Bounds(settings.engine_timeout_s, settings.warm_up_timeout_s),
        )
        repository = make(decode_threads=0 if settings.workers else settings.thread_count)
        if settings.metrics_port is not None:
            told = metrics_port(settings.host, settings.metrics_port, repository.metrics.exposition)
            _log.info("metrics are at port %d", stack.enter_context(told))
        for opened in open_models(settings, expectations):
            decode = decoder(opened.classifier, settings)
            repository.add(opened.info, opened.engine, decode, opened.reopen)
        _check_default(settings, repository)
        announce = partial(_announce, settings, listener.getsockname()[1], repository)
        if not settings.workers:
            app = create_app(repository, metrics=settings.metrics_port is None)
            return run_server(
                app,
                app.endpoints,
                repository,
                listener,
                drain_s=settings.drain_s,
                access_log=settings.access_log,
                edge=edge,
                announce=announce,
            )
        make_for_worker = partial(
            make,
            decode_threads=max(1, settings.thread_count // settings.workers),
            decode_bytes=settings.decode_bytes // settings.workers,
        )
        configure = partial(configure_logging, verbose=verbose, log_format=settings.log_format)
        options = Options(
            settings.workers,
            make_for_worker,
            configure,
            drain_s=settings.drain_s,
            access_log=settings.access_log,
            metrics=settings.metrics_port is None,
            edge=edge,
        )
        return run_workers(repository, listener, options, announce)


def edge_options(settings: Settings) -> EdgeOptions:
    """What the settings say of connections; SettingsError where that makes no sense."""
    if settings.otel and not _is_installed("opentelemetry.exporter.otlp.proto.http"):
        raise SettingsError("--otel: OpenTelemetry is not installed; pip install 'convoy[otel]'")
    servers = settings.workers or 1  # each takes its share of the connections
    limits = Limits(
        connections=ceil(settings.max_connections / servers),
        per_address=ceil(settings.connections_per_address / servers),
        per_client=settings.max_per_client,
        rate=settings.max_rate,
    )
    try:
        keys = Keys(settings.api_key_file) if settings.api_key_file is not None else None
    except KeysError as error:
        raise SettingsError(f"--api-key-file: {error}") from error
    return EdgeOptions(limits, keys, settings.log_format, settings.otel)


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even what it would be in
        return False


def _check_default(settings: Settings, repository: Repository) -> None:
    if settings.default_model is not None and settings.default_model not in repository.models:
        raise SettingsError(
            f"--default-model: {settings.default_model} is not served; "
            f"there are {', '.join(repository.models)}"
        )


def _announce(settings: Settings, port: int, repository: Repository) -> None:
    """Say where it serves, and how to try."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104  compared
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    first = repository.default or next(iter(repository.models.values()))
    path = CLASSIFY_PATH if repository.default else model_path(first.info.name)
    samples = sorted((BUILT_IN_MODEL.parent / "samples").glob("*"))
    if first.info.name == BUILT_IN_MODEL.stem and samples:
        picture = Path(os.path.relpath(samples[0]))
    else:
        picture = Path("picture.jpg")
    typer.echo(
        f"Convoy serves {', '.join(repository.models)} at {url} on {first.runner.device}, "
        f"in batches of up to {first.runner.max_batch}. Try:\n"
        f"  curl -F file=@{picture} {url}{path}"
    )
