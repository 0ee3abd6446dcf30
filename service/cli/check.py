"""`convoy check`: a model's answers beside those of ONNX Runtime."""

from pathlib import Path
from statistics import fmean
from typing import Annotated

import numpy as np
import typer

from loadtest.tables import left, make_table, print_table, right
from models import DeviceKind, Original, Precision, score_tolerance
from service.cli.classify import read_image, with_folders
from service.cli.options import Expectations, configure_logging, with_settings
from service.engine.ranking import ScoreRow, top_k
from service.errors import ServiceError
from service.hosting.loading import decoder, load, model_file, open_classifier
from service.settings import Settings, SettingsError


@with_settings(
    "model", "preset", "labels", "device", "precision", "threads", "tuning", "external_data"
)
def check(
    settings: Settings,
    images: Annotated[list[Path], typer.Argument(help="JPEG, PNG or WebP files, or folders.")],
    tolerance: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Largest difference, as a share of the largest score. "
            "[default: 0.001, or by how much scores of the precision may err]",
            show_default=False,
        ),
    ] = None,
    expectations: Expectations = None,
) -> None:
    """Compare a model's scores with those of ONNX Runtime on the file itself.

    Both get the same decoded images. The exit status is 1 if scores differ by more than the
    tolerance, or if an image cannot be read.
    """
    configure_logging()
    if settings.precision not in (None, Precision.FP32):
        if settings.device is DeviceKind.CPU:
            raise SettingsError(
                f"--precision: {settings.precision.value} is for a GPU; the CPU computes in fp32"
            )
        settings = settings.model_copy(update={"device": DeviceKind.CUDA})
    classifier = load(settings, expectations)
    original = Original(model_file(settings), classifier)
    engine = open_classifier(classifier, settings, 1)
    engine.warm_up()
    prepare, meaning = decoder(classifier, settings), classifier.preprocessing
    rows: list[tuple[str, ...]] = []
    differences: list[float] = []  # of scores, an image each
    shifts: list[float] = []  # of probabilities: an image's largest
    smallest = np.inf
    for file in with_folders(images):
        try:
            pixels = prepare(read_image(file, settings)).run()
            ours, theirs = engine.run(pixels[np.newaxis])[0], original.run(pixels)
            answers = [
                top_k(ScoreRow(scores), len(scores), meaning.output, meaning.labels)
                for scores in (ours, theirs)
            ]
        except (OSError, ServiceError) as error:
            typer.echo(f"Error: {file}: {error}", err=True)
            differences.append(np.inf)
            continue
        differences.append(float(np.abs(ours - theirs).max() / np.abs(theirs).max()))
        p, q = ({each["index"]: each["probability"] for each in answer} for answer in answers)
        smallest = min(smallest, theirs.min())
        shifts.append(max(abs(p[index] - q[index]) for index in q))
        best = (answer[0]["label"] for answer in answers)
        rows.append((str(file), *best, f"{shifts[-1]:.4f}", f"{differences[-1]:.1e}"))
    engine.close()
    columns = [*left("file", "Convoy", "ONNX Runtime"), *right("probability", "difference")]
    print_table(make_table(columns, rows))
    allowed = tolerance
    if allowed is None:
        allowed = max(1e-3, score_tolerance(classifier, smallest))
    differing = [row[0] for row in rows if row[1] != row[2]]
    largest = max(differences, default=0.0)
    typer.echo(
        f"{classifier.name} on {engine.device}: "
        f"{len(rows) - len(differing)} of {len(differences)} labels agree; "
        f"the largest difference is {largest:.1e}, {allowed:.1g} is allowed"
    )
    if shifts:
        typer.echo(
            f"probabilities differ by {max(shifts):.4f} at most, {fmean(shifts):.4f} on average "
            "over the images"
        )
    if differing:
        typer.echo(f"labels differ for: {', '.join(differing)}")
    if not rows or not largest <= allowed:  # NaN too
        raise typer.Exit(1)
