"""Reads Convoy's errors for Lavin & Gray's table 4 from the rows that `benchmarks.kernels
--accuracy` recorded."""

from collections.abc import Iterable, Mapping, Sequence

from benchmarks.kernels.accuracy import LAYERS, PAPER, PAPER_HALF
from benchmarks.papers.result import Cells
from benchmarks.rows import RESULTS, Row, read

FUSED_2, FUSED_4 = "winograd F(2x2,3x3), integer points", "winograd F(4x4,3x3), integer points"
MIXED_4 = "winograd F(4x4,3x3), mixed points"
HALF_DIRECT, HALF_2 = "tensor", "tensor winograd F(2x2,3x3), integer points"
HALF_4 = "winograd F(4x4,3x3) non-fused, mixed points"

COMMAND = "python -m benchmarks.kernels --accuracy --device cusim"

Errors = Mapping[tuple[str, str], Mapping[str, float]]
"""The largest error of each layer, by precision and variant."""


def newest(rows: Iterable[Row]) -> list[Row]:
    """Return the rows with the same commit as the last row."""
    kept = list(rows)
    return [row for row in kept if row["commit"] == kept[-1]["commit"]]


def errors() -> Errors:
    """Return the most recently recorded error of each layer, by precision and algorithm."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for row in newest(read(RESULTS / "accuracy.jsonl")):
        of = found.setdefault((row["precision"], row["variant"]), {})
        of[row["layer"]] = row["largest_error"]
    return found


def ratios(found: Errors, precision: str, variant: str, over: str) -> list[float]:
    """Return, for each layer, the error of the algorithm `variant` divided by the error of the
    algorithm `over`."""
    ours, others = found[precision, variant], found[precision, over]
    return [ours[layer.name] / others[layer.name] for layer in LAYERS]


def table_errors() -> Cells:
    """Return a table of each layer's largest error, first in the paper and then in Convoy, by
    precision and algorithm."""
    names = [layer.name for layer in LAYERS]
    rows: list[Sequence[str]] = [("precision and algorithm", *names)]
    paper = {
        "fp32, direct": [PAPER[name]["direct"] for name in names],
        "fp32, F(2×2)": [PAPER[name]["winograd F(2x2,3x3)"] for name in names],
        "fp32, F(4×4)": [PAPER[name]["winograd F(4x4,3x3)"] for name in names],
        "fp16, all": [PAPER_HALF[name] for name in names],
    }
    rows += [(f"*paper: {key}*", *(f"{each:.2e}" for each in of)) for key, of in paper.items()]
    rows += [
        (f"{precision}, {variant}", *(f"{of[name]:.2e}" for name in names))
        for (precision, variant), of in errors().items()
    ]
    return rows
