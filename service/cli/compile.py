"""Implements `convoy compile`, which compiles a model's CUDA kernels ahead of time."""

from functools import partial
from typing import Annotated

import typer

from models import ARCHITECTURES, precompile
from service.cli.options import Expectations, with_settings
from service.hosting.reading import load
from service.progress import progress
from service.settings import Settings
from service.telemetry.logs import configure_logging


@with_settings("model", "precision", "max_batch", "tuning", "external_data")
def compile_ahead(
    settings: Settings,
    arch: Annotated[
        str, typer.Option(help=f"Architectures, comma-separated: {', '.join(ARCHITECTURES)}.")
    ],
    expectations: Expectations = None,
) -> None:
    """Compile a model's CUDA kernels ahead of time, so that engines start faster. Needs no GPU."""
    configure_logging()
    classifier = load(settings, expectations)
    with progress() as show:
        count = precompile(
            classifier,
            [name.strip() for name in arch.split(",")],
            max_batch=settings.max_batch,
            tuning=settings.tuning,
            progress=partial(show, "compiling kernels"),
            threads=settings.thread_count,
        )
    typer.echo(f"{count} kernels are compiled and cached")
