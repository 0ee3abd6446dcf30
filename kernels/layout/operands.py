"""Checks the tensors of a convolution, and converts its filter to the layouts that kernels read."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernels.layout.pixels import Pixels
from kernels.layout.strided import VECTOR
from kernels.problems.activation import Activation
from kernels.problems.conv import ConvProblem

Filter = NDArray[Any]

FILTER_FORM = "{groups} x taps x channels x filters"
"""The `filter_form` of the layout that `taps_by_channels_by_filters` returns."""


class ConvTensors(NamedTuple):
    """Describes the layout of a convolution's tensors in memory, and the activation of its
    results."""

    x: Pixels
    y: Pixels
    residual: Pixels | None = None
    bias: bool = False
    activation: Activation | None = None

    @property
    def given(self) -> dict[str, str | int]:
        """Return the kernel's arguments `bias` and `residual`: a name, or 0 if the operand is
        missing."""
        return {
            "bias": "bias" if self.bias else 0,
            "residual": "residual" if self.residual else 0,
        }


def check_operands(problem: ConvProblem, tensors: ConvTensors) -> None:
    """Raise ValueError if a tensor has a number of channels that differs from the problem's, or is
    stored in another type than the problem's precision requires."""
    x, y, residual, *_ = tensors
    stored = problem.precision.stored
    present = [tensor for tensor in (x, y, residual) if tensor is not None]
    if any(tensor.stored.dtype != stored.dtype for tensor in present):
        at = problem.precision.value
        raise ValueError(f"at precision {at}, a convolution's tensors must be {stored.dtype}")
    if x.channels != problem.c:
        raise ValueError(f"the problem has {problem.c} channels, but x has {x.channels}")
    if y.channels != problem.k:
        raise ValueError(f"the problem has {problem.k} filters, but y has {y.channels} channels")
    if residual is None and problem.projection:
        raise ValueError("the problem has a projection and needs a residual to project")
    added = problem.projected or problem.k
    if residual is not None and residual.channels != added:
        raise ValueError(f"the residual must have {added} channels, got {residual.channels}")


def check_filter(weight: Filter, problem: ConvProblem) -> None:
    """Raise ValueError if the filter is not K×(C/groups)×R×S (with a projection: K×(C +
    C')×1×1)."""
    if weight.shape != problem.filter_shape:
        raise ValueError(f"the filter must have shape {problem.filter_shape}, got {weight.shape}")


def taps_by_channels_by_filters(weight: Filter, problem: ConvProblem) -> Filter:
    """Return the filter K×(C/groups)×R×S as groups × R·S × C/groups × K/groups, with channels
    padded with zeros."""
    check_filter(weight, problem)
    groups, taps = problem.groups, problem.window.kernel_volume
    k, c = problem.k // groups, problem.c // groups
    result = np.zeros((groups, taps, padded(c), padded(k)), weight.dtype)
    result[:, :, :c, :k] = weight.reshape(groups, k, c, taps).transpose(0, 3, 2, 1)
    return result


def vectors_in(*tensors: Pixels, width: int = VECTOR) -> bool:
    """Return whether channels can be loaded as vectors of `width` numbers. For this, every pixel of
    every tensor must begin at a multiple of `width`. The number of channels need not be a multiple
    of `width`, because the rest of the last vector belongs to the same pixel."""
    return all(tensor.pitch % width == tensor.offset % width == 0 for tensor in tensors)


def padded(channels: int, to: int = VECTOR) -> int:
    """Return `channels` rounded up to a multiple of `to`."""
    return -(-channels // to) * to
