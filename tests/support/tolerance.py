"""Compares two answers that differ only by rounding. The bound follows from the arithmetic.

The error of a sum of L products is at most about (L + 1)·u·Σ|terms|, where u = eps / 2 (Higham,
Accuracy and Stability of Numerical Algorithms, section 3.1). If both sides of a comparison are
rounded, they differ by at most (L + 2)·eps·Σ|terms|, a generous bound.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]
EPS32 = float(np.finfo(np.float32).eps)
EPS64 = float(np.finfo(np.float64).eps)


def assert_within(actual: Array, expected: Array, bound: Array | float) -> None:
    """Fail if |actual - expected| > bound anywhere, or if either side is NaN."""
    assert actual.shape == expected.shape
    error = np.abs(actual.astype(np.float64) - expected)
    bounds = np.broadcast_to(bound, error.shape)
    wrong = np.argwhere(~(error <= bounds))
    if len(wrong):
        at = tuple(wrong[0])
        raise AssertionError(
            f"{len(wrong)} of {error.size} elements are out of bounds, the first at "
            f"{tuple(map(int, at))}: {actual[at]} for {expected[at]} ± {bounds[at]}"
        )
