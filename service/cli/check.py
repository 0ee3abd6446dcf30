"""`convoy check`: a model's answers beside those of ONNX Runtime."""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from loadtest.tables import left, make_table, print_table, right
from models import Original
from service.cli.classify import read_image, with_folders
from service.cli.options import Expectations, configure_logging, with_settings
from service.engine.ranking import ScoreRow, top_k
from service.errors import ServiceError
from service.hosting.loading import decoder, load, model_file, open_classifier
from service.settings import Settings


@with_settings("model", "preset", "labels", "device", "threads", "tuning", "external_data")
def check(
    settings: Settings,
    images: Annotated[list[Path], typer.Argument(help="JPEG, PNG or WebP files, or folders.")],
    tolerance: Annotated[
        float, typer.Option(min=0, help="Largest difference, as a share of the largest score.")
    ] = 1e-3,
    expectations: Expectations = None,
) -> None:
    """Compare a model's scores with those of ONNX Runtime on the file itself.

    Both get the same decoded images. The exit status is 1 if scores differ by more than the
    tolerance, or if an image cannot be read.
    """
    configure_logging()
    classifier = load(settings, expectations)
    original = Original(model_file(settings), classifier)
    engine = open_classifier(classifier, settings, 1)
    engine.warm_up()
    prepare, meaning = decoder(classifier, settings), classifier.preprocessing
    rows: list[tuple[str, ...]] = []
    differences: list[float] = []
    for file in with_folders(images):
        try:
            pixels = prepare(read_image(file, settings)).run()
        except (OSError, ServiceError) as error:
            typer.echo(f"Error: {file}: {error}", err=True)
            differences.append(np.inf)
            continue
        ours, theirs = engine.run(pixels[np.newaxis])[0], original.run(pixels)
        difference = float(np.abs(ours - theirs).max() / np.abs(theirs).max())
        differences.append(difference)
        best = [
            top_k(ScoreRow(scores), 1, meaning.output, meaning.labels)[0]["label"]
            for scores in (ours, theirs)
        ]
        rows.append((str(file), *best, f"{difference:.1e}"))
    engine.close()
    columns = [*left("file", "Convoy", "ONNX Runtime"), *right("difference")]
    print_table(make_table(columns, rows))
    agreed = sum(row[1] == row[2] for row in rows)
    largest = max(differences, default=0.0)
    typer.echo(
        f"{classifier.name} on {engine.device}: {agreed} of {len(differences)} labels agree; "
        f"the largest difference is {largest:.1e}, {tolerance:g} is allowed"
    )
    if not rows or not largest <= tolerance:  # NaN too
        raise typer.Exit(1)
