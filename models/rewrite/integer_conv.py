"""Lets a convolution multiply 8-bit integers if its inputs, filter and result are quantized.

    quantize(f(conv(dequantize(x), w) + b + dequantize(r)))  →  conv of the bytes of x and w,
                                                                plus the bytes of r

The rule applies to a Gemm, too. The activation f may only clamp. If the filter has a zero point,
its integers minus the zero point may need 9 bits. Each integer is then written as the sum of two
signed bytes, and x is multiplied by both:

    conv(x, w) = conv((x, x), (u, v)),   w = u + v

The rule does not apply if an operand is not quantized, if a sum may exceed 32 bits, or if another
node reads the float result of the convolution.
"""

from dataclasses import replace
from typing import TypeGuard

import numpy as np

from kernels.operations.quantize import clamps
from kernels.problems.precision import Precision
from models.graph import (
    ChannelShuffle,
    Concat,
    Conv,
    Dequantize,
    Gemm,
    Grid,
    Node,
    Quantize,
    Value,
)
from models.quantized_filters import is_quantized, operands_of
from models.rewrite.rule import GraphView, Outcome, Refusal, Rewrite


def integer_conv(view: GraphView, node: Node) -> Outcome:
    """Return a rewrite that merges the Quantize `node` and the Conv or Gemm before it into one
    operation on bytes."""
    if not quantizes(node, view):
        return None
    product = view.producer(node.x)
    if not isinstance(product, Conv | Gemm):
        return None
    x = behind(view, product.x)
    if x is None:
        return Refusal(f"{product.x}, which {product.name} reads, is not quantized")
    grid = view.grid(product.weight)
    if grid is None:
        return Refusal(f"{product.weight}, the filter of {product.name}, is not quantized")
    bytes_ = _in_bytes(grid)
    obstacle = _obstacle(view, product, bytes_, x, node.output) or view.tie(product.output, node)
    if obstacle is not None:
        return Refusal(obstacle)
    residual = None
    if isinstance(product, Conv) and product.residual is not None:
        residual = behind(view, product.residual)
        if residual is None:
            return Refusal(f"{product.residual}, which {product.name} adds, is not quantized")
    twice = Rewrite() if bytes_ is grid else _twice(view, product, bytes_, x)
    whole = replace(product, output=node.output, x=x)
    if twice.nodes:
        (weight,) = twice.grids
        whole = replace(whole, x=twice.nodes[-1].output, weight=weight)
    if isinstance(whole, Conv):
        c = whole.problem.c * bytes_.numbers.shape[1] // grid.numbers.shape[1]
        problem = replace(whole.problem, c=c, precision=Precision.INT8)
        whole = replace(whole, residual=residual, problem=problem)
    return replace(twice, nodes=(*twice.nodes, whole))


def _in_bytes(grid: Grid) -> Grid:
    """Return the filter as signed bytes.

    If its integers need 9 bits, the result has twice as many channels: each integer is the sum of
    the bytes in two adjacent channels.
    """
    numbers = grid.numbers
    upper = numbers.clip(-128, 127)
    if np.array_equal(upper, numbers):
        return grid
    k, c, *taps = numbers.shape
    both = np.stack([upper, numbers - upper], axis=2)
    return Grid(both.reshape(k, 2 * c, *taps), grid.scale)


def _twice(view: GraphView, product: Conv | Gemm, grid: Grid, x: str) -> Rewrite:
    """Return nodes that repeat each channel of x, as the input of `product`. The filter `grid` has
    two bytes for each of the filter's integers, one for each copy of the channel."""
    shape, stored = (2 * view.shape(x)[0], *view.shape(x)[1:]), view.value(x).stored
    joined, pairs = (
        Value(view.fresh(f"{product.output}/{stem}"), shape, stored=stored)
        for stem in ("twice", "pairs")
    )
    return Rewrite(
        nodes=(
            Concat(name=f"{product.name}/twice", output=joined.name, parts=(x, x), axis=0),
            ChannelShuffle(
                name=f"{product.name}/pairs", output=pairs.name, x=joined.name, groups=2
            ),
        ),
        values=(joined, pairs),
        grids={view.fresh(f"{product.weight}/bytes"): grid},
    )


def quantizes(node: Node, view: GraphView) -> TypeGuard[Quantize]:
    """Return whether a node quantizes floats. A Quantize that only changes the scale of bytes does
    not count."""
    return isinstance(node, Quantize) and not is_quantized(view.value(node.x).stored)


def behind(view: GraphView, name: str) -> str | None:
    """Return the quantized input of the Dequantize that computes the value `name`, or None if
    another node computes it."""
    node = view.producer(name)
    return node.x if isinstance(node, Dequantize) else None


def _obstacle(view: GraphView, product: Conv | Gemm, grid: Grid, x: str, y: str) -> str | None:
    if not clamps(product.activation):
        return f"{product.name} has the activation {product.activation}, which does more than clamp"
    if isinstance(product, Gemm) and len(view.shape(product.x)) != 1:
        return f"{product.name} has several rows per image"
    bias, bias_grid = None, None
    if product.bias is not None:
        bias, bias_grid = view.weight(product.bias), view.grid(product.bias)
    try:
        operands_of(grid, bias, bias_grid, view.value(x).stored, view.value(y).stored)
    except ValueError as error:
        return f"{product.name}: {error}"
    return None
