"""Defines the command line: `convoy serve`, `pull`, `models`, `classify`, `inspect` and others.

Exit status 0: success; 1: failure; 2: invalid command line or setting; 75: the GPU was lost, and a
new process may get it again. An error is one line on standard error, without a traceback.
"""

from typing import Annotated

import typer

from loadtest import LoadTestError, OptionsError
from loadtest.command import loadtest
from models import DeviceLostError, ModelError, __version__
from service.cli import check, classify, inspect, pull, serve, tune
from service.cli import compile as compile_ahead
from service.errors import ServiceError
from service.http.server import DEVICE_LOST, ListenError
from service.processes import WorkersError
from service.settings import SettingsError

_ERRORS = (ModelError, ServiceError, ListenError, WorkersError, LoadTestError, OSError)

app = typer.Typer(
    name="convoy",
    help="Serve ONNX image classifiers with low-latency dynamic batching.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # errors stay one line
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line; expected errors become one line and an exit status."""
    try:
        app()
    except (SettingsError, *_ERRORS) as error:
        typer.echo(f"Error: {error}", err=True)
        raise SystemExit(_status_of(error)) from None


def _status_of(error: Exception) -> int:
    if isinstance(error, DeviceLostError):
        return DEVICE_LOST
    return 2 if isinstance(error, SettingsError | OptionsError) else 1


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"convoy {__version__}")
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


app.command("serve")(serve.serve)
app.command("models")(pull.list_models)
app.command("pull")(pull.pull_model)
app.command("classify")(classify.classify)
app.command("check")(check.check)
app.command("inspect")(inspect.inspect)
app.command("tune")(tune.tune)
app.command("compile")(compile_ahead.compile_ahead)
app.command("loadtest")(loadtest)
