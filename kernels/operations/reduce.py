"""Launches kernels/src/reduce.cu, which reduces along any axes."""

from collections.abc import Sequence

from kernels.device.launch import Launch, blocks_of_threads, instantiate, launch
from kernels.layout.strided import StridedTensor, walk
from kernels.problems.precision import one_type
from kernels.problems.reduction import ReduceKind

_SHORT = 16
"""The longest row that a single thread takes."""

_MEDIUM = 512
"""The longest row that a single warp takes."""


def reduce_launch(
    kind: ReduceKind, x: StridedTensor, y: StridedTensor, axes: Sequence[int]
) -> Launch:
    """Return a launch that reduces x along `axes`, whose size in y is 1. Its operands are x and y.
    Raises ValueError if shapes or types do not match, or if an index exceeds 32 bits."""
    others = [axis for axis in range(len(x.shape)) if axis not in axes]
    rows = walk(y.transposed(others), x.transposed(others), vectors=False)
    along = walk(x.transposed(axes), vectors=False)
    length = along.steps
    lanes = 1 if length <= _SHORT else 32 if length <= _MEDIUM else 256
    grid, block = (
        blocks_of_threads(rows.steps) if lanes == 1 else ((rows.steps, 1, 1), (lanes, 1, 1))
    )
    return launch(
        instantiate(
            "reduce.cu",
            "reduce",
            t=one_type(x.stored, y.stored).element,
            kind=f"ReduceKind::{kind.name}",
            rank=rows.rank,
            along=along.rank,
            lanes=lanes,
        ),
        grid,
        block,
        x="x",
        y="y",
        rows=rows.struct(),
        along=along.struct(),
    )
