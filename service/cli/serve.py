"""Implements `convoy serve`, which serves models, and `convoy demo`, which also opens the page.

settings ─┬─ this process ─── imports the server ─ listens ─ opens models ── warms up ── serves
          └─ forked process ─ imports ONNX ─ reads and tests models ─┘
"""

import signal
from contextlib import closing
from typing import Annotated

import typer

from service.cli.collector import importing
from service.cli.options import Expectations, with_settings
from service.hosting.reads import begin_reading
from service.settings import Settings


@with_settings(*Settings.model_fields, model_required=False)
def serve(
    settings: Settings,
    expectations: Expectations = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also log the HTTP server's messages.")
    ] = False,
) -> None:
    """Serve one model or several over HTTP until SIGTERM or Ctrl-C.

    Each setting is a flag and an environment variable: --max-batch is CONVOY_MAX_BATCH.
    """
    _serve(settings, expectations, verbose=verbose, browse=False)


@with_settings(
    *("model", "host", "port", "device", "preset", "precision", "beside"), model_required=False
)
def demo(settings: Settings, expectations: Expectations = None) -> None:
    """Serve a model, and open its page in a browser. Ctrl-C ends it."""
    _serve(settings, expectations, verbose=False, browse=True)


def _serve(
    settings: Settings, expectations: list[str] | None, *, verbose: bool, browse: bool
) -> None:
    # If the caller ignored it, Linux would discard the status of each process that ends.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with closing(begin_reading(settings, expectations)) as reads:
        # The models are read while this module is imported.
        with importing():
            from service.cli.listen import listen  # noqa: PLC0415

        listen(settings, expectations, reads, verbose=verbose, browse=browse)
