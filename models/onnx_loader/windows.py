"""Converts ONNX's convolutions and poolings to Convoy's typed nodes."""

from operator import ge

import numpy as np

from kernels.problems.conv import ConvProblem
from kernels.problems.pool import PoolKind, PoolProblem
from kernels.problems.window import Window
from models.graph import Conv, GlobalPool, Pool, Reshape
from models.onnx_loader.importer import Importer, ImpossibleError, OnnxNode, RefusedError


def window(node: OnnxNode, kernel: tuple[int, ...]) -> Window:
    """Return the window of a Conv or Pool node for one image.

    auto_pad becomes explicit pads, by the equations in ONNX's operator specification. The output
    size comes from ONNX's shape inference, which already considers ceil_mode.
    """
    size, output = node.input_shape(0)[2:], node.output_shape[2:]
    axes = len(size)
    if axes not in (1, 2, 3):
        raise RefusedError(
            f"it has {axes} spatial axes; only 1 (W), 2 (H, W) and 3 (D, H, W) are supported"
        )
    strides = node.integers("strides", [1] * axes)
    dilations = node.integers("dilations", [1] * axes)
    pads = node.integers("pads", [0] * 2 * axes)
    if (len(kernel), len(strides), len(dilations), len(pads)) != (axes, axes, axes, 2 * axes):
        raise RefusedError(
            f"kernel={kernel}, strides={strides}, dilations={dilations}, pads={pads} do not fit"
            f" {axes} spatial axes"
        )
    begin, end = pads[:axes], pads[axes:]
    auto_pad = node.text("auto_pad", "NOTSET")
    if auto_pad == "VALID":
        begin = end = (0,) * axes
    elif auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        if set(dilations) != {1}:
            # ONNX's shape inference and ONNX Runtime disagree about dilations with auto_pad.
            raise RefusedError(
                f"auto_pad={auto_pad} with dilations={dilations} is not supported; export the"
                " model with pads instead"
            )
        total = tuple(
            max((p - 1) * s + d * (k - 1) + 1 - h, 0)
            for p, s, d, k, h in zip(output, strides, dilations, kernel, size, strict=True)
        )
        small, large = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
        begin, end = (small, large) if auto_pad == "SAME_UPPER" else (large, small)
    elif auto_pad != "NOTSET":
        raise RefusedError(f"auto_pad={auto_pad} is unknown; export the model with pads instead")
    if min(begin + end) < 0:
        raise RefusedError(f"pads={begin + end}: negative padding is not supported")
    if axes == 1:  # a row is an image of height 1
        rows = (1, *size), (1, *kernel), (1, *strides), (1, *dilations), (0, *begin), (0, *end)
        return Window(*rows, (1, *output))
    return Window(size, kernel, strides, dilations, begin, end, output)


def _ends(to: Importer, node: OnnxNode) -> tuple[str, str]:
    """Return the names of the values that the node reads and writes.

    If the node works on rows (C×W), add a Reshape to images of height 1 before it. `_end` adds the
    Reshape after the node.
    """
    output = to.declare(node.output)
    if len(node.output_shape) != 3:
        return node.x(), output
    (_, c, w), (_, k, q) = node.input_shape(0), node.output_shape
    image = to.temporary(f"{node.name}/image", (c, 1, w))
    to.nodes.append(Reshape(name=image, output=image, x=node.x()))
    return image, to.temporary(f"{node.name}/result", (k, 1, q))


def _end(to: Importer, node: OnnxNode, written: str) -> None:
    """If `_ends` has reshaped rows to images, add a Reshape of the node's result to rows."""
    if written != node.output.name:
        to.nodes.append(Reshape(name=f"{node.name}/rows", output=str(node.output.name), x=written))


def conv(to: Importer, node: OnnxNode) -> None:
    """Convert an ONNX Conv, whose filter must be constant, to a Conv node."""
    weight = node.constant(1)
    kernel = node.integers("kernel_shape", list(weight.shape[2:]))
    if kernel != weight.shape[2:]:
        raise ImpossibleError(f"kernel_shape={kernel}, but the filter has the shape {weight.shape}")
    if weight.ndim != len(node.input_shape(0)):
        raise ImpossibleError(
            f"the filter {weight.shape} must have as many axes as the input {node.input_shape(0)}"
        )
    c = node.input_shape(0)[1]
    k = weight.shape[0]
    groups = node.integer("group", 1)
    if groups < 1 or c % groups or k % groups or weight.shape[1] != c // groups:
        raise ImpossibleError(
            f"the filter {weight.shape} does not fit {c} channels, group={groups}: group must"
            f" divide {c} and {k}, and axis 1 of the filter must have {c} / group entries"
        )
    problem = ConvProblem(1, c, k, window(node, weight.shape[2:]), groups)
    if weight.ndim == 3:
        weight = weight[:, :, np.newaxis]
    if node.has(2) and node.input_shape(2) != (k,):
        raise ImpossibleError(f"the bias {node.input_shape(2)} does not fit {k} output channels")
    bias = to.weight(str(node.input(2).name), node.constant(2)) if node.has(2) else None
    x, y = _ends(to, node)
    to.nodes.append(
        Conv(
            name=node.name,
            output=y,
            x=x,
            weight=to.weight(str(node.input(1).name), weight, node.grid(1)),
            bias=bias,
            problem=problem,
        )
    )
    _end(to, node, y)


def pool(to: Importer, node: OnnxNode) -> None:
    """Convert an ONNX MaxPool or AveragePool to a Pool node."""
    if node.gives(1):
        raise RefusedError("the indices of MaxPool (its second output) are not supported")
    if node.node.op_type == "MaxPool":
        kind = PoolKind.MAX
    elif node.integer("count_include_pad", 0):
        kind = PoolKind.AVERAGE_PADDED
    else:
        kind = PoolKind.AVERAGE
    seen = window(node, node.integers("kernel_shape", []))
    if any(map(ge, seen.pads_begin, seen.kernel)) or any(map(ge, seen.pads_end, seen.kernel)):
        pads = seen.pads_begin + seen.pads_end
        raise ImpossibleError(f"each of pads={pads} must be below kernel_shape={seen.kernel}")
    problem = PoolProblem(kind, node.output_shape[1], seen)
    x, y = _ends(to, node)
    to.nodes.append(Pool(name=node.name, output=y, x=x, problem=problem))
    _end(to, node, y)


def global_pool(to: Importer, node: OnnxNode) -> None:
    """Convert an ONNX GlobalAveragePool or GlobalMaxPool to a GlobalPool node."""
    kind = PoolKind.MAX if node.node.op_type == "GlobalMaxPool" else PoolKind.AVERAGE
    x, y = _ends(to, node)
    to.nodes.append(GlobalPool(name=node.name, output=y, x=x, kind=kind))
    _end(to, node, y)
