"""The check of the cost model with made-up measurements."""

from functools import cache

import numpy as np
import pytest

from benchmarks.gpu.estimates import LEAST, check, pairs, rank_correlation
from benchmarks.kernels.suites import CUCONV
from benchmarks.rows import Row
from kernels.device.gpus import H200
from kernels.tuning.constants import CLOCK_HZ
from kernels.tuning.heuristic import estimated_cycles, heuristic

LAYERS = CUCONV[:24]


def row(index: int, **changes: object) -> Row:
    """Return a layer's measurement: twice the model's time plus one µs."""
    problem = LAYERS[index].problem
    choice = heuristic(H200)(problem)
    us = 1e6 * estimated_cycles(problem, choice, H200, warm=True) / CLOCK_HZ
    return {
        "problem": str(problem),
        "device": "NVIDIA H200",
        "side": "convoy",
        "cache": "warm",
        "choice": str(choice),
        "p50_us": 1 + 2 * us,
        **changes,
    }


@cache
def rows() -> list[Row]:
    """Return the rows of all layers. Choosing their algorithms takes a second."""
    return [row(index) for index in range(len(LAYERS))]


def test_a_model_that_is_off_by_a_factor_ranks_layers_rightly() -> None:
    found = check(pairs(rows()))
    assert found.layers == len(LAYERS)
    assert found.rank_correlation == pytest.approx(1)
    assert 0.5 < found.median_error < 0.7
    assert "on 24 layers, the rank correlation is 1.00, and the median error " in str(found)


def test_only_convoys_rows_of_known_layers_and_choices_count() -> None:
    others = [
        row(0, side="cudnn"),
        row(0, device="NVIDIA L4"),
        row(0, choice="direct 1x1x1"),
        row(0, problem="N1 C1 1x1 K1 1x1"),
    ]
    (pair,) = pairs([*others, row(0)])
    assert pair.measured_us == row(0)["p50_us"]
    (cold,) = pairs([row(0, cache="cold")])
    assert cold.estimated_us >= pair.estimated_us


def test_few_layers_are_not_checked() -> None:
    with pytest.raises(ValueError, match=f"needs at least {LEAST} measured layers, got 3"):
        check(pairs(rows()[:3]))


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 1000], 1),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1),
        ([1, 2, 2, 3], [1, 2, 2, 3], 1),
        ([1, 2, 3], [2, 1, 3], 0.5),
    ],
)
def test_ranks_are_compared_not_values(
    first: list[int], second: list[int], expected: float
) -> None:
    assert rank_correlation(np.array(first, float), np.array(second, float)) == pytest.approx(
        expected
    )
