"""Launches kernels/src/softmax.cu, which computes softmax along one axis."""

from kernels.device.device import TemplateArgument
from kernels.device.launch import Launch, instantiate, launch
from kernels.layout.strided import StridedTensor, walk_rows

_SHORT = 128
"""The longest row that a single warp takes, four elements a lane."""


def softmax_launch(x: StridedTensor, y: StridedTensor, axis: int, log: bool = False) -> Launch:
    """Return a launch of softmax or its logarithm along `axis`, with the operands x and y. Raises
    ValueError if shapes do not match, or if an index exceeds 32 bits."""
    rows, (y_stride, x_stride) = walk_rows(axis, y, x)
    length = x.shape[axis]
    threads = 32 if length <= _SHORT else 256
    template: dict[str, TemplateArgument] = {
        "x": x.stored.element,
        "y": y.stored.element,
        "log": log,
        "rank": rows.rank,
        "threads": threads,
    }
    return launch(
        instantiate("softmax.cu", "softmax", **template),
        (rows.steps, 1, 1),
        (threads, 1, 1),
        x="x",
        y="y",
        rows=rows.struct(),
        length=length,
        x_stride=x_stride,
        y_stride=y_stride,
    )
