"""Launches kernels/src/normalise.cu, which normalises over any axes."""

from collections.abc import Sequence

from kernels.device.launch import Launch, instantiate, launch
from kernels.layout.strided import StridedTensor, walk
from kernels.operations.elementwise import activation_arguments, activation_name
from kernels.problems.activation import Activation
from kernels.problems.precision import FLOAT, one_type

_SHORT = 512
"""The longest row that a single warp takes. Tensors have many rows of this length, such as the
channels of each pixel."""


def normalise_launch(
    x: StridedTensor,
    scale: StridedTensor,
    shift: StridedTensor,
    y: StridedTensor,
    axes: Sequence[int],
    epsilon: float,
    activation: Activation | None = None,
) -> Launch:
    """Return a launch of y = activation((x - mean) / sqrt(variance + epsilon) · scale + shift).

    The operands are x, scale, shift and y. scale and shift are floats, and are broadcast. Mean and
    variance are computed over `axes`. Raises ValueError if shapes or types do not match, or if an
    index exceeds 32 bits.
    """
    one_type(FLOAT, scale.stored, shift.stored)
    tensors = [y, *(tensor.broadcast(y.shape) for tensor in (x, scale, shift))]
    others = [axis for axis in range(len(y.shape)) if axis not in axes]
    rows = walk(*(tensor.transposed(others) for tensor in tensors), vectors=False)
    along = walk(*(tensor.transposed(axes) for tensor in tensors), vectors=False)
    threads = 32 if along.steps <= _SHORT else 256
    return launch(
        instantiate(
            "normalise.cu",
            "normalise",
            t=one_type(x.stored, y.stored).element,
            activation=activation_name(activation),
            rank=rows.rank,
            along=along.rank,
            threads=threads,
        ),
        (rows.steps, 1, 1),
        (threads, 1, 1),
        x="x",
        scale="scale",
        shift="shift",
        y="y",
        rows=rows.struct(),
        along=along.struct(),
        epsilon=epsilon,
        **activation_arguments(activation),
    )
