"""Classifies photographs with Convoy, without any flag, and compares the answers with the answers
of the exporters' own inference code."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from logging.handlers import BufferingHandler
from pathlib import Path

import onnx
from typer.testing import CliRunner

from benchmarks.exporters.catalogue import EXPECTED, OTHERWISE
from service.cli import app

TOLERANCE = 1e-3
"""An answer is right if no probability differs by more than this."""

STEP = 0.02
"""The largest allowed difference for quantized networks. A value between two 8-bit codes may be
rounded to either code."""

OF_OWN = 2.0
"""The largest allowed difference, divided by the difference between the two ways in which the
runtime ran the file. It applies to networks that amplify rounding steps, like random networks."""

RIGHT, PIXELS, STEPS = "right", "right with exact", "right to a step of 8 bits"
REFUSED, WARNED, WRONG = "refused", "warned", "wrong"
"""PIXELS: right with `exact = true`, with which every pixel equals the exporter's. WARNED:
different, and a warning gives a possible reason. WRONG: different without a warning."""

ARE_RIGHT = (RIGHT, PIXELS, STEPS)

_MOST_LINES = 1000

_EXACT = ("--set", "exact=true")


@dataclass(frozen=True)
class Verdict:
    """Holds the result for one model: how Convoy's answers differ from the answers of the
    exporter's pipeline."""

    model: str
    outcome: str
    difference: float | None = None
    said: str = ""


def check(folder: Path, photographs: Path) -> Iterator[Verdict]:
    """Yield a verdict for each exported model below the folder."""
    for expected in sorted(folder.glob(f"*/{EXPECTED}")):
        yield verdict(expected.parent, photographs)


def verdict(model: Path, photographs: Path) -> Verdict:
    """Classify the photographs with `convoy classify`, without any flag, and compare the answers
    with the exporter's.

    If an answer differs too much, Convoy classifies again with `exact = true`. If the answers then
    agree, the rounding of pixels caused the difference.
    """
    found = _asked(model, photographs)
    if found.difference is not None and found.difference > TOLERANCE:
        exact = _asked(model, photographs, *_EXACT)
        if exact.difference is not None and exact.difference <= TOLERANCE:
            return Verdict(model.name, PIXELS, found.difference)
        if found.difference <= max(STEP, OF_OWN * _own(model)) and _quantized(model):
            return Verdict(model.name, STEPS, found.difference)
    return found


def _own(model: Path) -> float:
    """Return the largest difference between the exporter's answers and the answers that the same
    runtime computes in a second way (the file `OTHERWISE`). Return 0 if this file is missing."""
    if not (model / OTHERWISE).exists():
        return 0.0
    one: dict[str, list[float]] = json.loads((model / EXPECTED).read_text())
    other: dict[str, list[float]] = json.loads((model / OTHERWISE).read_text())
    return max(abs(a - b) for name in one for a, b in zip(one[name], other[name], strict=True))


def _quantized(model: Path) -> bool:
    files = map(partial(onnx.load, load_external_data=False), model.rglob("*.onnx"))
    return any("Quantize" in node.op_type for file in files for node in file.graph.node)


def _asked(model: Path, photographs: Path, *flags: str) -> Verdict:
    expected: dict[str, list[float]] = json.loads((model / EXPECTED).read_text())
    classes = len(next(iter(expected.values())))
    files = [str(photographs / name) for name in expected]
    asked = ["classify", str(model), *files, "--json", "--top-k", str(classes), "--device", "cpu"]
    with _heard() as lines:
        answered = CliRunner().invoke(app, [*asked, *flags])
    if answered.exit_code:
        return Verdict(model.name, REFUSED, said=" ".join(str(answered.exception).split()))
    said = " ".join([*answered.stderr.split(), *lines])
    difference = 0.0
    for line in answered.stdout.splitlines():
        answer = json.loads(line)
        wanted = expected[Path(answer["file"]).name]
        got = {each["index"]: each["probability"] for each in answer["predictions"]}
        if got.keys() != set(range(len(wanted))):
            return Verdict(model.name, WRONG, said=f"answers {len(got)} of {classes} classes")
        difference = max(difference, *(abs(p - got[i]) for i, p in enumerate(wanted)))
    if difference <= TOLERANCE:
        return Verdict(model.name, RIGHT, difference)
    return Verdict(model.name, WARNED if said else WRONG, difference, said)


@contextmanager
def _heard() -> Iterator[list[str]]:
    """Collect the warnings that are logged within this block. While this function's log handler is
    installed, `convoy classify` installs none."""
    handler, lines = BufferingHandler(_MOST_LINES), list[str]()
    handler.setLevel(logging.WARNING)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield lines
    finally:
        root.removeHandler(handler)
        lines += [record.getMessage() for record in handler.buffer]
