"""Merges a 1×1 convolution into the convolution that adds its result as a residual.

    f(W·x + b + (V·x'[::u, ::v] + c)) = f([W V]·[x x'[::u, ::v]] + b + c)

ResNet has such residuals between layers of different sizes. The rule applies only on tensor cores,
because their kernel can read the channels of x and of x' without a copy. Both convolutions must be
1×1, because some kernels for larger windows cannot read a second input. The rule does not apply if
the convolution that computes the residual has an activation, a residual, padding or groups, or if
other nodes read its result.
"""

from dataclasses import replace

import numpy as np

from kernels.problems.conv import Projection
from kernels.problems.precision import Precision
from models.graph import Conv, Node
from models.rewrite.folding import bias64, weight_of
from models.rewrite.rule import GraphView, Outcome, Refusal, Rewrite


def project_residual(view: GraphView, node: Node) -> Outcome:
    """Return a rewrite that merges two Convs: the Conv `node`, and the 1×1 Conv that computes its
    residual."""
    if not isinstance(node, Conv) or node.residual is None or node.problem.projection:
        return None
    shortcut, precision = view.producer(node.residual), node.problem.precision
    if not isinstance(shortcut, Conv) or precision in (Precision.FP32, Precision.INT8):
        return None
    if obstacle := _obstacle(view, node, shortcut):
        return Refusal(obstacle)
    branch = shortcut.problem
    projection = Projection(branch.c, branch.window.input, branch.window.strides)
    weight, bias = (view.fresh(f"{node.output}.{part}") for part in ("projected", "bias"))
    parts = [weight_of(view, member.weight) for member in (node, shortcut)]
    biases = bias64(view, node) + bias64(view, shortcut)
    projected = replace(
        node,
        weight=weight,
        bias=bias,
        residual=shortcut.x,
        problem=replace(node.problem, projection=projection),
    )
    weights = {weight: np.concatenate(parts, axis=1), bias: biases.astype(np.float32)}
    return Rewrite(nodes=(projected,), weights=weights)


def _obstacle(view: GraphView, conv: Conv, shortcut: Conv) -> str | None:
    for member in (conv, shortcut):
        window, groups = member.problem.window, member.problem.groups
        if window.kernel_volume > 1 or groups > 1:
            return f"{member.name} is not a 1×1 convolution with one group"
    if any(shortcut.problem.window.pads_begin + shortcut.problem.window.pads_end):
        return f"{shortcut.name} has padding"
    if shortcut.activation is not None:
        return f"{shortcut.name} has the activation {shortcut.activation}"
    if shortcut.residual is not None:
        return f"{shortcut.name} already adds {shortcut.residual}"
    if shortcut.problem.precision is not conv.problem.precision:
        return f"{shortcut.name} is computed in {shortcut.problem.precision.value}"
    return view.tie(shortcut.output, conv)
