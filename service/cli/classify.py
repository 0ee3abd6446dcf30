"""`convoy classify`: labels for image files, without a server."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import typer
from rich.table import Table
from rich.text import Text

from models import Classifier, Engine
from service.cli.inspect import print_table
from service.cli.options import (
    Device,
    Expectations,
    ExternalData,
    Labels,
    Model,
    Preset,
    Threads,
    Tuning,
    configure_logging,
)
from service.engine.ranking import Prediction, rank, top_k
from service.errors import ServiceError
from service.hosting.loading import decoder, load, open_classifier
from service.settings import Settings, SettingsError, load_settings

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")


def classify(
    model: Model,
    images: Annotated[
        list[Path], typer.Argument(help="JPEG, PNG or WebP files, or folders of them.")
    ],
    k: Annotated[int, typer.Option("--top-k", "-k", min=1, help="Labels an image.")] = 1,
    preset: Preset = None,
    labels: Labels = None,
    device: Device = None,
    threads: Threads = None,
    tuning: Tuning = None,
    external_data: ExternalData = None,
    expectations: Expectations = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object an image, a line each.")
    ] = False,
) -> None:
    """Classify pictures without a server.

    What cannot be read is reported, the rest classified, and the exit status is 1.
    """
    flags = {name: value for name, value in locals().items() if name in Settings.model_fields}
    settings = load_settings(flags)
    configure_logging(verbose=False)
    classifier = load(settings, expectations)
    engine = open_classifier(classifier, settings, 1)
    if k > classifier.classes:
        raise SettingsError(
            f"--top-k: {k} is not allowed; {classifier.name} has {classifier.classes} classes"
        )
    engine.warm_up()
    table = Table("file", "label", "probability", box=None, header_style="bold")
    failed = False
    for file, outcome in _classify_files(_files(images), classifier, engine, settings, k):
        if isinstance(outcome, Exception):
            failed = True
            typer.echo(f"Error: {_text(file)}: {outcome}", err=True)
            if as_json:
                typer.echo(msgspec.json.encode({"file": _text(file), "error": str(outcome)}))
        elif as_json:
            typer.echo(msgspec.json.encode({"file": _text(file), "predictions": outcome}))
        else:
            for rank, prediction in enumerate(outcome):
                table.add_row(
                    Text("" if rank else _text(file)),  # not markup: [b] in a name is a name
                    Text(prediction["label"]),
                    f"{prediction['probability']:.4f}",
                )
    engine.close()
    if table.row_count:
        print_table(table)
    if failed:
        raise typer.Exit(1)


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    """Files as named; for a folder, the pictures directly in it, by name."""
    for path in paths:
        if path.is_dir():
            yield from sorted(p for p in path.iterdir() if p.suffix.lower() in IMAGE_SUFFIXES)
        else:
            yield path


def _text(file: Path) -> str:
    """A file's name to be printed, which not every name can be: some are no UTF-8."""
    return os.fsencode(file).decode("utf-8", "replace")


def _classify_files(
    files: Iterator[Path], classifier: Classifier, engine: Engine, settings: Settings, k: int
) -> Iterator[tuple[Path, list[Prediction] | Exception]]:
    """What each file shows, or why it could not be read, in order."""
    prepare = decoder(classifier, settings)
    meaning = classifier.preprocessing
    for file in files:
        try:
            with file.open("rb") as opened:
                data = opened.read(settings.max_body_bytes + 1)  # one more shows that it is more
            (row,) = rank(engine.run(prepare(data).run()[np.newaxis]), meaning.output)
            yield file, top_k(row, k, meaning.output, meaning.labels)
        except OSError as error:
            yield file, OSError(error.strerror or error)
        except ServiceError as error:
            yield file, error
