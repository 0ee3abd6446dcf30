"""Defines the base class of quantized convolutions. The kernels compute exact sums in 32-bit
integers, and then scale and round the sums to bytes.

    numbers, scales, bias ─ requantization ─ offset, scale ─┐
    x, y, residual, activation ─ rounding_struct ───────────┴─ kernels/src/requantize.cuh
"""

from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from kernels.convolution.split_sum import SplitSum, TileConfig
from kernels.device.launch import Launch, launch, struct, window_struct
from kernels.layout.operands import ConvTensors, Filter, check_operands
from kernels.layout.pixels import Addend
from kernels.operations.quantize import clamped, step_of
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import Precision, Storage

_LARGEST = 2**31 - 1
"""The largest sum that an int32 holds."""

C = TypeVar("C", bound=TileConfig[Any])


class IntegerSum(SplitSum[C], Generic[C]):
    """The base class of algorithms that multiply bytes on tensor cores and sum in 32-bit integers.

    Source: Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
    Integer-Arithmetic-Only Inference", sections 2.1 to 2.4. The paper scales sums in integers. This
    class scales them in float32, as ONNX defines.
    """

    __slots__ = ()
    WRITTEN: ClassVar[int] = 8
    """Channels that a thread writes at once."""

    def arithmetic(self, problem: ConvProblem) -> Precision:  # noqa: ARG002  (the same for all)
        """Return INT8, since the kernel multiplies bytes."""
        return Precision.INT8

    def rounding(self, problem: ConvProblem, config: C) -> float:  # noqa: ARG002  (the same for all)
        """Return 0, since sums are exact. The rounding of y to bytes is a part of the operation,
        and does not count as an error."""
        return 0.0

    def launches(self, problem: ConvProblem, config: C, tensors: ConvTensors) -> tuple[Launch]:
        """Return one launch with the operands x, weight, offset, scale and y, and residual if
        given. If the sums are split, workspace and counters are operands, too.

        The function `requantization` computes offset and scale, which include any bias. Raises
        ValueError if a tensor does not match the problem, if an index exceeds 32 bits, or if the
        activation does more than clamp.
        """
        check_operands(problem, tensors)
        split = config.split > 1
        return (
            launch(
                self.instantiation(problem, config),
                (self.tiles(problem, config) // problem.groups, config.split, problem.groups),
                (self.threads(config), 1, 1),
                self.dynamic_bytes(problem, config),
                x="x",
                weight="weight",
                offset="offset",
                scale="scale",
                residual=tensors.given["residual"],
                y="y",
                workspace="workspace" if split else 0,
                counters="counters" if split else 0,
                sizes=self.sizes(problem, config, tensors),
                window=window_struct(problem.window),
                rounding=rounding_struct(tensors),
            ),
        )


def rounding_struct(tensors: ConvTensors) -> bytes:
    """Return the bytes of the struct `Rounding` (requantize.cuh), which describes how sums are
    rounded to the bytes of y. Raises ValueError for an activation that does more than clamp."""
    y, residual = tensors.y.stored, tensors.residual
    ahead = residual.ahead if isinstance(residual, Addend) else None
    sum_least, sum_most = (ahead or y).bounds
    least, most = clamped(y, tensors.activation)
    return struct(
        "requantize.cuh",
        "Rounding",
        sum_least=sum_least,
        sum_most=sum_most,
        sum_step=step_of(ahead, y) if ahead else 0.0,
        residual_zero=residual.stored.zero_point if residual else 0,
        residual_step=step_of(residual.stored, y) if residual else 0.0,
        least=least,
        most=most,
        y_zero=y.zero_point,
    )


def signed_bytes(weight: Filter) -> Filter:
    """Return a filter of whole numbers as signed bytes. Raises ValueError if a number does not
    fit."""
    numbers = weight.astype(np.int8)
    wrong = weight[numbers != weight]
    if wrong.size:
        raise ValueError(
            f"the filter has the weight {wrong[0]}; quantized weights must be whole numbers from"
            " -128 to 127"
        )
    return numbers


def requantization(
    numbers: NDArray[np.int32],
    scale: NDArray[np.float32],
    bias: NDArray[np.int64] | None,
    x: Storage,
    y: Storage,
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the kernel's operands "offset" and "scale" for a filter with the integers `numbers`.

    The kernel computes (sum of products + offset) · scale, which is y in units of y's scale. The
    operand "offset" begins with 16 bytes that repeat x's zero point. The filter's `scale` has 1 or
    K entries. `bias` is in units of x's scale times the filter's scale. `y` is the storage to which
    the sum is rounded before a residual is added. Raises ValueError if a sum may exceed 32 bits.
    """
    rows = numbers.reshape(len(numbers), -1).astype(np.int64)
    offset = -x.zero_point * rows.sum(axis=1) + (0 if bias is None else bias)
    reach = int((255 * np.abs(rows).sum(axis=1) + np.abs(offset)).max())
    if reach > _LARGEST:
        raise ValueError(
            f"a sum of products may reach {reach}, beyond 32 bits; it must not exceed {_LARGEST}"
        )
    # In this order and in float32, as ONNX Runtime computes it.
    step = np.float32(x.scale) * scale / np.float32(y.scale)
    padding = np.full(16, x.zero_point, np.uint8).view(np.int32)
    return (
        np.concatenate([padding, offset.astype(np.int32)]),
        np.broadcast_to(step, offset.shape).astype(np.float32),
    )
