"""Seeded arrays, and the two types that the oracle computes in."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]
Float = type[np.floating[Any]]
BOTH_TYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def normal(shape: tuple[int, ...], seed: int = 0) -> NDArray[np.float32]:
    """Standard normal numbers."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)
