"""The command line: `convoy serve`, `classify`, `inspect`, `tune`, `compile`, `loadtest`.

Exit status 0: done. 1: it failed. 2: the command line or a setting makes no sense. 75: the GPU took
no more work from this process; another may have it again, so start it afresh. Errors are one line
on standard error, never a traceback.
"""

from importlib.metadata import version
from typing import Annotated

import typer

from loadtest.command import loadtest
from loadtest.errors import LoadTestError
from models import DeviceLostError, ModelError
from service.cli import classify, inspect, serve, tune
from service.cli import compile as compile_ahead
from service.errors import ServiceError
from service.http.server import DEVICE_LOST, ListenError
from service.processes import WorkersError
from service.settings import SettingsError

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
    except DeviceLostError as error:
        _fail(error, DEVICE_LOST)
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


app.command("serve")(serve.serve)
app.command("classify")(classify.classify)
app.command("inspect")(inspect.inspect)
app.command("tune")(tune.tune)
app.command("compile")(compile_ahead.compile_ahead)
app.command("loadtest")(loadtest)
