"""Writes benchmarks/results/families.md from the rows of results that check.py has recorded."""

from collections.abc import Iterable, Mapping, Sequence

from benchmarks.families.export import FAMILIES, SIZE
from benchmarks.rows import Row

_HEAD = """\
# Families of classifiers

The table has one small network from each of {families} families of timm and Ultralytics, with
random weights and images of {size}×{size} pixels. Networks that need another size get
images of that size. PyTorch has two exporters, and both wrote each network for batch size 1 and for
a variable batch size, so there are up to four files per network. `python -m benchmarks.families
check` appends rows to `families.jsonl`, and `python -m benchmarks.families table` writes this
page from them.

If the kernels support all nodes of a file, the file runs entirely on the kernels. Otherwise, it
runs entirely in ONNX Runtime. The list below the table names the nodes that are not supported, in
the words of the error when the file was checked. The columns have these meanings:

- *on kernels*: the number of a network's files that run on the kernels.
- *launches*: the number of launches of the CUDA engine's plan for one image.
- *CPU error*, *simulator error*: the largest error of a score compared with PyTorch, relative to
  the image's largest score. On the CPU, ONNX Runtime runs the loader's normalised model, and the
  table has the largest error of a network's files. On the simulator, Convoy's kernels run.
  For {top_1} files, the best classes were also compared.
- *µs*: the time on an H200 in fp16, estimated with the cost model. In brackets is the time that the
  launches' arithmetic or memory traffic takes at the GPU's peak rates. No time was measured.

| family | on kernels | nodes | launches | CPU error | simulator error | µs, N = 1 | µs, N = 8 |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
"""


def table(rows: Iterable[Row]) -> str:
    """Return the text of families.md. It has a table with a line per family, and the reasons why
    files do not load. Families without results are left out."""
    newest: dict[tuple[str, str, str], Row] = {}
    simulated: dict[str, float] = {}
    for row in rows:
        if "simulated_error" in row:
            simulated[row["family"]] = row["simulated_error"]
        else:
            at = row["family"], row["exporter"], row["batch"]
            newest[at] = {**newest.get(at, {}), **row}  # plans of earlier rows are kept
    lines = []
    for family in FAMILIES:
        found = [row for (name, *_), row in newest.items() if name == family]
        if found:
            lines.append(_line(family, found, simulated))
    refused = {at: row["reason"] for at, row in newest.items() if not row["loads"]}
    loading = len(lines) - len({family for family, *_ in refused})
    compared = [at for at, row in newest.items() if "top_1" in row]
    other = [" ".join(at) for at in compared if not newest[at]["top_1"]]
    head = _HEAD.format(families=len(lines), size=SIZE, top_1=len(compared))
    told = [
        f"- {family}, {exporter}, batch {batch}: {_nodes(why)}\n"
        for (family, exporter, batch), why in refused.items()
    ]
    summary = f"\n{loading} of {len(lines)} families run on the kernels"
    summary += f"; another class is the best of {', '.join(other)}.\n" if other else ".\n"
    return "".join((head, *lines, summary, *told))


def _nodes(reason: str) -> str:
    """Remove the list of supported operators from an error message, and return the rest in one
    line."""
    return " ".join(reason.partition("\nSupported operators: ")[0].split())


def _line(family: str, rows: Sequence[Row], simulated: Mapping[str, float]) -> str:
    loaded = [row for row in rows if row["loads"]]
    launches = sorted({row["launches"] for row in loaded if "launches" in row})
    cells = [
        family,
        f"{len(loaded)} of {len(rows)}",
        _range([row["nodes"] for row in loaded]),
        _range(launches),
        _worst(row["cpu_error"] for row in loaded),
        f"{simulated[family]:.1e}" if family in simulated else "",
        *(_estimate(loaded, at) for at in ("", "_at_8")),
    ]
    return f"| {' | '.join(cells)} |\n"


def _estimate(rows: Sequence[Row], at: str) -> str:
    """Return two times in µs for the file with the longest estimated time, as text: the estimated
    time and, in brackets, the least time at the GPU's peak rates."""
    found = [
        (row[f"fp16_us{at}"], row[f"fp16_roofline_us{at}"]) for row in rows if f"fp16_us{at}" in row
    ]
    return "{:.0f} ({:.0f})".format(*max(found)) if found else ""


def _range(numbers: Sequence[int]) -> str:
    if not numbers:
        return ""
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def _worst(errors: Iterable[float]) -> str:
    found = list(errors)
    return f"{max(found):.1e}" if found else ""
