"""Creates seeded arrays, and names the two types in which the reference computes."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels.problems.precision import FLOAT, Precision, Storage

Array = NDArray[np.floating[Any]]
Float = type[np.floating[Any]]
FLOATING = tuple(precision for precision in Precision if precision is not Precision.INT8)
"""The precisions in which a float network can be computed."""

BOTH_TYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def normal(shape: tuple[int, ...], seed: int = 0, stored: Storage = FLOAT) -> Array:
    """Return standard normal numbers, rounded to the type `stored`."""
    return np.random.default_rng(seed).normal(size=shape).astype(stored)
