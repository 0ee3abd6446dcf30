"""Seeded arrays, and the two types that the oracle computes in."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels.problems.precision import FLOAT, Storage

Array = NDArray[np.floating[Any]]
Float = type[np.floating[Any]]
BOTH_TYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def normal(shape: tuple[int, ...], seed: int = 0, stored: Storage = FLOAT) -> Array:
    """Standard normal numbers, as `stored` rounds them."""
    return np.random.default_rng(seed).normal(size=shape).astype(stored)
