"""Implements `convoy quantize`, which makes an 8-bit model or says why it cannot."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import typer
from rich.console import Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from loadtest.tables import left, make_table, print_table, right
from models import (
    MOST_PHOTOGRAPHS,
    Classifier,
    Goal,
    Photographs,
    QuantizationReport,
    check_photograph_count,
)
from models import quantize as make
from service.cli.classify import check_there, read_image, with_folders
from service.cli.named import expected_of, names_of_labels
from service.cli.options import Expectations, number_from_0_to_1, with_settings
from service.cli.plots import shortened
from service.errors import ServiceError
from service.hosting.finding import decoder, find_model
from service.hosting.presets import label_names
from service.hosting.reading import load
from service.images.file import FORMATS
from service.progress import progress
from service.settings import Settings, SettingsError
from service.telemetry.logs import configure_logging


@with_settings("model", "preset", "labels", "threads", "external_data")
def quantize(
    settings: Settings,
    images: Annotated[list[Path], typer.Argument(help=f"{FORMATS} files, or folders.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The ONNX file to write.")
    ],
    keep: Annotated[
        float,
        typer.Option(
            parser=number_from_0_to_1,
            metavar="<0 to 1>",
            help="Smallest share of the clear images that must keep their labels.",
        ),
    ] = Goal.keep,
    margin: Annotated[
        float,
        typer.Option(
            parser=number_from_0_to_1,
            metavar="<0 to 1>",
            help="Images whose two best probabilities differ by this or more are clear.",
        ),
    ] = Goal.margin,
    expectations: Expectations = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Make an 8-bit model from a float model, and measure how the two differ.

    One half of the photographs serves to measure how large activations are, the other half to
    compare labels. If no method keeps enough labels, the exit status is 1 and no file is written.
    If folders or files are named after labels, the accuracy must not fall either. Measurements are
    saved, so the command can be interrupted, and continues when it is run again.
    """
    configure_logging()
    check_there(images)
    source = find_model(settings)
    if output.exists() and output.samefile(source.path):
        raise SettingsError(f"--output: {output} is the model itself; name another file")
    if not output.absolute().parent.is_dir():
        folder = output.absolute().parent
        raise SettingsError(f"--output: there is no folder {folder}; create it, or name another")
    if output.is_dir():
        raise SettingsError(f"--output: {output} is a folder; name a file in it")
    partial = output.with_name(f"{output.name}.partial")
    try:
        partial.touch()
        partial.unlink()
    except OSError as error:
        raise SettingsError(
            f"--output: {output} cannot be written ({error.strerror}); name another folder"
        ) from error
    files = list(with_folders(images))
    if missing := next((file for file in files if not file.exists()), None):
        raise SettingsError(f"there is no file {missing}; name photographs or a folder of them")
    check_photograph_count(len(files))
    journal = output.with_name(f"{output.name}.progress")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    try:
        classifier = load(settings, expectations, source)
        with progress(*columns, TimeRemainingColumn()) as show:
            proto, report = make(
                classifier,
                _photographs(classifier, settings, files),
                goal=Goal(keep, margin),
                threads=settings.engine_threads,
                journal=journal,
                progress=show,
            )
    except KeyboardInterrupt:
        if journal.exists():
            kept = f"Measurements so far are in {journal}; run the command again to continue"
        else:
            kept = "Nothing was measured yet; run the command again to start over"
        typer.echo(f"Interrupted. {kept}", err=True)
        raise typer.Exit(1) from None
    try:
        partial.write_bytes(proto.SerializeToString(deterministic=True))
        os.replace(partial, output)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(asdict(report))).decode())
        return
    print_table(_table(report))
    typer.echo("")
    for line in _lines(report, Goal(keep, margin)):
        typer.echo(line)
    typer.echo(
        f"{output} was written; compare individual answers with:"
        f" convoy check {output} photos/ --original {source.path}"
    )


def _photographs(classifier: Classifier, settings: Settings, given: Sequence[Path]) -> Photographs:
    """Read and decode the files. Of more than MOST_PHOTOGRAPHS files, use only this number, spread
    evenly over the list. Raises an error if a file cannot be read."""
    prepare = decoder(classifier.preprocessing, settings)
    labels = classifier.preprocessing.labels
    names = names_of_labels(labels)
    classes: dict[str, set[int]] = {}
    for index, label in enumerate(labels):
        for name in label_names(label):
            classes.setdefault(name, set()).add(index)
    files, pixels, known = [], [], []
    if len(given) > MOST_PHOTOGRAPHS:  # evenly of all, so that no folder is left out
        indices = np.linspace(0, len(given) - 1, MOST_PHOTOGRAPHS).astype(int)
        given = [given[index] for index in indices]
    for file in given:
        try:
            pixels.append(prepare(read_image(file, settings)).run())
        except ServiceError as error:
            raise type(error)(f"{file}: {error}") from error
        files.append(str(file))
        expected = expected_of(file, names)
        known.append(frozenset(i for name in expected for i in classes.get(name, ())))
    shape = (0, *classifier.preprocessing.image_shape)
    return Photographs(
        tuple(files), np.stack(pixels) if pixels else np.empty(shape, np.uint8), tuple(known)
    )


def _table(report: QuantizationReport) -> RenderableType:
    rows = (
        (
            shortened(layer.name),
            f"{layer.divergence:+.5f}",
            f"{layer.saved:+.0%}",
            "float" if layer.in_float else "int8",
        )
        for layer in report.layers
    )
    columns = [*left("layer"), *right("divergence in 8 bits", "time in float"), *left("stays")]
    legend = "Divergence that 8 bits add in this layer, and time that float would add"
    return Group(Text(legend), Text(), make_table(columns, rows))


def _lines(report: QuantizationReport, goal: Goal) -> Iterator[str]:
    compared = report.compared
    in_float = sum(layer.in_float for layer in report.layers)
    biases = " and corrected biases" if report.biases_corrected else ""
    yield (
        f"{report.model}: ranges by {report.method}{biases} from {report.calibrated_on}"
        f" photographs; {in_float} of {len(report.layers)} layers stay in float; opset"
        f" {report.opset}"
    )
    yield (
        f"on {compared.images} other photographs, {compared.kept} labels stay the same"
        f" ({compared.kept / compared.images:.1%}), and so do {compared.kept_clear} of the"
        f" {compared.clear} clear labels (two best probabilities at least {goal.margin:g} apart);"
        f" the largest change of a probability is {compared.largest_shift:.3f}"
    )
    if compared.named:
        yield (
            f"of {compared.named} photographs named after a label, {compared.right_after} get the"
            f" right label, and {compared.right_before} got it before"
        )
    yield f"{report.bytes_before:,} bytes become {report.bytes_after:,}"
    for time in report.times:
        yield (
            f"N = {time.n}: {time.before * 1e3:.2f} ms become {time.after * 1e3:.2f} ms on this"
            f" machine, {time.before / time.after:.2f} times the images per second"
        )
    if any(time.after >= time.before for time in report.times):
        yield (
            "Warning: the 8-bit model is not faster on this machine. Models with small layers gain"
            " little, and no model gains much on a CPU without VNNI"
        )
