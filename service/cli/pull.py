"""Implements `convoy pull` and `convoy models`, for models in the catalogue and on a hub."""

from pathlib import Path

import typer

from loadtest.tables import left, make_table, print_table, right
from service.cli.options import names_of_models, with_settings
from service.hosting.catalogue import find_entry, pull, pulled, read_catalogue
from service.hosting.hub import parse_address
from service.hosting.hub import pull as pull_address
from service.progress import download_progress
from service.settings import BUILT_IN_NAME, Settings, hub_access
from service.telemetry.logs import configure_logging


@with_settings("catalogue")
def pull_model(
    settings: Settings,
    name: str = typer.Argument(
        help="A name that `convoy models` lists, or hf://ORG/NAME on Hugging Face's hub, or "
        "hf://ORG/NAME@REVISION/FILE.onnx.",
        autocompletion=names_of_models,
    ),
) -> None:
    """Download a model by name. `convoy serve NAME` then serves it, even without a network.

    An interrupted download is resumed. A file is deleted if it does not have the checksum that the
    catalogue or the hub states.
    """
    configure_logging()
    if name == BUILT_IN_NAME:
        typer.echo(f"{name} is built in")
        return
    with download_progress() as show:
        if (address := parse_address(Path(name))) is not None:
            path = pull_address(address, hub_access(), show)
        else:
            path = pull(name, find_entry(name, read_catalogue(settings.catalogue)), show)
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
