"""`convoy compile`: a model's CUDA kernels ahead of time."""

from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from models import GPUS_OF, precompile
from service.cli.options import Expectations, configure_logging, with_settings
from service.hosting.loading import load
from service.settings import Settings


@with_settings("model", "max_batch", "tuning", "external_data")
def compile_ahead(
    settings: Settings,
    arch: Annotated[
        str, typer.Option(help=f"Architectures, comma-separated: {', '.join(GPUS_OF)}.")
    ],
    expectations: Expectations = None,
) -> None:
    """Compile a model's CUDA kernels ahead of time, so that engines start warm. Needs no GPU."""
    configure_logging()
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
