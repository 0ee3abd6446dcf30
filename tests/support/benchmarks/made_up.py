"""Creates artificial rows, which were not measured, for tests of reports."""

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.kernels.suites import Layer
from benchmarks.rows import Row

PEAK_FLOPS = 60e12


def row(layer: Layer, n: int, side: str, p50_us: float, **changes: Any) -> Row:
    """Return an artificial row of one side. The cache is warm unless `changes` says otherwise."""
    return {
        "kind": "measurement",
        "device": "made up",
        "commit": "0",
        "peak_flops": PEAK_FLOPS,
        "problem": str(layer.problem.with_batch(n)),
        "n": n,
        "side": side,
        "cache": "warm",
        "choice": f"{side}'s best",
        "p20_us": p50_us - 1,
        "p50_us": p50_us,
        "p80_us": p50_us + 1,
        **changes,
    }


def rows_of(
    layers: Sequence[Layer], n: int, speedup: Callable[[Layer], float], cache: str = "warm"
) -> list[Row]:
    """Return artificial rows of every layer. Convoy's rows reach half the peak. The fastest other
    side takes `speedup` times as long as Convoy."""
    rows = []
    for layer in layers:
        us = 1e6 * 2 * layer.problem.macs * n / (PEAK_FLOPS / 2)
        rows.append(row(layer, n, "convoy", us, cache=cache))
        rows.append(row(layer, n, "torch", speedup(layer) * us * 1.5, cache=cache))
        rows.append(row(layer, n, "cudnn", speedup(layer) * us, cache=cache))
    return rows
