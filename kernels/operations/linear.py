"""Launches kernels/src/linear.cu, which computes fully connected layers for few rows."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.device.device import TemplateArgument
from kernels.device.launch import Launch, instantiate, int32, launch
from kernels.layout.operands import vectors_in
from kernels.layout.pixels import Pixels
from kernels.layout.strided import VECTOR
from kernels.operations.epilogue import epilogue_arguments, finish
from kernels.operations.reads import BlockReads
from kernels.problems.activation import Activation
from kernels.problems.precision import FLOAT, Storage

_ROWS_AT_ONCE = 8
_WARP = 32

Matrix = NDArray[np.floating[Any]]


def prepare_linear_weight(weight: Matrix, stored: Storage = FLOAT) -> Matrix:
    """Return a K×C weight in x's type, with rows padded with zeros to a multiple of 4 channels."""
    weight = weight.astype(stored, copy=False)
    return np.ascontiguousarray(np.pad(weight, ((0, 0), (0, -weight.shape[1] % VECTOR))))


def linear_launch(
    rows: int,
    x: Pixels,
    y: Pixels,
    bias: bool = False,
    activation: Activation | None = None,
) -> Launch:
    """Return a launch of y = activation(x · weightᵀ + bias). Its operands are x, weight, y, and
    bias if given.

    Each of the `rows` rows is a pixel with C channels in x and K channels in y. The launch reads
    all weights once for every 8 rows. Raises ValueError if an index exceeds 32 bits.
    """
    at_once, outputs, max_warps, warps = _block(rows, x)
    for tensor in (x, y):
        int32(rows * tensor.pitch)
    template: dict[str, TemplateArgument] = {
        "x": x.stored.element,
        "y": y.stored.element,
        "rows": at_once,
        "outputs": outputs,
        "max_warps": max_warps,
        "finish": finish(activation),
    }
    return launch(
        instantiate("linear.cu", "linear", **template),
        (-(-y.channels // outputs), -(-rows // at_once), 1),
        (_WARP * warps, 1, 1),
        x="x",
        weight="weight",
        bias="bias" if bias else 0,
        y="y",
        rows=rows,
        channels=x.channels,
        outputs=y.channels,
        x_pitch=x.pitch,
        y_pitch=y.pitch,
        x_vectors=vectors_in(x),
        y_vectors=vectors_in(y),
        **epilogue_arguments(activation),
    )


def linear_reads(rows: int, x: Pixels) -> BlockReads:
    """Return how many bytes a block of `linear_launch` reads, and how often it waits for them. A
    block reads rows of the weights and rows of x."""
    at_once, outputs, _, warps = _block(rows, x)
    vectors = -(-x.channels // VECTOR)
    nbytes = (outputs + at_once) * vectors * VECTOR * x.stored.itemsize
    return BlockReads(nbytes, -(-vectors // (_WARP * warps)))


def _block(rows: int, x: Pixels) -> tuple[int, int, int, int]:
    """Return four numbers for a thread block: the rows of x that it reads, the outputs that it
    computes for each row, the largest number of warps that the kernel allows in a block, and the
    number of warps that this block has."""
    at_once = next((size for size in (1, 2, 4) if rows <= size), _ROWS_AT_ONCE)
    max_warps = 4 if at_once == _ROWS_AT_ONCE else 8
    vectors = -(-x.channels // VECTOR)
    return at_once, max(VECTOR, at_once), max_warps, min(max_warps, -(-vectors // _WARP))
