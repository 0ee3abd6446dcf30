"""Lists the results of Lavin & Gray 2015, "Fast Algorithms for Convolutional Neural Networks", and
Convoy's result for each."""

from collections.abc import Mapping

import numpy as np

from benchmarks.kernels.accuracy import LAYERS, ONE_SUM, PAPER, PAPER_HALF
from benchmarks.kernels.costs import winograd as cost
from benchmarks.kernels.report import Comparison, Goal, summarise
from benchmarks.kernels.suites import VGG_E
from benchmarks.papers import complexity, errors, measured
from benchmarks.papers.complexity import TABLE_1, TABLE_1_FFT, TABLE_2, fft, transforms
from benchmarks.papers.measured import Measured
from benchmarks.papers.memory import GROUP, network_blocking
from benchmarks.papers.result import OURS, Cells, Result, Status
from kernels.convolution.winograd import TILES, WinogradConv
from kernels.problems.conv import same_padded
from kernels.tuning.profile_table import profile_of

MATRICES = "python -m pytest tests/kernels/winograd/test_matrices.py"
COSTS = "python -m benchmarks.kernels --costs"

GFLOPS = (0.17, 3.70, 1.85, 3.70, 1.85, 11.10, 1.85, 11.10, 3.70)
"""The GFLOPS of each layer in table 3, whose total is 39.02."""

TABLE_5: Mapping[int, tuple[float, float, float, float, float]] = {
    1: (12.52, 3.12, 5.55, 7.03, 2.26),
    2: (20.36, 3.83, 9.89, 7.89, 2.06),
    4: (104.70, 1.49, 17.72, 8.81, 5.91),
    8: (241.21, 1.29, 33.11, 9.43, 7.28),
    16: (203.09, 3.07, 65.79, 9.49, 3.09),
    32: (237.05, 5.27, 132.36, 9.43, 1.79),
    64: (394.05, 6.34, 266.48, 9.37, 1.48),
}
"""Table 5, fp32. For each N: milliseconds and effective TFLOPS of cuDNN, the same of F(2×2), and
the speed-up."""

TABLE_6: Mapping[int, tuple[float, float, float, float, float]] = {
    1: (14.58, 2.68, 5.53, 7.06, 2.64),
    2: (20.94, 3.73, 9.83, 7.94, 2.13),
    4: (104.19, 1.50, 17.50, 8.92, 5.95),
    8: (241.87, 1.29, 32.61, 9.57, 7.42),
    16: (204.01, 3.06, 62.93, 9.92, 3.24),
    32: (236.13, 5.29, 123.12, 10.14, 1.92),
    64: (395.93, 6.31, 242.98, 10.28, 1.63),
}
"""Table 6, fp16, with the same columns."""

_F2 = WinogradConv(m=2, r=3, axes=2)
_WIDE = same_padded((14, 14), 3, 512, 512)


def filter_bytes() -> int:
    """Return the bytes of the filters for K = C = 512 after the transform of F(2×2), in the
    kernel's layout."""
    weight = np.zeros(_WIDE.filter_shape, np.float32)
    return _F2.prepare_filter(weight, _WIDE, _F2.configs(_WIDE)[0]).nbytes


def table_block() -> Cells:
    """Return a table of the block tiles of the fused F(2×2) kernel. Each row has the resident
    blocks of a multiprocessor, the registers, and the instructions in the loop."""
    rows = [("tile", "blocks on a multiprocessor", "registers", "instructions of an iteration")]
    for tile in TILES[16]:
        config = next(each for each in _F2.configs(_WIDE) if each.tile == tile)
        profile = profile_of(_F2.work(_WIDE, config)[0].kernel)
        turn = str(sum(profile.loop.values()))
        rows.append((str(tile), str(profile.blocks), str(profile.registers), turn))
    return rows


def results() -> list[Result]:
    """Return a row of docs/papers.md for every result of the paper, in the paper's order."""
    return [*_algorithms(), *_complexities(), *_accuracy(), *_speed(), *_design()]


def _algorithms() -> list[Result]:
    saved = {m: VGG_E[1].problem.macs / cost(VGG_E[1].problem, m, fused=True).multiplications
             for m in (2, 4)}  # fmt: skip
    two, four = transforms(2).in_2d, transforms(4).in_2d
    same, shown = Status.REPRODUCED, f"{OURS}transforms"
    return [
        Result("eq. 7, 14, 15", "matrices of F(2,3), F(3,2), F(4,3)", "exact", "exact", same,
               MATRICES),
        Result("supplement", "matrices of F(6,3)", "exact", "exact", same, MATRICES),
        Result("section 4.1", "matrices for any F(m, r)", "Winograd's construction",
               "kernels/winograd/matrices.py, in fractions", same, MATRICES),
        Result("section 4", "products saved by F(2×2), F(4×4)", "2.25, 4",
               f"{saved[2]:.2f}, {saved[4]:g}", same, COSTS),
        Result("section 4.1", "F(2×2): data, filter, inverse", "32, 28, 24",
               ", ".join(map(str, two)), same, shown),
        Result("section 4.3", "F(4×4): data, filter, inverse", "156, 72, 100",
               ", ".join(map(str, four)), Status.BETTER, shown),
        Result("eq. 16", "the parts of a complex product", "real first, imaginary second",
               "the other way around", Status.CONTRADICTED, f"{OURS}equation-16",
               "the sums in the paper are right, but in the other order"),
        Result("eq. 17, 18", "3 multiplications for a complex product", "3", "3", same,
               f"{OURS}equation-16"),
        Result("eq. 23", "arithmetic of conv 4.2: F(4×4) divided by direct", "a formula",
               f"{complexity.shares(VGG_E[7].problem, 4, transforms(4)):.3f}", same,
               f"{OURS}equation-23"),
    ]  # fmt: skip


def _complexities() -> list[Result]:
    found = []
    for alpha, theirs in TABLE_1.items():
        counted = complexity.winograd(transforms(alpha - 2))
        ours = (counted.products, counted.data, counted.filter, counted.inverse)
        better = any(a - b > 0.011 for a, b in zip(theirs, ours, strict=True))
        status = Status.BETTER if better else Status.REPRODUCED
        found.append(
            Result("table 1", f"Winograd, tile {alpha}: α′, β′, γ′, δ′", _numbers(theirs),
                   _numbers(ours), status, f"{OURS}table-1")
        )  # fmt: skip
    for alpha, plain in TABLE_1_FFT.items():
        one, fast = fft(alpha, fast=False), fft(alpha, fast=True)
        found += [
            Result("table 1", f"FFT, tile {alpha}: α′; β′, γ′, δ′", _numbers(plain),
                   _numbers((one.products, one.data)), Status.REPRODUCED, f"{OURS}fft"),
            Result("table 2", f"FFT by 3 products, tile {alpha}", _numbers(TABLE_2[alpha]),
                   _numbers((fast.products, fast.data, fast.filter, fast.inverse)),
                   Status.REPRODUCED, f"{OURS}fft"),
        ]  # fmt: skip
    gflops = [2e-9 * layer.count * layer.problem.macs for layer in VGG_E]
    found.append(
        Result("table 3", "VGG-E's nine layers, GFLOPs", f"{_numbers(GFLOPS)}; 39.02",
               f"{_numbers(gflops)}; {sum(gflops):.2f}", Status.REPRODUCED,
               "python -m pytest tests/benchmarks/kernels/test_suites.py")
    )  # fmt: skip
    return found


def _numbers(numbers: object) -> str:
    assert isinstance(numbers, tuple | list)
    return ", ".join(f"{number:.2f}" for number in numbers)


def _accuracy() -> list[Result]:
    found, rows = errors.errors(), []
    for name in (layer.name for layer in LAYERS):
        theirs = PAPER[name].values()
        ours = [found["fp32", v][name] for v in (ONE_SUM, errors.FUSED_2, errors.FUSED_4)]
        mixed = found["fp32", errors.MIXED_4][name]
        better = all(a <= b for a, b in zip(ours, theirs, strict=True))
        rows.append(
            Result("table 4", f"{name} in fp32: direct, F(2×2), F(4×4)",
                   ", ".join(f"{each:.2e}" for each in theirs),
                   f"{', '.join(f'{each:.2e}' for each in ours)}; own points {mixed:.2e}",
                   Status.BETTER if better else Status.REPRODUCED, errors.COMMAND)
        )  # fmt: skip
    whys = (
        "Convoy also stores the output as float16, and its F(2×2) multiplies float16 numbers; the"
        " paper's F(2×2) multiplies floats"
    )
    for name, half in PAPER_HALF.items():
        ours = [found["fp16", v][name] for v in (errors.HALF_DIRECT, errors.HALF_2, errors.HALF_4)]
        rows.append(
            Result("table 4", f"{name} in fp16: direct, F(2×2), F(4×4)", f"{half:.2e}, all",
                   ", ".join(f"{each:.2e}" for each in ours), Status.IN_PART, errors.COMMAND, whys)
        )  # fmt: skip
    two = errors.ratios(found, "fp32", errors.FUSED_2, ONE_SUM)
    half_2 = errors.ratios(found, "fp16", errors.HALF_2, errors.HALF_DIRECT)
    half_4 = errors.ratios(found, "fp16", errors.HALF_4, errors.HALF_DIRECT)
    mixed_4, direct = found["fp32", errors.MIXED_4], found["fp16", errors.HALF_DIRECT]
    below = sum(mixed_4[each.name] < direct[each.name] for each in LAYERS)
    rows += [
        Result("section 8", "F(2×2) in fp32: smaller errors than the direct sum", "5 of 5 layers",
               f"{sum(each < 1 for each in two)} of 5, {min(two):.2f} to {max(two):.2f} times",
               Status.REPRODUCED if max(two) < 1 else Status.IN_PART, errors.COMMAND,
               "" if max(two) < 1 else "not in every layer"),
        Result("section 8", "F(4×4) in fp32: smaller errors than the direct sum in fp16",
               "5 of 5 layers",
               f"{below} of 5", Status.REPRODUCED if below == 5 else Status.IN_PART, errors.COMMAND,
               "" if below == 5 else "not in every layer"),
        Result("section 8", "in fp16 all algorithms are equally accurate", "equal",
               f"errors of F(2×2): {min(half_2):.2f} to {max(half_2):.2f} times the direct sum's;"
               f" of F(4×4): {min(half_4):.2f} to {max(half_4):.2f} times",
               Status.CONTRADICTED, errors.COMMAND,
               "Convoy's F(2×2) rounds transformed data and filters to 11 bits for the tensor"
               " cores; F(4×4) multiplies in 3×TF32 and is as accurate as the direct sum"),
    ]  # fmt: skip
    return rows


def _speed() -> list[Result]:
    rows = []
    for table, suite, numbers, precision in (
        ("table 5", "vgg-e", TABLE_5, ""),
        ("table 6", "vgg-e fp16", TABLE_6, " fp16"),
    ):
        for n, (cudnn, cudnn_rate, ms, rate, speedup) in numbers.items():
            theirs = f"{cudnn} ms at {cudnn_rate}, {ms} ms at {rate}: {speedup}×"
            only = f"layer .* 3x3 p1,1,1,1{precision} N{n} (convoy|torch)$"
            what = f"VGG-E, N = {n}: time and effective TFLOPS of cuDNN and of F(2×2)"
            rows.append(measured.of_total(table, what, suite, n, theirs, speedup, only))
    every = "layer .* 3x3 p1,1,1,1 N(1|2|4|8|16|32|64) (convoy|torch)$"
    one = "layer .* 3x3 p1,1,1,1 N1 (convoy|torch)$"
    return [
        *rows,
        measured.of_goal("section 8", "effective TFLOPS divided by the peak, N = 1", "1.01", one,
                         Goal("vgg-e", (1,), "of_peak", 1.01)),
        measured.of_goal("section 8", "effective TFLOPS divided by the peak, N = 16", "1.36",
                         "layer .* 3x3 p1,1,1,1 N16 (convoy|torch)$",
                         Goal("vgg-e", (16,), "of_peak", 1.36)),
        measured.on_gpu("figure 1", "effective TFLOPS by layer and N; FFT and FX hatched",
                        "an image", every, measured.by_batch(VGG_E, tuple(TABLE_5), _rates)),
        measured.of_goal("section 8", "faster at every layer but conv 1.1", "all but one",
                         every, Goal("vgg-e", tuple(TABLE_5), "least", 1.0)),
        measured.on_gpu("section 8", "conv 5 at N = 1 is the slowest",
                        "over 5 TFLOPS, cuDNN 1.6", one,
                        measured.by_batch(VGG_E, (1,), _rate_of_conv_5)),
        Result("section 8", "the fused filter transform loses to FX unless K, C are large",
               "seen in figure 1", "no kernel transforms filters at run time", Status.IN_PART,
               f"{OURS}workspace", "Convoy transforms filters only once, when it loads a model"),
    ]  # fmt: skip


def _rate(pair: Comparison) -> float:
    """Return Convoy's effective TFLOPS for a layer."""
    return 2e-6 * pair.layer.problem.with_batch(pair.n).macs / float(pair.ours["p50_us"])


def _rates(found: Measured) -> tuple[str, float]:
    """Return a text with the lowest and the highest effective TFLOPS of a layer, for each N. Also
    return the network's TFLOPS divided by the paper's, for the N with the lowest ratio."""
    told, over = [], []
    for n, pairs in found.items():
        rates = [_rate(pair) for pair in pairs]
        total = summarise(pairs, len(pairs))
        flops = 2e-12 * n * sum(pair.layer.count * pair.layer.problem.macs for pair in pairs)
        told.append(f"{min(rates):.1f} to {max(rates):.1f} at N = {n}")
        over.append(flops / total.seconds / TABLE_5[n][3])
    return ", ".join(told), min(over)


def _rate_of_conv_5(found: Measured) -> tuple[str, float]:
    """Return a text with conv 5's effective TFLOPS and the slowest layer. Also return conv 5's
    speed-up divided by the paper's."""
    slowest, conv_5 = min(found[1], key=_rate), found[1][-1]
    told = f"{_rate(conv_5):.1f} TFLOPS, {conv_5.speedup:.2f}×; the slowest is {slowest.layer.name}"
    return told, conv_5.speedup / 3.1


def _design() -> list[Result]:
    config = _F2.configs(_WIDE)[0]
    workspace = sum(_F2.workspace(_WIDE, config).values())
    blocking = {n: network_blocking(VGG_E, n) for n in (1, 8)}
    left = [
        of[f"groups of {GROUP}"] / min(of["filters inside"], of["tiles inside"])
        for of in blocking.values()
    ]
    tile = next(each for each in TILES[16] if (each.bm, each.bn) == (32, 32))
    return [
        Result("section 8", "workspace of the fused F(2×2)", "0 bytes", f"{workspace} bytes",
               Status.REPRODUCED, f"{OURS}workspace"),
        Result("section 6", "transformed filters at K = C = 512", "16 MB",
               f"{filter_bytes() / 2**20:g} MiB", Status.REPRODUCED, f"{OURS}workspace"),
        measured.on_gpu("section 8", "cuDNN's workspace", "2.6 GB",
                        "layer .* 3x3 p1,1,1,1 N64 cudnn$", measured.workspace(VGG_E, 64, "cudnn")),
        Result("section 6", "blocks of 32×32 outputs on a multiprocessor", "2",
               str(tile.resident), Status.REPRODUCED, f"{OURS}block"),
        Result("section 6", "groups of 128 filters: saved DRAM traffic", "almost half",
               f"{1 - left[0]:.0%} at N = 1, {1 - left[1]:.0%} at N = 8, counted",
               Status.REPRODUCED, f"{OURS}blocking"),
    ]  # fmt: skip


def table_workspace() -> Cells:
    """Return the workspace of the fused F(2×2) and the size of the transformed filters, both for K
    = C = 512."""
    workspace = sum(_F2.workspace(_WIDE, _F2.configs(_WIDE)[0]).values())
    return [("workspace", "transformed filters"), (str(workspace), f"{filter_bytes():,}")]


def table_equation_16() -> Cells:
    """Return a table with an example of a complex product: computed with three multiplications, and
    by the two sums of equation 16 in the printed order."""
    x, y = 3 + 4j, 5 - 2j
    first, second = complexity.printed_product(x, y)
    product = complexity.fast_product(x, y)
    return [("x", "y", "x·y", "by 3 products", "eq. 16, first", "second"),
            (f"{x}", f"{y}", f"{x * y}", f"{product}", f"{first:g}", f"{second:g}")]  # fmt: skip
