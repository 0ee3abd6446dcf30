"""Implements `convoy pull` and `convoy models`: models of the catalogue."""

import typer
from rich.console import Console
from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

from loadtest.tables import left, make_table, print_table, right
from service.cli.options import with_settings
from service.hosting.catalogue import find_entry, pull, pulled, read_catalogue
from service.hosting.loading import BUILT_IN_NAME
from service.settings import Settings


@with_settings("catalogue")
def pull_model(
    settings: Settings, name: str = typer.Argument(help="A name that `convoy models` lists.")
) -> None:
    """Download a model by name, to serve it as `convoy serve NAME`.

    An interrupted download is resumed. A file whose SHA-256 is not the catalogue's is not kept.
    """
    if name == BUILT_IN_NAME:
        typer.echo(f"{name} is built in")
        return
    entry = find_entry(name, read_catalogue(settings.catalogue))
    columns = (*Progress.get_default_columns(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=entry.bytes)
        path = pull(name, entry, lambda done: bar.update(task, completed=done))
    typer.echo(f"{name} is in {path}; serve it with: convoy serve {name}")


@with_settings("catalogue")
def list_models(settings: Settings) -> None:
    """List the models that `convoy pull` knows."""
    rows = (
        (
            name,
            f"{entry.bytes / 1e6:,.1f}",
            entry.preset,
            "" if entry.top1 is None else f"{entry.top1:.2f}",
            entry.licence,
            "yes" if pulled(name) else "",
        )
        for name, entry in read_catalogue(settings.catalogue).items()
    )
    columns = [*left("model"), *right("MB"), *left("preset"), *right("top-1 %")]
    print_table(make_table([*columns, *left("licence", "pulled")], rows))
