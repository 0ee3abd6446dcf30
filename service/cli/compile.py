"""`convoy compile`: a model's CUDA kernels ahead of time."""

from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from models import GPUS_OF, precompile
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


def compile_ahead(
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
