"""`convoy compile`: a model's CUDA kernels ahead of time."""

from contextlib import ExitStack
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from models import GPUS_OF, precompile
from service.cli.options import Expectations, configure_logging, with_settings
from service.hosting.loading import load
from service.settings import Settings


@with_settings("model", "precision", "max_batch", "tuning", "external_data")
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
    with ExitStack() as shown:
        bar = Progress(console=Console(stderr=True))
        task = bar.add_task("compiling kernels", total=None)

        def show(done: int, total: int) -> None:
            if not bar.live.is_started:  # an earlier error is one line, without a bar
                shown.enter_context(bar)
            bar.update(task, completed=done, total=total)

        count = precompile(
            classifier,
            [name.strip() for name in arch.split(",")],
            max_batch=settings.max_batch,
            tuning=settings.tuning,
            progress=show,
        )
    typer.echo(f"{count} kernels are compiled and cached")
