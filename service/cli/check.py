"""Implements `convoy check`, which compares a model's answers with ONNX Runtime's and tries all
presets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Annotated

import numpy as np
import typer

from loadtest.tables import left, make_table, print_table, right
from models import (
    Classifier,
    DeviceKind,
    Engine,
    Image,
    Kind,
    Original,
    Pixels,
    Precision,
    Preprocessing,
    Results,
    Scores,
    kind_of,
    score_tolerance,
)
from service.cli.classify import read_image, with_folders
from service.cli.named import expected_of, names_of_labels
from service.cli.options import Expectations, number_from_0, with_settings
from service.engine.ranking import Prediction, ScoreRow, top_k
from service.errors import ServiceError
from service.hosting.loading import (
    decoder,
    doubt_guess,
    find_model,
    image_reader,
    load,
    open_classifier,
)
from service.hosting.presets import PresetTrial, try_presets
from service.images.decode_pool import Decoding, NotForDeviceError
from service.settings import Settings, SettingsError
from service.telemetry.counts import NO_FILE, why_left
from service.telemetry.logs import configure_logging

# Of the images with labels, how many more another preset must be right for to be advised.
_CLEARLY_MORE = 0.1

_OTHER_PIXELS = "the GPU makes other pixels than the CPU"
_OTHER_SCORES = "the GPU makes the same pixels as the CPU, which get other scores"
_DIFFERENT = _OTHER_PIXELS, _OTHER_SCORES


@dataclass(frozen=True)
class _ImageComparison:
    """Holds one image's scores from Convoy and from ONNX Runtime."""

    file: Path
    ours: Prediction  # the likeliest class
    theirs: Prediction
    shift: float  # the largest difference of probabilities
    difference: float  # of scores, relative to the largest
    smallest: float  # of ONNX Runtime's scores

    @property
    def row(self) -> tuple[str, ...]:
        """Return the cells of a table."""
        return (
            str(self.file),
            self.ours["label"],
            f"{self.ours['probability']:.4f}",
            self.theirs["label"],
            f"{self.shift:.4f}",
            f"{self.difference:.1e}",
        )


@with_settings(
    *("model", "preset", "labels", "device", "precision", "threads", "resize", "decode", "tuning"),
    "external_data",
)
def check(
    settings: Settings,
    images: Annotated[list[Path], typer.Argument(help="JPEG, PNG or WebP files, or folders.")],
    tolerance: Annotated[
        float | None,
        typer.Option(
            parser=number_from_0,
            metavar="<float>",
            help="Largest difference, as a share of the largest score. "
            "[default: 0.001, or by how much scores of the precision may err]",
            show_default=False,
        ),
    ] = None,
    original_file: Annotated[
        Path | None,
        typer.Option(
            "--original",
            metavar="FILE",
            help="Compare with this model instead of the file: the one that it was quantised from.",
        ),
    ] = None,
    expectations: Expectations = None,
) -> None:
    """Compare a model's scores with those of ONNX Runtime on the file itself, and all presets.

    Both get the same decoded images. With --resize gpu or --decode gpu the GPU also gets the images
    before that, of which it must make the same pixels, and the same scores, to the bit. The exit
    status is 1 if it does not, if scores differ by more than the tolerance, or if an image cannot
    be read; with --original only by a tolerance that is given. Where folders or files are named
    after labels, it counts the right answers of each preset.
    """
    configure_logging()
    if settings.precision not in (None, Precision.FP32, Precision.INT8):
        if settings.device is DeviceKind.CPU:
            raise SettingsError(
                f"--precision: {settings.precision.value} is for a GPU; the CPU computes in fp32"
            )
        settings = settings.model_copy(update={"device": DeviceKind.CUDA})
    source = find_model(settings)
    classifier = load(settings, expectations, source)
    classifier = replace(classifier, keeps_input=settings.takes >= Kind.DECODED)
    original = Original(original_file or source.path, classifier)
    engine = open_classifier(classifier, settings, 1)
    engine = engine.warm_up()
    prepare = decoder(classifier.preprocessing, settings)
    kept = [classifier.input.name] if classifier.keeps_input else []
    compared: list[_ImageComparison] = []
    paths: dict[str, list[Path]] = {}
    failed = False
    for file in with_folders(images):
        try:
            decoding = prepare(read_image(file, settings))
            pixels = decoding.run()
            results = engine.run(pixels[np.newaxis], kept)
            ours, theirs = results.scores[0], original.run(pixels)
            compared.append(_compare(file, ours, theirs, classifier.preprocessing))
            if engine.takes >= Kind.DECODED:
                path = _path_of(engine, decoding, results, classifier.input.name)
                paths.setdefault(path, []).append(file)
        except (OSError, ServiceError) as error:
            typer.echo(f"Error: {file}: {error}", err=True)
            failed = True
    columns = [*left("file", "Convoy"), *right("probability"), *left("ONNX Runtime")]
    columns += right("probability differs by", "scores differ by")
    print_table(make_table(columns, [image.row for image in compared]))
    if tolerance is not None:
        allowed = tolerance
    else:
        allowed = inf if original_file else _allowed(classifier, engine, compared)
    _sum_up(classifier, engine, compared, allowed)
    for path, files in paths.items():
        shown = f": {', '.join(map(str, files))}" if path in _DIFFERENT else ""
        typer.echo(f"{path}: {len(files)} of {len(compared)} images{shown}")
    failed = failed or any(path in paths for path in _DIFFERENT)
    if compared:
        _show_presets(
            classifier, engine, [image.file for image in compared], image_reader(settings)
        )
    engine.close()
    if warning := doubt_guess(classifier, settings):
        typer.echo(warning)
    if failed or not compared or not all(image.difference <= allowed for image in compared):  # NaN
        raise typer.Exit(1)


def _path_of(engine: Engine, decoding: Decoding, of_pixels: Results, pixels: str) -> str:
    """Return a phrase that says where an image is decoded and resized, and whether that gives what
    the CPU's pixels gave: the scores, and the value `pixels` of the network."""
    image: Image | None = None
    why = NO_FILE if engine.takes is Kind.JPEG else ""
    if engine.takes is Kind.JPEG and decoding.file is not None:
        try:
            image, why = decoding.file(), ""
        except NotForDeviceError as left:
            why = left.reason
    if image is None:
        image = decoding.run() if decoding.unresized is None else decoding.unresized()
    results = engine.run([image], [pixels])
    if results.flags is not None and results.flags[0]:
        return f"decoded by the CPU ({why_left(int(results.flags[0]))})"
    if results.inner[pixels].tobytes() != of_pixels.inner[pixels].tobytes():
        return _OTHER_PIXELS
    if results.scores.tobytes() != of_pixels.scores.tobytes():
        return _OTHER_SCORES
    by = {Kind.JPEG: "decoded by the GPU", Kind.DECODED: "resized by the GPU"}
    what = by.get(kind_of(image), "resized by the CPU")
    return f"{what}{f', decoded by the CPU ({why})' if why else ''}, to the same pixels"


def _compare(file: Path, ours: Scores, theirs: Scores, meaning: Preprocessing) -> _ImageComparison:
    mine, other = (
        top_k(ScoreRow(scores), len(scores), meaning.output, meaning.labels)
        for scores in (ours, theirs)
    )
    p, q = (
        {prediction["index"]: prediction["probability"] for prediction in answer}
        for answer in (mine, other)
    )
    return _ImageComparison(
        file,
        mine[0],
        other[0],
        shift=max(abs(p[index] - q[index]) for index in q),
        difference=float(np.abs(ours - theirs).max() / np.abs(theirs).max()),
        smallest=float(theirs.min()),
    )


def _allowed(classifier: Classifier, engine: Engine, compared: Sequence[_ImageComparison]) -> float:
    """Return how much scores may differ at the precision in which the engine computes."""
    if engine.device.startswith("cpu"):
        classifier = replace(classifier, precision=Precision.FP32)
    smallest = min((image.smallest for image in compared), default=1.0)
    return max(1e-3, score_tolerance(classifier, smallest))


def _sum_up(
    classifier: Classifier, engine: Engine, compared: Sequence[_ImageComparison], allowed: float
) -> None:
    differing = [image for image in compared if image.ours["label"] != image.theirs["label"]]
    largest = max((image.difference for image in compared), default=0.0)
    typer.echo(
        f"{classifier.name} on {engine.device}: "
        f"{len(compared) - len(differing)} of {len(compared)} labels agree; "
        f"the largest difference of scores is {largest:.1e} of the largest score, "
        f"{'any' if allowed == inf else f'{allowed:.1g}'} is allowed"
    )
    if compared:
        shifts = [image.shift for image in compared]
        typer.echo(
            f"probabilities differ by {max(shifts):.4f} at most, {fmean(shifts):.4f} on average "
            "over the images"
        )
    if differing:
        typer.echo(f"labels differ for: {', '.join(str(image.file) for image in differing)}")


def _show_presets(
    classifier: Classifier,
    engine: Engine,
    files: Sequence[Path],
    read: Callable[[Path, Preprocessing], Pixels],
) -> None:
    """Print the results of every preset that fits, and which is right more often."""
    names = names_of_labels(classifier.preprocessing.labels)
    images = {file: expected_of(file, names) for file in files}
    trials = try_presets(classifier, engine, images, read)
    named = sum(bool(expected) for expected in images.values())
    used = next(trial for trial in trials if trial.used)
    typer.echo("")
    columns = [*left("preset"), *right("confidence", "scores that change with the image", "right")]
    rows = [_preset_row(trial, len(files), named) for trial in trials]
    print_table(make_table(columns if named else columns[:-1], rows))
    if not named:
        typer.echo(
            "How many answers are right is not known: no folder and no file is named after a label"
        )
        return
    best = max(trials, key=lambda trial: trial.right)
    if best.right - used.right > max(1, _CLEARLY_MORE * named):
        typer.echo(
            f"{best.name} is right for {best.right} of the {named} images that are named after "
            f"a label, {used.name} for {used.right}: set it with --preset {best.name}"
        )


def _preset_row(trial: PresetTrial, images: int, named: int) -> tuple[str, ...]:
    share = f"{trial.share:.0%}" if images > 1 else ""
    row = f"{trial.name}{', used' if trial.used else ''}", f"{trial.confidence:.2f}", share
    return (*row, f"{trial.right} of {named}") if named else row
