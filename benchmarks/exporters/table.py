"""Writes docs/exporters.md from what was checked."""

import re
from collections import Counter
from collections.abc import Sequence

from benchmarks.exporters.catalogue import EXPORTERS, Exporter
from benchmarks.exporters.check import ARE_RIGHT, OF_OWN, STEP, TOLERANCE, WRONG, Verdict

_HEAD = """\
# What exporters write, and what Convoy answers

Each model was written by a pinned release of its exporter, in a folder with the files that the
exporter writes beside it, and asked for the page's photographs by the exporter's own pipeline.
Convoy was asked without a flag. A model is *right* where no probability differs by more than
{tolerance:g}; *right with exact* where that needs [`exact = true`](models.md#exact), because these
random networks multiply a pixel's last bit; *right to a step of 8 bits* where a quantized network
differs by at most {step:g}, as a value between two codes may become either, or by at most {own:g}
times as much as ONNX Runtime's own two ways of running the file, node by node and on integers with
exact sums, which random networks multiply as well. *Refused* and *warned* rows have what Convoy
said. transformers' processors are those by Pillow (`ViTImageProcessorPil` and so on): since version
5 those of the plain names resize by torchvision where that is installed, and some of its pixels are
1 off Pillow's, which these random networks multiply, too.
Written by `python -m benchmarks.exporters check`{at}, after `export`.

{summary}

| exporter | release |
| --- | --- |
{releases}

| model | answer | largest difference | what Convoy says |
| --- | --- | ---: | --- |
{rows}
"""


def table(verdicts: Sequence[Verdict], commit: str) -> str:
    """Return the page; a row per model, in the order of their names."""
    counted = Counter(each.outcome for each in verdicts)
    right = sum(counted[outcome] for outcome in ARE_RIGHT)
    others = [f"{n} {outcome}" for outcome, n in counted.items() if outcome not in ARE_RIGHT]
    summary = f"Of {len(verdicts)} models {right} are right" + "".join(f", {o}" for o in others)
    if not counted[WRONG]:
        summary += ", none is wrong without a word"
    return _HEAD.format(
        tolerance=TOLERANCE,
        step=STEP,
        own=OF_OWN,
        at=f" at {commit}",
        summary=f"{summary}.",
        releases="\n".join(map(_release, EXPORTERS)),
        rows="\n".join(map(_row, verdicts)),
    )


def _release(exporter: Exporter) -> str:
    pins = [each.replace("==", " ") for each in exporter.requirements if "==" in each]
    return f"| {exporter.name} | {', '.join(pins)} |"


def _row(verdict: Verdict) -> str:
    difference = "" if verdict.difference is None else f"{verdict.difference:.1e}"
    said = re.sub(r"/\S*/", "", verdict.said).replace("|", "\\|")
    return f"| {verdict.model} | {verdict.outcome} | {difference} | {said} |"
