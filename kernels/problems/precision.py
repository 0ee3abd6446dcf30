"""Precisions: what numbers are stored in, and what is multiplied."""

from enum import Enum, unique
from typing import Any

import numpy as np

from kernels.problems.architectures import ALL, Architectures

Stored = np.dtype[np.floating[Any]]
"""The type of a tensor's numbers in memory: FLOAT or HALF."""

FLOAT: Stored = np.dtype(np.float32)
HALF: Stored = np.dtype(np.float16)


def one_type(first: Stored, *others: Stored) -> Stored:
    """Return the type that all are. Raises ValueError where they differ."""
    if any(other != first for other in others):
        raise ValueError(f"tensors of {first} and of {', '.join(map(str, others))}")
    return first


def element(stored: Stored) -> str:
    """Return its C++ type (kernels/src/half.cuh)."""
    return "Half" if stored == HALF else "float"


@unique
class Precision(Enum):
    """How exactly a network is computed; sums are float32 at every precision.

    TF32 multiplies 10 bits of a float's mantissa; TF32X3 adds three such products, and errs at most
    1.7 times as much as FP32 in a layer (docs/decisions/truncated-sums.md). Both store float32.
    """

    FP32 = "fp32"
    TF32 = "tf32"
    TF32X3 = "3xtf32"
    FP16 = "fp16"

    @property
    def stored(self) -> Stored:
        """Return the type in which activations and a convolution's weights are stored."""
        return HALF if self is Precision.FP16 else FLOAT

    @property
    def architectures(self) -> Architectures:
        """Return those of which the tensor cores compute it; float32 needs none."""
        if self is Precision.FP32:
            return ALL
        return Architectures(75 if self is Precision.FP16 else 80)
