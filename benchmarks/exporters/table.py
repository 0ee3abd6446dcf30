"""Writes docs/exporters.md from the results that check.py returns."""

import re
from collections import Counter
from collections.abc import Sequence

from benchmarks.exporters.catalogue import EXPORTERS, Exporter
from benchmarks.exporters.check import ARE_RIGHT, OF_OWN, STEP, TOLERANCE, WRONG, Verdict

_HEAD = """\
# Convoy's answers for the models of exporters

A pinned release of each exporter wrote each model of the second table, together with the other
files that the exporter writes. The page's photographs were then classified twice: by the exporter's
own pipeline, and by Convoy without any flag. The column "answer" compares the two results. The
networks have random weights, which amplify small differences.

- *right*: no probability differs by more than {tolerance:g}.
- *right with exact*: no probability differs by more than {tolerance:g} if
  [`exact = true`](models.md#exact) is set. Without `exact`, the network amplifies differences in a
  pixel's last bit.
- *right to a step of 8 bits*: the network is quantized to 8 bits, and no probability differs by
  more than {step:g}. The reason is that a value between two 8-bit numbers may be rounded to either
  of them. ONNX Runtime itself can run such a file in two modes: node by node, or with integers and
  exact sums. If the results of the two modes differ by d, {own:g} d is also allowed.
- *refused* and *warned*: the last column has Convoy's message.

For models of transformers, the pipeline uses the image processors that use Pillow
(`ViTImageProcessorPil` and so on). Since version 5, the processors with plain names resize with
torchvision if it is installed, and some of their pixels differ from Pillow's pixels by 1.

`python -m benchmarks.exporters check` wrote this page{at}, after `export`.

{summary}

| exporter | release |
| --- | --- |
{releases}

| model | answer | largest difference | Convoy's message |
| --- | --- | ---: | --- |
{rows}
"""


def table(verdicts: Sequence[Verdict], commit: str) -> str:
    """Return the text of docs/exporters.md. Its table has a row for each model, sorted by name."""
    counted = Counter(each.outcome for each in verdicts)
    right = sum(counted[outcome] for outcome in ARE_RIGHT)
    others = [f"{n} {outcome}" for outcome, n in counted.items() if outcome not in ARE_RIGHT]
    summary = f"Of {len(verdicts)} models, {right} are right" + "".join(f", {o}" for o in others)
    if not counted[WRONG]:
        summary += ". No answer is wrong without a warning"
    return _HEAD.format(
        tolerance=TOLERANCE,
        step=STEP,
        own=OF_OWN,
        at=f" at commit {commit}",
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
