"""Asks Convoy for what the exporters' pipelines answered, without a flag, and compares."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner

from benchmarks.exporters.catalogue import EXPECTED
from service.cli import app

TOLERANCE = 1e-3
"""The largest difference of a probability for an answer to be right."""

RIGHT, PIXELS, REFUSED, WARNED, WRONG = "right", "right with exact", "refused", "warned", "wrong"
"""PIXELS: right once `exact = true` makes every pixel the exporter's. WARNED: it differs, and a
warning says why it may. WRONG: it differs without a word."""

_EXACT = ("--set", "exact=true")


@dataclass(frozen=True)
class Verdict:
    """Says how Convoy's answers for one model compare with its exporter's pipeline."""

    model: str
    outcome: str
    difference: float | None = None
    said: str = ""


def check(folder: Path, photographs: Path) -> Iterator[Verdict]:
    """Yield a verdict for each model below the folder that the exporters wrote to."""
    for expected in sorted(folder.glob(f"*/{EXPECTED}")):
        yield verdict(expected.parent, photographs)


def verdict(model: Path, photographs: Path) -> Verdict:
    """Return how `convoy classify` answers for one model's folder, without a flag.

    Where pixels that differ in their last bit may be the reason, it is asked with exact ones, too.
    """
    found = _asked(model, photographs)
    if found.difference is not None and found.difference > TOLERANCE:
        exact = _asked(model, photographs, *_EXACT)
        if exact.difference is not None and exact.difference <= TOLERANCE:
            return Verdict(model.name, PIXELS, found.difference)
    return found


def _asked(model: Path, photographs: Path, *flags: str) -> Verdict:
    expected: dict[str, list[float]] = json.loads((model / EXPECTED).read_text())
    classes = len(next(iter(expected.values())))
    files = [str(photographs / name) for name in expected]
    asked = ["classify", str(model), *files, "--json", "--top-k", str(classes), "--device", "cpu"]
    answered = CliRunner().invoke(app, [*asked, *flags])
    if answered.exit_code:
        return Verdict(model.name, REFUSED, said=" ".join(str(answered.exception).split()))
    said = " ".join(answered.stderr.split())
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
    warned = "warning" in said.lower()
    return Verdict(model.name, WARNED if warned else WRONG, difference, said)
