"""Implements `convoy check`, which compares a model's scores with ONNX Runtime's scores, and tries
all presets."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import comb, inf
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
    classes_of,
    contradiction,
    kind_of,
    tolerance,
)
from service.cli.classify import check_there, read_image, with_folders
from service.cli.named import expected_of, names_of_labels
from service.cli.options import Expectations, number_from_0, with_settings
from service.engine.ranking import DEFAULT_THRESHOLD, Prediction, ScoreRow, top_k
from service.errors import ServiceError
from service.hosting.finding import decoder, find_model, image_reader
from service.hosting.presets import PresetTrial, try_presets
from service.hosting.reading import load, open_classifier
from service.images.decode_pool import Decoding, NotForDeviceError
from service.images.file import FORMATS
from service.settings import Settings, SettingsError
from service.telemetry.counts import NO_FILE, why_left
from service.telemetry.logs import configure_logging

# Another preset is advised if it is right for more images than the preset in use, by more than this
# share of the images with labels. Two presets are told apart if their wins would be less probable
# than this if both were equally good.
_CLEARLY_MORE = 0.1
_IMPROBABLE = 0.05
# The largest difference between a probability that clients get and the probability from ONNX
# Runtime's scores, for float32. For other precisions, the tolerance of the scores applies if it is
# larger.
_SHIFT = 1e-3

_OTHER_PIXELS = "the GPU computes other pixels than the CPU"
_OTHER_SCORES = "the GPU computes the same pixels as the CPU, but other scores"
_DIFFERENT = _OTHER_PIXELS, _OTHER_SCORES


@dataclass(frozen=True)
class _ImageComparison:
    """Holds one image's scores from Convoy and from ONNX Runtime."""

    file: Path
    ours: Prediction  # the likeliest class
    theirs: Prediction
    shift: float  # the largest difference of probabilities
    same: bool  # whether a client gets the same labels in the same order
    difference: float  # of scores, relative to the largest
    scores: Scores  # ONNX Runtime's

    def is_within(self, allowed: float) -> bool:
        """Return whether the scores, and the probabilities that clients get, differ by at most
        `allowed`. Returns False for NaN."""
        return self.difference <= allowed and self.shift <= max(_SHIFT, allowed)

    @property
    def row(self) -> tuple[str, ...]:
        """Return the cells of the image's row in the table."""
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
    images: Annotated[list[Path], typer.Argument(help=f"{FORMATS} files, or folders.")],
    largest: Annotated[
        float | None,
        typer.Option(
            "--tolerance",
            parser=number_from_0,
            metavar="<float>",
            help="Largest allowed difference of scores, as a share of the largest score. "
            "[default: 0.001, or the expected error of the precision]",
            show_default=False,
        ),
    ] = None,
    original_file: Annotated[
        Path | None,
        typer.Option(
            "--original",
            metavar="FILE",
            help="Compare with this float model, from which an 8-bit model was made.",
        ),
    ] = None,
    expectations: Expectations = None,
) -> None:
    """Compare a model's scores with the scores that ONNX Runtime computes, and try all presets.

    Convoy and ONNX Runtime get the same decoded images. With --resize gpu or --decode gpu the GPU
    also resizes or decodes the images, and must compute exactly the same pixels and scores as the
    CPU. The exit status is 1 if the GPU's results differ from the CPU's, if scores differ from ONNX
    Runtime's by more than the tolerance, or if an image cannot be read. With --original, any
    difference is allowed if --tolerance is not given. If folders or files are named after labels,
    the right answers of each preset are counted.
    """
    configure_logging()
    if settings.precision not in (None, Precision.FP32, Precision.INT8):
        if settings.device is DeviceKind.CPU:
            raise SettingsError(
                f"--precision: {settings.precision.value} needs a GPU, but --device is cpu; the CPU"
                " computes in fp32"
            )
        settings = settings.model_copy(update={"device": DeviceKind.CUDA})
    check_there(images)
    source = find_model(settings)
    loaded = load(settings, expectations, source)
    classifier = replace(loaded, keeps_input=settings.takes >= Kind.DECODED)
    original = Original(original_file or source.path, classifier)
    engine = open_classifier(classifier, settings, 1).warm_up()
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
            compared.append(_compare(file, ours, theirs, classifier))
            if engine.takes >= Kind.DECODED:
                path = _path_of(engine, decoding, results, classifier.input.name)
                paths.setdefault(path, []).append(file)
        except (OSError, ServiceError) as error:
            typer.echo(f"Error: {file}: {error}", err=True)
            failed = True
    columns = [*left("file", "Convoy"), *right("probability"), *left("ONNX Runtime")]
    columns += right("probability differs by", "scores differ by")
    print_table(make_table(columns, [image.row for image in compared]))
    if largest is not None:
        allowed = largest
    elif original_file or not compared:
        allowed = inf
    else:
        scores = np.array([image.scores for image in compared])
        allowed = tolerance(classifier, scores, on_kernels=not engine.on_cpu)
    failed = not _are_what_they_are_taken_for(classifier, compared) or failed
    _sum_up(classifier, engine, compared, allowed)
    _show_paths(paths, len(compared))
    failed = failed or any(path in paths for path in _DIFFERENT)
    if compared:
        _show_presets(
            classifier, engine, [image.file for image in compared], image_reader(settings)
        )
    engine.close()
    if classifier.warning:
        typer.echo(classifier.warning)
    if failed or not compared or not all(image.is_within(allowed) for image in compared):
        raise typer.Exit(1)


def _path_of(engine: Engine, decoding: Decoding, of_pixels: Results, pixels: str) -> str:
    """Return a phrase that says which processor decodes and resizes the image, or that the GPU's
    results are wrong. `of_pixels` has the right results, computed from the CPU's pixels. `pixels`
    names the network's input."""
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


def _show_paths(paths: Mapping[str, Sequence[Path]], images: int) -> None:
    for path, files in paths.items():
        shown = f": {', '.join(map(str, files))}" if path in _DIFFERENT else ""
        typer.echo(f"{path}: {len(files)} of {images} images{shown}")


def _are_what_they_are_taken_for(
    classifier: Classifier, compared: Sequence[_ImageComparison]
) -> bool:
    """Print the assumed kind of the model's scores. Return False if the scores for the images
    contradict this kind."""
    typer.echo(f"{classifier.name}: {classifier.scores}")
    if not compared:
        return True
    scores = np.array([image.scores for image in compared], np.float64)
    if wrong := contradiction(classifier.preprocessing.output, scores):
        typer.echo(
            f"{classifier.name}: its scores for these images are not of this kind, because {wrong};"
            " set the right kind as output in model.toml or with --set output=KIND"
        )
    return not wrong


def _compare(file: Path, ours: Scores, theirs: Scores, classifier: Classifier) -> _ImageComparison:
    meaning, classes = classifier.preprocessing, classes_of(classifier.classes)
    mine, other = (
        top_k(ScoreRow(scores), classes, meaning.output, meaning.labels)
        for scores in (ours, theirs)
    )
    least = DEFAULT_THRESHOLD if classifier.is_multi_label else 0.0
    answered = [
        [each["index"] for each in answer if each["probability"] >= least][: None if least else 1]
        for answer in (mine, other)
    ]
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
        same=answered[0] == answered[1],
        scores=theirs,
    )


def _sum_up(
    classifier: Classifier, engine: Engine, compared: Sequence[_ImageComparison], allowed: float
) -> None:
    differing = [image for image in compared if not image.same]
    largest = max((image.difference for image in compared), default=0.0)
    typer.echo(
        f"{classifier.name} on {engine.device}: "
        f"{len(compared) - len(differing)} of {len(compared)} labels agree; "
        f"the largest difference of scores is {largest:.1e} of the largest score; "
        f"{'any difference' if allowed == inf else f'at most {allowed:.1g}'} is allowed"
    )
    if compared:
        shifts = [image.shift for image in compared]
        typer.echo(
            f"probabilities differ by at most {max(shifts):.4f}, and by {fmean(shifts):.4f} on"
            " average over the images"
        )
    if differing:
        typer.echo(f"labels differ for: {', '.join(str(image.file) for image in differing)}")


def _show_presets(
    classifier: Classifier,
    engine: Engine,
    files: Sequence[Path],
    read: Callable[[Path, Preprocessing], Pixels],
) -> None:
    """Print the results of every preset that fits the model. Print advice if another preset is
    right clearly more often than the preset in use."""
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
            "The number of right answers is unknown: no folder and no file is named after a label"
        )
        return
    if advice := _advice(used, trials, named):
        typer.echo(advice)


def _advice(used: PresetTrial, trials: Sequence[PresetTrial], named: int) -> str:
    """Return advice to use another preset if it is right clearly more often than the preset in use.
    Otherwise, return an empty text."""
    best = max(trials, key=lambda trial: (trial.right, trial.likelihood))
    if best.right - used.right <= max(1, _CLEARLY_MORE * named):
        return ""
    said = (
        f"{best.name} is right for {best.right} of the {named} images that are named after a label,"
        f" and {used.name} is right for {used.right}"
    )
    alike = [
        trial.name
        for trial in trials
        if trial is not best and chance_of(best.correct, trial.correct) >= _IMPROBABLE
    ]
    if used.name in alike:
        return f"{said}, which may be chance; try more images"
    if 2 * best.right < named:
        return f"{said}. That is fewer than half, so probably none of these presets is right"
    if alike:
        others = ", ".join(alike)
        return f"{said}; these images do not distinguish {best.name} from {others}: try more images"
    return f"{said}; set --preset {best.name}"


def chance_of(better: Sequence[bool], other: Sequence[bool]) -> float:
    """Return the p-value of a sign test: the probability that `better` wins at least as often as it
    did, if both presets are equally good."""
    won = sum(a and not b for a, b in zip(better, other, strict=True))
    changed = sum(a != b for a, b in zip(better, other, strict=True))
    ways = sum(comb(changed, wins) for wins in range(won, changed + 1))
    return float(ways / 2**changed)


def _preset_row(trial: PresetTrial, images: int, named: int) -> tuple[str, ...]:
    share = f"{trial.share:.0%}" if images > 1 else ""
    row = f"{trial.name}{', used' if trial.used else ''}", f"{trial.confidence:.2f}", share
    return (*row, f"{trial.right} of {named}") if named else row
