"""Implements `convoy classify`, which labels image files without a server."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import typer

from loadtest.tables import left, make_table, print_table, right
from models import classes_of
from service.cli.options import Expectations, with_settings
from service.engine.ranking import rank, top_k
from service.errors import ServiceError
from service.hosting.finding import decoder
from service.hosting.reading import load, open_classifier
from service.images.file import FORMATS, ImageFormat
from service.settings import Settings, SettingsError
from service.telemetry.logs import configure_logging

_SHOWN = 3  # names of files in a message

IMAGE_SUFFIXES = frozenset(suffix for kind in ImageFormat for suffix in kind.suffixes)


@with_settings(
    "model", "preset", "labels", "device", "precision", "threads", "tuning", "external_data"
)
def classify(
    settings: Settings,
    images: Annotated[list[Path], typer.Argument(help=f"{FORMATS} files, or folders.")],
    k: Annotated[int, typer.Option("--top-k", "-k", min=1, help="Labels per image.")] = 1,
    expectations: Expectations = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per image and line.")
    ] = False,
) -> None:
    """Classify images without a server.

    If an image cannot be read, an error is printed, and the exit status is 1. The other images are
    classified.
    """
    configure_logging()
    check_there(images)
    classifier = load(settings, expectations)
    engine = open_classifier(classifier, settings, 1)
    if k > (classes := classes_of(classifier.classes)):
        raise SettingsError(f"--top-k: {k} is not allowed; {classifier.name} has {classes} classes")
    if classifier.warning:
        typer.echo(f"Warning: {classifier.warning}", err=True)
    engine = engine.warm_up()
    prepare, meaning = decoder(classifier.preprocessing, settings), classifier.preprocessing
    rows: list[tuple[str, str, str]] = []
    failed = False
    for file in with_folders(images):
        name = os.fsencode(file).decode("utf-8", "replace")  # file names need not be UTF-8
        try:
            pixels = prepare(read_image(file, settings)).run()
            (row,) = rank(engine.run(pixels[np.newaxis]), meaning.output)
            predictions = top_k(row, k, meaning.output, meaning.labels)
        except (OSError, ServiceError) as error:
            failed = True
            reason = str(getattr(error, "strerror", None) or error)
            typer.echo(f"Error: {name}: {reason}", err=True)
            if as_json:
                typer.echo(msgspec.json.encode({"file": name, "error": reason}))
            continue
        if as_json:
            typer.echo(msgspec.json.encode({"file": name, "predictions": predictions}))
            continue
        for index, prediction in enumerate(predictions):
            rows.append(
                ("" if index else name, prediction["label"], f"{prediction['probability']:.4f}")
            )
    engine.close()
    if rows:
        print_table(make_table([*left("file", "label"), *right("probability")], rows))
    if failed:
        raise typer.Exit(1)


def check_there(paths: Sequence[Path]) -> None:
    """Raise SettingsError if none of the paths has an image. Called before a model is loaded."""
    named = ", ".join(map(str, paths[:_SHOWN]))
    if paths and not any(path.exists() for path in paths):
        raise SettingsError(f"there is no file or folder {named}; name images or a folder of them")
    if paths and next(with_folders(paths), None) is None:
        names = ", ".join(sorted(IMAGE_SUFFIXES))
        raise SettingsError(f"there is no image in {named}; images in a folder must end in {names}")


def read_image(file: Path, settings: Settings) -> bytes:
    """Return a file's bytes. If the file is too long for a request, return only one byte more than
    the limit, so that decoding refuses it."""
    with file.open("rb") as opened:
        return opened.read(settings.max_body_bytes + 1)


def with_folders(paths: Sequence[Path]) -> Iterator[Path]:
    """Yield files unchanged. For a folder, yield the image files in it and its subfolders, sorted
    by name."""
    for path in paths:
        if path.is_dir():
            inside = (*path.iterdir(), *path.glob("*/*"))
            yield from sorted(p for p in inside if p.suffix.lower() in IMAGE_SUFFIXES)
        else:
            yield path
