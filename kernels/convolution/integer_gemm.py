"""Launches of kernels/src/integer_gemm.cu: convolution of quantised values, by exact sums."""

from dataclasses import dataclass, replace
from math import ceil
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kernels.convolution.implicit_gemm import ImplicitGemm, inner_size, unit
from kernels.convolution.split_sum import TileConfig
from kernels.convolution.tensor_gemm import TENSOR_TILES, TensorTile, taps_by_channels
from kernels.convolution.work import NO_INNER_LOOPS, Work
from kernels.device.device import Instantiation
from kernels.device.launch import Launch, instantiate, launch, template_arguments, window_struct
from kernels.layout.operands import Filter, check_filter, check_operands
from kernels.layout.pixels import Addend, Pixels
from kernels.operations.quantise import clamped, step_of
from kernels.problems.activation import Activation
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import Precision, Storage
from kernels.problems.refusals import after_prologue, not_bytes, projecting

_ROW_BYTES = 128
"""Of a pixel or a filter, in a chunk of the inner dimension."""

_STEP_BYTES = 32
"""Of the inner dimension, in an mma."""

_LARGEST = 2**31 - 1
"""The largest sum."""


@dataclass(frozen=True, slots=True)
class IntegerConv(ImplicitGemm[TensorTile]):
    """As TensorConv, of unsigned bytes and signed weights, by mma.sync with sums of 32-bit ints.

    Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
    Integer-Arithmetic-Only Inference", sections 2.1 to 2.4; the sum is scaled in float32, as ONNX
    defines it.
    """

    WRITTEN: ClassVar[int] = 8

    name: str = "integer"

    def supports(self, problem: ConvProblem) -> str | None:
        """Return None where values are quantised; there is no prologue and no projection."""
        return not_bytes(problem) or after_prologue(problem) or projecting(problem)

    @override
    def blocks_of(self, problem: ConvProblem) -> tuple[TensorTile, ...]:
        return tuple(replace(tile, bk=_ROW_BYTES) for tile in TENSOR_TILES)

    @override
    def instantiation(
        self,
        problem: ConvProblem,
        config: TileConfig[TensorTile],
        activation: Activation | None = None,
    ) -> Instantiation:
        return instantiate(
            "integer_gemm.cu",
            "conv_integer",
            Precision.INT8.architectures,
            **template_arguments(config.tile),
        )

    def arithmetic(self, problem: ConvProblem) -> Precision:  # noqa: ARG002  (the same for all)
        """Return INT8."""
        return Precision.INT8

    @override
    def rounding(self, problem: ConvProblem, config: TileConfig[TensorTile]) -> float:
        """Return 0: sums are exact. That y is rounded to bytes is no matter of the algorithm."""
        return 0.0

    def work(self, problem: ConvProblem, config: TileConfig[TensorTile]) -> tuple[Work]:
        """Count the work as TensorConv does: its parts lie in memory as ints."""
        tile, split = config.tile, config.split > 1
        chunks = ceil(ceil(inner_size(problem) / tile.bk) / config.split)
        parts = tile.wm // 16 * (tile.wn // 8) * (_ROW_BYTES // _STEP_BYTES)
        return (
            Work(
                kernel=self.instantiation(problem, config),
                blocks=self.tiles(problem, config) * config.split,
                threads=tile.threads,
                shared_bytes=tile.dynamic_bytes,
                bytes=_ROW_BYTES * (tile.bm + tile.bn) * chunks
                + (4 if split else 1) * tile.bm * tile.bn,
                trips=NO_INNER_LOOPS,
                products=parts * chunks,
                vectors=tile.bm * tile.bn / self.WRITTEN / tile.threads,
                rounds=chunks / (tile.stages - 1),
                tail_bytes=4 * tile.bm * tile.bn * (config.split - 1),
                weight_bytes=inner_size(problem) * problem.k,
            ),
        )

    def filter_form(self, problem: ConvProblem, config: TileConfig[TensorTile]) -> str:  # noqa: ARG002  (one layout serves all tiles)
        """Return the same for all configurations and all N."""
        return f"{problem.groups} x filters x taps x channels, int8"

    def prepare_filter(
        self,
        weight: Filter,
        problem: ConvProblem,
        config: TileConfig[TensorTile],  # noqa: ARG002  (one layout serves all tiles)
    ) -> Filter:
        """K×(C/groups)×R×S whole numbers → K × (R·S · C/groups) signed bytes.

        The channels are padded with zeros to 16. Raises ValueError where a number is not one of a
        signed byte.
        """
        check_filter(weight, problem)
        numbers = weight.astype(np.int8)
        if not np.array_equal(numbers, weight):
            raise ValueError("a filter of bytes has whole numbers from -128 to 127")
        return taps_by_channels(numbers, unit(problem))

    @override
    def launches(
        self,
        problem: ConvProblem,
        config: TileConfig[TensorTile],
        x: Pixels,
        y: Pixels,
        residual: Pixels | None = None,
        bias: bool = False,
        activation: Activation | None = None,
    ) -> tuple[Launch]:
        """Return one launch on x, weight, offset, scale, y; residual, if there is; workspace and
        counters if split.

        offset and scale are those of `requantization`, whatever bias there is. Raises ValueError
        where pixels do not fit the problem, beyond 32-bit indices, and for an activation that does
        not clamp.
        """
        check_operands(problem, x, y, residual)
        split = config.split > 1
        ahead = residual.ahead if isinstance(residual, Addend) else None
        sum_least, sum_most = (ahead or y.stored).bounds
        least, most = clamped(y.stored, activation)
        return (
            launch(
                self.instantiation(problem, config),
                (self.tiles(problem, config) // problem.groups, config.split, problem.groups),
                (config.tile.threads, 1, 1),
                config.tile.dynamic_bytes,
                x="x",
                weight="weight",
                offset="offset",
                scale="scale",
                residual="residual" if residual else 0,
                y="y",
                workspace="workspace" if split else 0,
                counters="counters" if split else 0,
                sizes=self.sizes(problem, config, x, y, residual),
                window=window_struct(problem.window),
                sum_least=sum_least,
                sum_most=sum_most,
                sum_step=step_of(ahead, y.stored) if ahead else 0.0,
                residual_zero=residual.stored.zero_point if residual else 0,
                residual_step=step_of(residual.stored, y.stored) if residual else 0.0,
                least=least,
                most=most,
                y_zero=y.stored.zero_point,
            ),
        )


def requantization(
    numbers: NDArray[np.int32],
    scale: NDArray[np.float32],
    bias: NDArray[np.int64] | None,
    x: Storage,
    y: Storage,
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the operands offset and scale of a filter of `numbers` and scales, and its bias.

    A sum of bytes and numbers, plus offset, times scale, is in units of y's scale. Ahead of the
    offsets are 16 bytes of x's zero point. `scale` has one entry or K; `bias` is in units of x's
    scale and the filter's. y is what the sum is stored as, ahead of a residual if there is one.
    Raises ValueError where a sum may pass 32 bits.
    """
    rows = numbers.reshape(len(numbers), -1).astype(np.int64)
    offset = -x.zero_point * rows.sum(axis=1) + (0 if bias is None else bias)
    reach = int((255 * np.abs(rows).sum(axis=1) + np.abs(offset)).max())
    if reach > _LARGEST:
        raise ValueError(f"sums of bytes may reach {reach}, beyond 32 bits")
    # In this order and in float32, as ONNX Runtime computes it.
    step = np.float32(x.scale) * scale / np.float32(y.scale)
    padding = np.full(16, x.zero_point, np.uint8).view(np.int32)
    return (
        np.concatenate([padding, offset.astype(np.int32)]),
        np.broadcast_to(step, offset.shape).astype(np.float32),
    )
