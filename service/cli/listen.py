"""Runs the server of `convoy serve` and `convoy demo`."""

import logging
import os
import webbrowser
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from threading import Thread

import typer
from starlette.types import ASGIApp

from models import how_to_install
from service.api.endpoints import endpoints_of
from service.api.page import example_for
from service.api.v1 import CLASSIFY_PATH, model_path
from service.cli.collector import importing
from service.edge.keys import Keys
from service.engine.job_processes import JobParent
from service.grpc import port_of
from service.hosting.opening import add_models, make_repository
from service.hosting.reads import Reads
from service.hosting.repository import Repository
from service.http.deferred import Deferred
from service.http.exchange import AnyEndpoint
from service.http.metrics_port import metrics_port
from service.http.server import bind, ended_by_sigterm, run_server
from service.machine.memory import share_one_arena
from service.settings import Settings, SettingsError
from service.telemetry.logs import configure_logging

_log = logging.getLogger("convoy")


def listen(
    settings: Settings,
    expectations: list[str] | None,
    reads: Reads,
    *,
    verbose: bool,
    browse: bool,
) -> None:
    """Serve the models in `reads`, the result of `begin_reading`, until a signal ends the server.
    With `browse`, open the page in a browser once the server is ready."""
    with ExitStack() as stack:
        # This comes first, because there must be no sockets and no threads yet; the log has a
        # thread.
        parent = JobParent.fork() if settings.processes else None
        if parent is not None:
            stack.callback(parent.close)
        if settings.grpc_port is not None:
            share_one_arena()
        configure_logging(verbose=verbose, log_format=settings.log_format, level=settings.log_level)
        keys = _keys(settings)
        stack.enter_context(ended_by_sigterm())
        # Before the models are opened, which may take long, so that an address in use fails at
        # once.
        listener = stack.enter_context(bind(settings.host, settings.port))
        repository = make_repository(settings, parent)
        if settings.metrics_port is not None:
            exposition = repository.metrics.exposition
            scraped = metrics_port(settings.host, settings.metrics_port, exposition)
            port = stack.enter_context(scraped)
            settings = settings.model_copy(update={"metrics_port": port})
            _log.info("metrics are on port %d", port)
        settings = _with_grpc_port(settings)
        add_models(repository, settings, expectations, reads)
        endpoints = endpoints_of(repository)
        app = Deferred(partial(_application, repository, endpoints, settings))

        def announce() -> None:
            _announce(settings, listener.getsockname()[1], repository, browse=browse)
            app.begin()

        all_answered = run_server(
            app,
            endpoints,
            repository,
            listener,
            settings,
            keys,
            announce,
            port_of(repository, settings),
        )
    if not all_answered:
        raise typer.Exit(1)


def _application(
    repository: Repository, endpoints: Mapping[str, AnyEndpoint], settings: Settings
) -> ASGIApp:
    with importing():
        from service.api.app import create_app  # noqa: PLC0415  it brings FastAPI

    return create_app(repository, endpoints, metrics_port=settings.metrics_port)


def _with_grpc_port(settings: Settings) -> Settings:
    """Return the settings with a free port for gRPC. Raises ListenError if there is none, and
    SettingsError if grpcio is not installed.
    """
    if settings.grpc_port is None:
        return settings
    try:
        import_module("..grpc.port", __package__)
    except ImportError as error:
        raise SettingsError(
            f"--grpc-port: grpcio is not installed; {how_to_install('grpc')}"
        ) from error
    # Only checks that the port is free: grpcio cannot take over a socket.
    with bind(settings.host, settings.grpc_port, "--host and --grpc-port") as free:
        port = free.getsockname()[1]
    return settings.model_copy(update={"grpc_port": port})


def _keys(settings: Settings) -> Keys | None:
    """Return the API keys. Raises SettingsError for an invalid key file, and if OpenTelemetry is
    needed but not installed.
    """
    if settings.otel:
        try:
            import_module("..telemetry.tracing", __package__)
        except ImportError as error:
            raise SettingsError(
                f"--otel: OpenTelemetry is not installed; {how_to_install('otel')}"
            ) from error
    return Keys(settings.api_key_file) if settings.api_key_file is not None else None


def _announce(settings: Settings, port: int, repository: Repository, *, browse: bool) -> None:
    """Print the server's addresses and an example of a request. If `browse`, open the page."""
    host = settings.host
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  compared
    host = f"[{host}]" if ":" in host else host
    url = f"http://{host}:{port}"
    grpc = f" and over gRPC at {host}:{settings.grpc_port}" if settings.grpc_port else ""
    first = repository.default or next(iter(repository.models.values()))
    path = CLASSIFY_PATH if repository.default else model_path(first.info.name)
    image = os.path.relpath(example_for(first.info.image_shape))
    typer.echo(
        f"Convoy serves {', '.join(repository.models)} at {url}{grpc} on {first.runner.device}, "
        f"in batches of up to {first.runner.max_batch}. Open {url}/ in a browser, or try:\n"
        f"  curl -F file=@{image} {url}{path}"
    )
    if browse:
        # In a thread, because the call of a browser in a terminal returns only when the browser is
        # closed.
        Thread(target=_open_browser, args=(f"{url}/",), daemon=True).start()


def _open_browser(url: str) -> None:
    if not webbrowser.open(url):
        typer.echo(f"No browser was found; open {url} yourself")
