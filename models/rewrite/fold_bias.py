"""Folds the addition of a constant after a linear layer (Gemm) into the layer's bias.

    x · wᵀ + b = gemm(x, w, b)      b has one number per output, along the last axis

The rule does not apply if other nodes read the layer's result, or if the constant differs between
rows.
"""

import numpy as np

from kernels.problems.binary_operation import BinaryOp
from models.graph import Binary, Gemm, Node
from models.rewrite.rule import GraphView, Outcome, Refusal, Rewrite


def fold_bias(view: GraphView, node: Node) -> Outcome:
    """Return a rewrite that folds the constant that `node` adds to a Gemm's result into the Gemm's
    bias."""
    if not isinstance(node, Binary) or node.op is not BinaryOp.ADD:
        return None
    for x, other in ((node.a, node.b), (node.b, node.a)):
        gemm, constant = view.producer(x), view.weight(other)
        if not isinstance(gemm, Gemm) or constant is None or gemm.activation is not None:
            continue
        outputs = view.shape(x)[-1]
        if constant.ndim == 0 or constant.size != outputs or constant.shape[-1] != outputs:
            return None
        if tie := view.tie(x, node):
            return Refusal(tie)
        bias = constant.reshape(outputs).astype(np.float64)
        before = view.weight(gemm.bias) if gemm.bias is not None else None
        if before is not None:
            bias = bias + before
        name = view.fresh(f"{node.output}.bias")
        made = Gemm(
            name=gemm.name,
            output=node.output,
            x=gemm.x,
            weight=gemm.weight,
            bias=name,
            activation=node.activation,
        )
        return Rewrite(nodes=(made,), weights={name: bias.astype(np.float32)})
    return None
