"""The fit of the cost model, on made-up measurements."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.gpu.fit import LEAST, fit, pairs, rank_correlation
from benchmarks.kernels.suites import CUCONV
from benchmarks.rows import Row
from kernels.device.gpus import H200
from kernels.tuning.constants import CLOCK_HZ
from kernels.tuning.heuristic import estimated_cycles, heuristic

LAYERS = CUCONV[:24]


def row(index: int, **changes: object) -> Row:
    """A layer's, twice as long as the model says and a µs more."""
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


ROWS = [row(index) for index in range(len(LAYERS))]


def test_a_model_that_is_off_by_a_factor_and_an_offset_is_fitted_exactly() -> None:
    found = fit(pairs(ROWS))
    assert (found.fitted, found.checked) == (12, 12)
    assert found.offset_us == pytest.approx(1)
    assert found.scale == pytest.approx(2)
    assert found.rank_correlation == pytest.approx(1)
    assert found.median_error == pytest.approx(0, abs=1e-9)
    assert 0.5 < found.unfitted_error < 0.7
    assert "on 12 others the rank correlation is 1.00, the median error 0% " in str(found)


def test_the_error_is_of_layers_that_the_fit_has_not_seen() -> None:
    ordered = sorted(pairs(ROWS), key=lambda pair: (pair.estimated_us, pair.name))
    doubled = [
        replace(pair, measured_us=2 * pair.measured_us) if i % 2 else pair
        for i, pair in enumerate(ordered)
    ]
    found = fit(doubled)
    assert found.scale == pytest.approx(2)
    assert found.median_error == pytest.approx(0.5)


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


def test_few_layers_are_not_fitted() -> None:
    with pytest.raises(ValueError, match=f"3 layers are measured; a fit needs {LEAST}"):
        fit(pairs(ROWS[:3]))


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
