"""Lets the first convolution, if it is quantized and has stride 2, read 2×2 pixels as one pixel
with more channels.

    conv(x, w, stride 2) = conv(blocks(x), v, stride 1),
    v[k, (i, j, c), r, s] = w[k, c, 2r+i, 2s+j]

The kernel multiplies 16 bytes at once. A pixel with 3 channels uses only 3 of them, but a block of
2×2 pixels uses 12. If the padding is odd, the filter gets zeros at its beginning. The rule does not
apply if the image's height or width is odd, or if other nodes read x.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kernels.problems.precision import Precision
from kernels.problems.window import Window
from models.graph import Conv, Grid, Node, Quantize, Value
from models.rewrite.rule import GraphView, Outcome, Refusal, Rewrite

_BLOCK = 2

_PIXEL = 4
"""The number of channels that a block stores for each pixel."""


def integer_stem(view: GraphView, node: Node) -> Outcome:
    """Return a rewrite in which the 8-bit Conv `node` reads blocks of 2×2 pixels, if it has stride
    2 and at most 4 input channels."""
    if not isinstance(node, Conv) or node.problem.precision is not Precision.INT8:
        return None
    problem, window, grid = node.problem, node.problem.window, view.grid(node.weight)
    quantize = view.producer(node.x)
    is_stem = problem.c <= _PIXEL and problem.groups == 1 and window.strides == (_BLOCK, _BLOCK)
    if grid is None or not is_stem or set(window.dilations) != {1} or window.kernel_volume == 1:
        return None
    if not isinstance(quantize, Quantize):
        return Refusal(f"{node.x} is not written by a Quantize node")
    if any(size % _BLOCK for size in window.input):
        return Refusal(f"{node.x} does not consist of blocks of {_BLOCK}x{_BLOCK} pixels")
    if tie := view.tie(node.x, node):
        return Refusal(tie)
    blocks = _in_blocks(window)
    numbers = _filter(grid.numbers, window, blocks)
    x = Value(
        view.fresh(f"{node.x}/blocks"),
        (numbers.shape[1], *blocks.input),
        stored=view.value(node.x).stored,
    )
    weight = view.fresh(f"{node.weight}/blocks")
    conv = replace(
        node,
        x=x.name,
        weight=weight,
        problem=replace(problem, c=numbers.shape[1], window=blocks),
    )
    return Rewrite(
        nodes=(replace(quantize, output=x.name, block=_BLOCK), conv),
        values=(x,),
        grids={weight: Grid(numbers, grid.scale)},
    )


def _ahead(window: Window) -> tuple[int, ...]:
    """Return the number of zeros to insert before the filter along each axis, so that the padding
    consists of whole blocks of pixels."""
    return tuple(-pad % _BLOCK for pad in window.pads_begin)


def _in_blocks(window: Window) -> Window:
    """Convert a window over pixels, with stride 2, to a window over blocks, with stride 1."""
    input_ = tuple(size // _BLOCK for size in window.input)
    kernel = tuple(
        -(-(taps + ahead) // _BLOCK)
        for taps, ahead in zip(window.kernel, _ahead(window), strict=True)
    )
    begin = tuple(-(-pad // _BLOCK) for pad in window.pads_begin)
    reach = zip(window.output, kernel, begin, input_, strict=True)
    end = tuple(max(0, size + taps - 1 - pad - have) for size, taps, pad, have in reach)
    return replace(
        window, input=input_, kernel=kernel, strides=(1, 1), pads_begin=begin, pads_end=end
    )


def _filter(numbers: NDArray[np.int32], window: Window, blocks: Window) -> NDArray[np.int32]:
    """Convert a filter over pixels (K×C×R×S) to a filter over blocks (K×16×R'×S')."""
    (k, c, r, s), (down, right) = numbers.shape, _ahead(window)
    rows, columns = blocks.kernel
    whole = np.zeros((k, _PIXEL, rows * _BLOCK, columns * _BLOCK), np.int32)
    whole[:, :c, down : down + r, right : right + s] = numbers
    split = whole.reshape(k, _PIXEL, rows, _BLOCK, columns, _BLOCK)
    return split.transpose(0, 3, 5, 1, 2, 4).reshape(k, -1, rows, columns)
