"""Counts the multiplications, the workspace and the memory traffic of several convolution
algorithms, and measures the errors of Winograd's tile sizes.

    python -m benchmarks.kernels --costs [--suite NAME] [--n N] [--docs]

Costs are computed for float32, and no GPU is needed. The naive algorithm needs no workspace.
Explicit im2col copies all windows of the image to a matrix and multiplies matrices. A 1×1
convolution at stride 1 needs no such copy. For m² outputs F(m×m, 3×3) takes (m + 2)²
multiplications, and the naive sum takes 9 m² (Lavin & Gray 2015, section 5). F(m×m, 3×3) runs
either as one fused launch or as three launches. The three launches exchange transformed data and
products through memory (section 6). The bytes of each operand are counted once. The bytes of data
between launches are counted twice, because they are written and then read. Filters are transformed
beforehand.

The error of a tile size is the largest error of an output element. Data and filters are uniform in
[-1, 1], and all stages use float32. All sums add one product after another with fused multiply-add,
like the kernels. NumPy's matrix product is not used, because it splits sums into parts and so has
smaller errors than any direct convolution. `--docs` writes the tables of the VGG-E layers into
docs/kernels.md, and the plot next to it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from math import ceil, prod

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.kernels.suites import SUITES, VGG_E, Layer
from benchmarks.plots import figure_of
from benchmarks.rows import ROOT, fill, markdown
from kernels import reference
from kernels.problems.conv import ConvProblem, same_padded
from kernels.winograd.filter import as_array, nested
from kernels.winograd.matrices import Points, WinogradMatrices
from kernels.winograd.stages import tiles, untiled

BEGIN, END = "<!-- benchmarks.kernels --costs -->", "<!-- end of the costs -->"
"""The marks between which docs/kernels.md has its tables."""

PAGE = ROOT / "docs" / "kernels.md"
PLOT = "larger-tiles.png"

FLOAT = 4
"""The bytes of a float32."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Holds the costs of one convolution algorithm."""

    multiplications: int
    bytes: int  # read from and written to memory
    workspace_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TileError:
    """Holds the error of F(m×m, 3×3) in float32, and the number of multiplications of the direct
    sum divided by the number that F(m×m, 3×3) needs."""

    m: int
    largest: float
    over_direct: float  # as a multiple of the direct sum's error in float32
    saving: float  # products of the direct sum for each product of F(m×m, 3×3)


def naive(problem: ConvProblem) -> Cost:
    """Return the cost of a convolution that is computed by its definition."""
    x = (problem.n, problem.c, *problem.window.input)
    elements = sum(map(prod, (x, problem.filter_shape, problem.output_shape)))
    return Cost(problem.macs, FLOAT * elements)


def im2col(problem: ConvProblem) -> Cost:
    """Return the cost of explicit im2col: a copy of all windows, and a matrix product."""
    window, plain = problem.window, naive(problem)
    if window.kernel_volume == 1 and set(window.strides) == {1}:
        return plain
    columns = FLOAT * problem.n * problem.c * window.kernel_volume * window.output_volume
    return Cost(plain.multiplications, plain.bytes + 2 * columns, columns)


def winograd(problem: ConvProblem, m: int, *, fused: bool) -> Cost:
    """Return the cost of F(m×m, 3×3) for a 3×3 convolution at stride 1."""
    positions, n, c, k = (m + 2) ** 2, problem.n, problem.c, problem.k
    tiles = n * prod(ceil(size / m) for size in problem.window.output)
    outside = n * c * prod(problem.window.input) + positions * k * c + prod(problem.output_shape)
    between = 0 if fused else positions * tiles * (c + k)
    return Cost(positions * tiles * c * k, FLOAT * (outside + 2 * between), FLOAT * between)


WAYS: Mapping[str, Callable[[ConvProblem], Cost]] = {
    "naive": naive,
    "im2col": im2col,
    "F(2×2)": partial(winograd, m=2, fused=True),
    "F(4×4)": partial(winograd, m=4, fused=True),
    "F(2×2), 3 launches": partial(winograd, m=2, fused=False),
    "F(4×4), 3 launches": partial(winograd, m=4, fused=False),
}
"""The ways that the tables compare, by name."""

TABLES: Mapping[str, tuple[Callable[[Cost], float], tuple[str, ...]]] = {
    "multiplications, 10⁶": (
        lambda cost: cost.multiplications / 1e6,
        ("naive", "im2col", "F(2×2)", "F(4×4)"),
    ),
    "workspace, MB": (
        lambda cost: cost.workspace_bytes / 1e6,
        ("im2col", "F(2×2), 3 launches", "F(4×4), 3 launches"),
    ),
    "bytes moved, MB": (lambda cost: cost.bytes / 1e6, tuple(WAYS)),
}
"""For each table, the quantity and the names of the WAYS that it compares."""


def costs(problem: ConvProblem) -> dict[str, Cost]:
    """Return the cost of each algorithm in WAYS, by name. Algorithms that cannot compute the
    problem are left out."""
    window = problem.window
    fits = window.kernel == (3, 3) and window.strides == (1, 1)
    return {name: way(problem) for name, way in WAYS.items() if fits or "F(" not in name}


TILES = (2, 3, 4, 5, 6, 7, 8)
"""The sides m of the tiles whose errors are compared."""

_HALF, _QUARTER = Fraction(1, 2), Fraction(1, 4)
POINTS = (*Points.MIXED.value, -_HALF, 2, -_QUARTER, 4)
"""The points, of which F(m, 3) takes the first m + 1. For each number the list also has its
negative reciprocal, so that the entries of the transforms differ little in size."""

PROBE = same_padded((24, 24), 3, 256, 16)
"""The layer whose errors are compared. It has the same number of channels as VGG-E's conv 3.2."""


Array = NDArray[np.float32]


def direct(x: Array, weight: Array, problem: ConvProblem) -> Array:
    """Return conv(x, weight) for one image and stride 1. Sums add their terms in the same order as
    the kernel "direct": tap by tap, and for each tap channel by channel."""
    seen = reference.seen_by_taps(reference.padded(x[0], problem.window, 0.0), problem.window)
    taps = weight.reshape(problem.k, problem.c, -1)
    y = np.zeros((problem.k, problem.window.output_volume), np.float32)
    for tap, image in enumerate(seen):
        _add(y, taps[..., tap], image.reshape(problem.c, -1))
    return y.reshape(problem.output_shape)


def winograd_sum(
    x: Array, weight: Array, problem: ConvProblem, matrices: WinogradMatrices
) -> Array:
    """Return conv(x, weight) for one image by F(m×m, r×r), summed channel by channel. As in the
    kernels, the transformed filters U are computed in float64 and rounded once."""
    g, bt, at = (as_array(each) for each in (matrices.g, matrices.bt, matrices.at))
    u = nested(g, weight.astype(np.float64), 2).astype(np.float32)
    v = nested(bt.astype(np.float32), tiles(x, problem, matrices), 2)[0]
    (_, *counts, alpha, _), positions = v.shape, matrices.alpha**2
    products = np.zeros((positions, problem.k, prod(counts)), np.float32)
    _add(
        products,
        u.reshape(problem.k, problem.c, positions).transpose(2, 0, 1),
        v.reshape(problem.c, -1, positions).transpose(2, 0, 1),
    )
    shape = (1, problem.k, *counts, alpha, alpha)
    return untiled(
        nested(at.astype(np.float32), products.transpose(1, 2, 0).reshape(shape), 2), problem
    )


def _add(sums: Array, left: Array, right: Array) -> None:
    """Add the matrix product of `left`, …×K×C, and `right`, …×C×P, to `sums`, …×K×P, channel by
    channel. Each step rounds once, like fmaf."""
    for c in range(right.shape[-2]):
        product = left[..., :, c, None].astype(np.float64) * right[..., None, c, :]
        sums[...] = sums + product


def tile_errors(seed: int = 0) -> list[TileError]:
    """Measure the error of each tile size in TILES on the layer PROBE."""
    rng = np.random.default_rng(seed)
    shapes = (PROBE.n, PROBE.c, *PROBE.window.input), PROBE.filter_shape
    x, weight = (rng.uniform(-1, 1, shape).astype(np.float32) for shape in shapes)
    truth = reference.conv(x.astype(np.float64), weight.astype(np.float64), PROBE)
    of_direct = float(np.abs(direct(x, weight, PROBE) - truth).max())
    found = []
    for m in TILES:
        y = winograd_sum(x, weight, PROBE, WinogradMatrices(m, 3, POINTS[: m + 1]))
        largest = float(np.abs(y - truth).max())
        found.append(TileError(m, largest, largest / of_direct, 9 * m * m / (m + 2) ** 2))
    return found


Cells = Sequence[Sequence[str]]


def cells(what: str, layers: Iterable[Layer], n: int) -> Cells:
    """Return the cells of the table `what` of TABLES: the headings, and a row for each layer."""
    quantity, ways = TABLES[what]
    rows = [("layer", *ways)]
    for layer in layers:
        found = costs(layer.problem.with_batch(n))
        numbers = (f"{quantity(found[way]):,.1f}" if way in found else "" for way in ways)
        rows.append((layer.name, *numbers))
    return rows


def error_cells(errors: Iterable[TileError]) -> Cells:
    """Return the cells of the table of errors: the headings, and a row for each tile size."""
    headings = ("tile", "products saved", "largest error", "divided by the direct sum's error")
    return [
        headings,
        *(
            (f"F({e.m}×{e.m})", f"{e.saving:.2f}", f"{e.largest:.1e}", f"{e.over_direct:.1f}")
            for e in errors
        ),
    ]


def page(text: str, errors: Sequence[TileError]) -> str:
    """Return the text of docs/kernels.md with its tables replaced. The tables are for the VGG-E
    layers with N = 1."""
    parts = [f"{what}:\n\n{markdown(*cells(what, VGG_E, 1))}" for what in TABLES]
    parts += [markdown(*error_cells(errors)), f"![error and saving by tile]({PLOT})"]
    return fill(text, BEGIN, END, "\n\n".join(parts))


def run(suites: Iterable[str], batches: Iterable[int], console: Console, *, docs: bool) -> None:
    """Print the tables for each suite and N. If `docs`, write the tables of docs/kernels.md
    instead."""
    errors = tile_errors()
    if docs:
        PAGE.write_text(page(PAGE.read_text(), errors))
        plot(errors)
        return
    batches = tuple(batches)
    for suite in suites:
        for n in batches:
            for what in TABLES:
                _print(f"{suite}, N = {n}: {what}", cells(what, SUITES[suite], n), console)
    _print(f"errors on {PROBE}", error_cells(errors), console)


def plot(errors: Sequence[TileError]) -> None:
    """Plot the error and the saved multiplications against the tile size. Write the plot next to
    docs/kernels.md. Raises NoMatplotlibError."""
    figure = figure_of((6.4, 3.2))
    axes = figure.subplots()
    sides = [error.m for error in errors]
    axes.semilogy(sides, [error.over_direct for error in errors], "o-", color="tab:red")
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xlabel("m of F(m×m, 3×3)")
    axes.set_ylabel("error, times the direct sum's", color="tab:red")
    other = axes.twinx()
    other.plot(sides, [error.saving for error in errors], "s--", color="tab:blue")
    other.set_ylabel("products saved, times", color="tab:blue")
    figure.savefig(PAGE.parent / PLOT, dpi=100)


def _print(title: str, rows: Cells, console: Console) -> None:
    headings, *others = rows
    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == headings[0] else "right")
    for row in others:
        table.add_row(*row)
    console.print(table)
