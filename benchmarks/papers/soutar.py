"""Lists the results of the blog post by Soutar 2020, "Faster convolutions with Winograd (Part 2)",
and Convoy's result for each."""

from statistics import mean

from benchmarks.kernels.costs import WAYS, tile_errors
from benchmarks.kernels.report import summarise
from benchmarks.kernels.suites import VGG_E
from benchmarks.papers import complexity, larger_tiles, measured
from benchmarks.papers.blur import table_blur
from benchmarks.papers.larger_tiles import POINTS
from benchmarks.papers.lavin_gray import COSTS, TABLE_5
from benchmarks.papers.measured import Measured
from benchmarks.papers.result import OURS, Cells, Result, Status
from kernels.winograd.program import instructions, program


def results() -> list[Result]:
    """Return a row of docs/papers.md for every result of the post, in the post's order."""
    of = complexity.matrices(2)
    data, inverse = program(of.bt).instructions, program(of.at).instructions
    filter_ = sum(map(instructions, complexity.FILTERS[2].values()))
    layer = VGG_E[7].problem
    direct, tiled = (WAYS[way](layer).multiplications for way in ("naive", "F(2×2)"))
    per = layer.n * layer.c * layer.k * layer.window.output_volume
    workspace = [WAYS[way](layer).workspace_bytes / 1e6 for way in ("im2col", "F(2×2)")]
    wide = 1 / complexity.shares(layer, 8, complexity.paired(8))
    narrower = 1 / complexity.shares(layer, 6, complexity.paired(6))
    eight = next(each for each in tile_errors() if each.m == 8)
    whole, mixed = (
        larger_tiles.errors(points, scaled=False, halves=False) for points in POINTS.values()
    )
    same_bits = all(
        larger_tiles.errors(points, scaled=True, halves=False)
        == larger_tiles.errors(points, scaled=False, halves=False)
        for points in POINTS.values()
    )
    _, (tiles, _, _, fewer, apart) = table_blur()
    speedups = [numbers[-1] for numbers in TABLE_5.values()]
    same = Status.REPRODUCED
    return [
        Result("the example", "F(2, 3): products in 1-D", "4 for 6",
               f"{of.alpha} for {of.m * of.r}", same, f"{OURS}transforms"),
        Result("the example", "data, filter, results: additions and constant factors",
               "4; 4 and 2; 4", f"{data}; {filter_} in all; {inverse}", Status.BETTER,
               f"{OURS}transforms"),
        Result("scale", "2-D: products of F(2×2), F(4×4)", "16 for 36, 36 for 144",
               "16 for 36, 36 for 144", same, COSTS),
        Result("scale", "products over NHWCK: direct, Winograd", "9, 4",
               f"{direct / per:g}, {tiled / per:g}", same, COSTS),
        Result("before", "memory of im2col, and of Winograd: conv 4.2, N = 1", "hungry",
               f"{workspace[0]:.1f} MB, {workspace[1]:g} MB if fused", same, COSTS),
        measured.on_gpu("before", "im2col's time compared with Winograd's", "Winograd is faster",
                        "layer .* 3x3 p1,1,1,1 N1 (convoy|im2col)$",
                        measured.by_batch(VGG_E, (1,), _over_im2col, ("im2col",))),
        Result("limits", "10×10 tiles: advantage over the direct sum", "little or none",
               f"{wide:.2f} times less arithmetic at C = K = 512 (8×8 tiles: {narrower:.2f});"
               f" {eight.over_direct:.0f} times the error of the direct sum",
               Status.CONTRADICTED, f"{OURS}equation-23",
               "in a wide layer, larger tiles save arithmetic, but their error is too large;"
               " with few channels (C = K = 1), the transforms cost more than larger tiles save"),
        Result("limits", "F(9×9, 5×5): points and scaling reduce the error",
               "by two orders of magnitude",
               f"points by {_orders(whole / mixed)} orders, scaling"
               f" {'not' if same_bits else 'too'} in float32",
               Status.IN_PART, f"{OURS}larger-tiles",
               "scaling by powers of two does not change the significant bits of a float; in"
               " float16 it keeps numbers within the range of float16"),
        Result("step by step", "50×50×32, 32 images: tiles, products saved", "25×25, 2.25",
               f"{tiles}, {fewer}; differs from the blur by {apart}", same, f"{OURS}blur"),
        measured.on_gpu("closing", f"mean speed-up of table 5: {mean(speedups):.2f}", "3.41×",
                        "layer .* 3x3 p1,1,1,1 N(1|2|4|8|16|32|64) (convoy|torch)$",
                        measured.by_batch(VGG_E, tuple(TABLE_5), _mean_speedup)),
    ]  # fmt: skip


def _over_im2col(found: Measured) -> tuple[str, float]:
    """Return a text that says how many times as fast as im2col Convoy is, for all layers together
    and for the layer with the lowest ratio. Also return the lowest ratio."""
    total = summarise(found[1], len(found[1]))
    over = total.best_seconds / total.seconds
    return f"{over:.2f}× as fast, at least {total.least:.2f}×", total.least


def _mean_speedup(found: Measured) -> tuple[str, float]:
    """Return a text with the mean of the network's speed-ups over all N. Also return this mean
    divided by the paper's mean."""
    totals = [summarise(pairs, len(pairs)) for pairs in found.values()]
    ours = mean(total.best_seconds / total.seconds for total in totals)
    return f"{ours:.2f}×", ours / mean(TABLE_5[n][-1] for n in found)


def _orders(ratio: float) -> int:
    """Return the order of magnitude of a ratio: 2 for ratios from 100 to 999."""
    return len(f"{ratio:.0f}") - 1


def table_larger_tiles() -> Cells:
    """Return the error of F(9×9, 5×5) divided by the direct sum's error. There is a number for each
    set of points, with and without scaling, and with products in float32 and in float16."""
    rows: list[tuple[str, ...]] = [("points", "scaled", "float32", "products of halves")]
    for name, points in POINTS.items():
        for scaled in (False, True):
            found = (
                larger_tiles.errors(points, scaled=scaled, halves=each) for each in (False, True)
            )
            rows.append((name, "yes" if scaled else "no", *(f"{each:.1e}" for each in found)))
    return rows
