"""Precisions: what numbers are stored in, and what is multiplied."""

from enum import Enum, unique
from typing import Any

import numpy as np


@unique
class Precision(Enum):
    """How exactly a network is computed; sums are float32 at every precision.

    TF32 multiplies 10 bits of a float's mantissa; TF32X3 has a float's accuracy from three such
    products. Both store float32.
    """

    FP32 = "fp32"
    TF32 = "tf32"
    TF32X3 = "3xtf32"
    FP16 = "fp16"

    @property
    def stored(self) -> np.dtype[np.floating[Any]]:
        """What activations and a convolution's weights are stored in."""
        return np.dtype(np.float16 if self is Precision.FP16 else np.float32)

    @property
    def least_architecture(self) -> int:
        """The oldest GPU whose tensor cores compute it: 75 for sm_75."""
        return 80 if self in (Precision.TF32, Precision.TF32X3) else 75
