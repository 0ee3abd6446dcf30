"""Converts each node to kernel launches, with one function per type of node."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

from kernels.layout.operands import ConvTensors
from kernels.layout.strided import StridedTensor
from kernels.operations import elementwise
from kernels.operations.attention import attention_launch, attention_reads
from kernels.operations.linear import linear_launch, linear_reads, prepare_linear_weight
from kernels.operations.lrn import lrn_launch
from kernels.operations.pooling import global_pool_launch, pool_launch
from kernels.operations.product import product_launch, product_reads
from kernels.operations.quantize import (
    add_launch,
    blocks_of,
    dequantize_launch,
    global_average_launch,
    quantize_launch,
)
from kernels.operations.reads import BlockReads
from kernels.operations.softmax import softmax_launch
from kernels.problems.pool import PoolKind
from kernels.problems.precision import Precision
from models.cost import bytes_moved, exponentials_per_image, flops_per_image
from models.graph import (
    Activate,
    Attention,
    Binary,
    ChannelShuffle,
    Concat,
    Constant,
    Conv,
    Dequantize,
    Expand,
    Gemm,
    GlobalPool,
    Identity,
    Lrn,
    Node,
    Normalise,
    Pad,
    Pool,
    Product,
    Quantize,
    Reduce,
    Resample,
    Reshape,
    ScaleShift,
    Slice,
    Softmax,
    Transpose,
)
from models.lowering import buffer_view
from models.lowering.byte_products import added_to, integer_operands, lower_integer_gemm
from models.lowering.context import Context, pixels_of
from models.lowering.reductions import (
    lower_expand,
    lower_normalise,
    lower_reduce,
    lower_resample,
)
from models.lowering.tape import Operand, at
from models.quantized_filters import is_quantized
from models.schedule.time import Cost, PlannedConv


def lower_node(to: Context, node: Node) -> None:
    """Add the launches of one node to the tape. Raises TypeError if no kernel computes the node."""
    if type(node) not in _LOWER:
        raise TypeError(f"{node.name}: {type(node).__name__} has no kernel; add one here")
    graph, n = to.graph, to.n
    flops, exponentials = flops_per_image(graph, node), exponentials_per_image(graph, node)
    cost = Cost(n * flops, bytes_moved(graph, node, n), exponentials=n * exponentials)
    to.tape.begin(node.name, cost)
    _LOWER[type(node)](to, node)


def _reading(to: Context, reads: BlockReads, precision: Precision = Precision.FP32) -> None:
    """Record two facts about the next launch: the precision of its products, and the number of
    bytes that each thread block reads."""
    to.tape.cost = replace(to.tape.cost, precision=precision, reads=reads)


def _conv(to: Context, node: Conv) -> None:
    problem = node.problem.with_batch(to.n)
    choice = to.choose(problem)
    algorithm, config = choice.algorithm, choice.config
    x, x_pixels = to.pixels(node.x)
    operands: dict[str, Operand] = {"x": at(x)}
    residual = None
    if node.residual is not None:
        view, residual = to.pixels(node.residual)
        operands["residual"] = at(view)
    # The thread that writes an element has read its residual, so y may overwrite the residual.
    # Other threads read x, and the input of a projection, at other positions. Therefore y must not
    # overwrite these.
    added = node.residual if problem.projection is None else None
    apart = added is not None and to.views[added].root != x.root
    y = to.output(node.output, over=added if apart else None)
    operands["y"] = at(y)
    if problem.precision is Precision.INT8:
        operands |= integer_operands(to, node, problem, choice)
        if residual is not None and node.rounded is not None:
            residual = added_to(residual, node.rounded)
    else:
        weight = to.graph.weights[node.weight]
        operands["weight"] = to.tape.weight(
            node.weight,
            partial(algorithm.prepare_filter, weight, problem, config),
            algorithm.filter_form(problem, config),
        )
        if node.bias is not None:
            operands["bias"] = to.weight(node.bias)
    if node.scale is not None and node.shift is not None:
        operands |= {"scale": to.vectors(node.scale), "shift": to.vectors(node.shift)}
    launches = algorithm.launches(
        problem,
        config,
        ConvTensors(
            x=x_pixels,
            y=pixels_of(y),
            residual=residual,
            bias=node.bias is not None,
            activation=node.activation,
        ),
    )
    operands |= to.tape.scratch(
        algorithm.workspace(problem, config), algorithm.counter_bytes(problem, config)
    )
    to.tape.chosen = PlannedConv(problem, choice)
    for launch in choice.triggered(launches):
        to.tape.emit(launch, **operands)


def _pool(to: Context, node: Pool) -> None:
    x, x_pixels = to.pixels(node.x)
    y = to.output(node.output)
    launch = pool_launch(node.problem, to.n, x_pixels, pixels_of(y))
    to.tape.emit(launch, x=at(x), y=at(y))


def _global_pool(to: Context, node: GlobalPool) -> None:
    x, x_pixels = to.pixels(node.x)
    y = to.output(node.output)
    area = prod(to.graph.shape(node.x)[1:])
    if is_quantized(x_pixels.stored) and node.kind is not PoolKind.MAX:
        launch = global_average_launch(to.n, area, x_pixels, pixels_of(y))
    else:
        launch = global_pool_launch(node.kind, to.n, area, x_pixels, pixels_of(y))
    to.tape.emit(launch, x=at(x), y=at(y))


def _lrn(to: Context, node: Lrn) -> None:
    x, x_pixels = to.pixels(node.x)
    y = to.output(node.output)
    launch = lrn_launch(
        x_pixels,
        pixels_of(y),
        to.n * prod(to.graph.shape(node.x)[1:]),
        size=node.size,
        alpha=node.alpha,
        beta=node.beta,
        bias=node.bias,
    )
    to.tape.emit(launch, x=at(x), y=at(y))


def _scale_shift(to: Context, node: ScaleShift) -> None:
    x = to.views[node.x]
    y = to.output(node.output, over=node.x)
    # One number per channel, repeated along the later axes.
    spatial = len(x.strided.shape) - 2
    channel = StridedTensor((x.strided.shape[1], *[1] * spatial), (1, *[0] * spatial))
    launch = elementwise.scale_shift_launch(x.strided, channel, channel, y.strided, node.activation)
    scale, shift = to.weight(node.scale), to.weight(node.shift)
    to.tape.emit(launch, x=at(x), scale=scale, shift=shift, y=at(y))


def _binary(to: Context, node: Binary) -> None:
    stored = to.graph.values[node.output].stored
    (a, a_at), (b, b_at) = to.tensor(node.a, stored), to.tensor(node.b, stored)
    reads = [to.views[operand] for operand in (node.a, node.b) if operand in to.views]
    whole = to.graph.shape(node.a) == to.graph.shape(node.output)
    y = to.output(node.output, over=node.a if whole else node.b, reads=reads)
    if is_quantized(stored):  # a sum, because `integer_sum` makes nothing else
        launch = add_launch(a, b, y.strided, node.activation)
    else:
        launch = elementwise.binary_launch(node.op, a, b, y.strided, node.activation)
    to.tape.emit(launch, a=a_at, b=b_at, y=at(y))


def _activate(to: Context, node: Activate) -> None:
    x = to.views[node.x]
    y = to.output(node.output, over=node.x)
    launch = elementwise.map_launch(x.strided, y.strided, node.activation)
    to.tape.emit(launch, x=at(x), y=at(y))


def _softmax(to: Context, node: Softmax) -> None:
    x = to.views[node.x]
    y = to.output(node.output)
    launch = softmax_launch(x.strided, y.strided, node.axis + 1, node.log)
    to.tape.emit(launch, x=at(x), y=at(y))


def _channel_shuffle(to: Context, node: ChannelShuffle) -> None:
    x = to.views[node.x]
    y = to.output(node.output)
    launch = elementwise.channel_shuffle_launch(x.strided, y.strided, 1, node.groups)
    to.tape.emit(launch, x=at(x), y=at(y))


def _concat(to: Context, node: Concat) -> None:
    y = to.output(node.output)
    start = 0
    for part in node.parts:
        stop = start + to.graph.shape(part)[node.axis]
        to.copy(to.views[part], buffer_view.cut(y, node.axis + 1, start, stop))
        start = stop


def _slice(to: Context, node: Slice) -> None:
    cut = buffer_view.cut(to.views[node.x], node.axis + 1, node.start, node.stop, node.step)
    to.alias(node.output, cut)


def _transpose(to: Context, node: Transpose) -> None:
    x = to.views[node.x]
    seen = buffer_view.transposed(x, node.axes)
    if to.is_near_tokens(node) or buffer_view.is_in_vectors(seen):
        to.alias(node.output, seen)
        return
    y = to.output(node.output)
    axes = (0, *(axis + 1 for axis in node.axes))
    to.tape.copy(x.strided.transposed(axes), at(x), y.strided, at(y))


def _pad(to: Context, node: Pad) -> None:
    inner = y = to.output(node.output)
    stored = y.strided.stored
    value = stored.byte(node.value) if is_quantized(stored) else node.value
    to.tape.emit(elementwise.fill_launch(y.strided, value), y=at(y))
    for axis, size in enumerate(to.graph.shape(node.x)):
        inner = buffer_view.cut(inner, axis + 1, node.begin[axis], node.begin[axis] + size)
    to.copy(to.views[node.x], inner)


def _quantize(to: Context, node: Quantize) -> None:
    if node.output in to.views:  # Context.preprocess already wrote the bytes of pixels
        return
    x, y = to.views[node.x], to.output(node.output)
    launch = quantize_launch(*blocks_of(x.strided, y.strided, node.block))
    to.tape.emit(launch, x=at(x), y=at(y))


def _dequantize(to: Context, node: Dequantize) -> None:
    x, y = to.views[node.x], to.output(node.output)
    to.tape.emit(dequantize_launch(x.strided, y.strided), x=at(x), y=at(y))


def _identity(to: Context, node: Identity) -> None:
    to.alias(node.output, to.views[node.x])


def _constant(to: Context, node: Constant) -> None:
    y = to.output(node.output)
    every = StridedTensor.contiguous(to.graph.shape(node.weight)).broadcast(y.strided.shape)
    to.tape.copy(every, to.weight(node.weight), y.strided, at(y))


def _gemm(to: Context, node: Gemm) -> None:
    if is_quantized(to.graph.values[node.x].stored):
        lower_integer_gemm(to, node)
        return
    # A Gemm over several rows of an image would be a 1×1 Conv (sink_transpose).
    to.output(node.output)
    x, y = to.dense(node.x), to.dense(node.output)
    operands: dict[str, Operand] = {"x": at(x), "y": at(y)}
    weight, stored = to.graph.weights[node.weight], x.strided.stored
    operands["weight"] = to.tape.weight(
        node.weight, partial(prepare_linear_weight, weight, stored), f"linear, {stored}"
    )
    bias = node.bias is not None
    if node.bias is not None:
        operands["bias"] = to.weight(node.bias)
    launch = linear_launch(to.n, pixels_of(x), pixels_of(y), bias, node.activation)
    _reading(to, linear_reads(to.n, pixels_of(x)))
    to.tape.emit(launch, **operands)


def _attention(to: Context, node: Attention) -> None:
    y = to.output_by_tokens(node.output)
    views = [to.views[name] for name in (node.q, node.k, node.v)]
    q, k, v = (view.strided for view in views)
    operands: dict[str, Operand] = dict(zip("qkvy", map(at, (*views, y)), strict=True))
    bias = None
    if node.bias is not None:
        bias = StridedTensor.contiguous(to.graph.shape(node.bias))
        operands["bias"] = to.weight(node.bias)
    launch = attention_launch(q, k, v, y.strided, bias, node.scale, precision=node.precision)
    reads = attention_reads(k, v, node.precision, bias=bias is not None)
    _reading(to, reads, node.precision)
    to.tape.emit(launch, **operands)


def _product(to: Context, node: Product) -> None:
    y = to.output_by_tokens(node.output)
    (a, a_at), (b, b_at) = (to.tensor(name, y.strided.stored) for name in (node.a, node.b))
    launch = product_launch(a, b, y.strided, node.precision)
    _reading(to, product_reads(a.shape[-1], y.strided.stored), node.precision)
    to.tape.emit(launch, a=a_at, b=b_at, y=at(y))


def _reshape(to: Context, node: Reshape) -> None:
    x, shape = to.views[node.x], to.graph.shape(node.output)
    strided = x.strided
    if node.channels_last:
        seen = buffer_view.flattened(x, to.n)
        seen = seen and buffer_view.with_single_axes(seen, shape)
        seen = seen or buffer_view.with_single_axes(x, shape)  # also a vector along any axis
        # The channels follow the spatial axes, as in memory: H, W, C.
        strided = strided.transposed((0, *range(2, len(strided.shape)), 1))
    else:
        seen = buffer_view.with_single_axes(x, shape) or buffer_view.pixels_in_order(x, shape)
        if seen is None and to.is_near_tokens(node):
            seen = buffer_view.reshaped(x, shape)
    if seen is not None:
        to.alias(node.output, seen)
    else:
        to.reshape_copy(strided, at(x), to.output_as_read(node))


_LOWER: Mapping[type[Node], Callable[[Context, Any], None]] = {
    Activate: _activate,
    Attention: _attention,
    Binary: _binary,
    ChannelShuffle: _channel_shuffle,
    Concat: _concat,
    Constant: _constant,
    Conv: _conv,
    Dequantize: _dequantize,
    Expand: lower_expand,
    Gemm: _gemm,
    GlobalPool: _global_pool,
    Identity: _identity,
    Lrn: _lrn,
    Normalise: lower_normalise,
    Pad: _pad,
    Pool: _pool,
    Product: _product,
    Quantize: _quantize,
    Reduce: lower_reduce,
    Resample: lower_resample,
    Reshape: _reshape,
    ScaleShift: _scale_shift,
    Slice: _slice,
    Softmax: _softmax,
    Transpose: _transpose,
}
