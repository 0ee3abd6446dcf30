"""Moves an activation from the output of a Concat to its inputs: f(concat_i(x_i)) =
concat_i(f(x_i)).

The node that computes an input x_i then applies the activation to its own result. Relu is left out
for an input that is never negative. The rule does not apply if an input would need a separate node
for the activation, because that node would read and write the input once more.
"""

from dataclasses import replace

from kernels.problems.activation import ActivationKind
from models.graph import Activate, Binary, Concat, Conv, Gemm, Node, Normalise, ScaleShift, Value
from models.rewrite.nonnegative import is_nonnegative
from models.rewrite.rule import GraphView, Outcome, Refusal, Rewrite


def activation_before_concat(view: GraphView, node: Node) -> Outcome:
    """Return a rewrite that moves the activation `node` before the Concat that it reads, if
    possible."""
    if not isinstance(node, Activate):
        return None
    concat = view.producer(node.x)
    if not isinstance(concat, Concat):
        return None
    if tie := view.tie(concat.output, node):
        return Refusal(tie)
    activated: list[Node] = []
    values: list[Value] = []
    parts: list[str] = []
    for index, part in enumerate(concat.parts):
        if node.activation.kind is ActivationKind.RELU and is_nonnegative(view, part):
            parts.append(part)
            continue
        if obstacle := _obstacle(view, part, concat):
            return Refusal(obstacle)
        value = Value(view.fresh(f"{node.output}.{index}"), view.shape(part))
        values.append(value)
        parts.append(value.name)
        activated.append(
            Activate(
                name=f"{node.name}.{index}",
                output=value.name,
                x=part,
                activation=node.activation,
            )
        )
    moved = replace(concat, output=node.output, parts=tuple(parts))
    return Rewrite(nodes=(*activated, moved), values=tuple(values))


def _obstacle(view: GraphView, part: str, concat: Concat) -> str | None:
    """Return the reason why the node that computes `part` cannot apply the activation, or None."""
    before = view.producer(part)
    if not isinstance(before, Conv | Gemm | ScaleShift | Normalise | Binary):
        return f"{part} is not computed by a node that takes an activation"
    if before.activation is not None:
        return f"{before.name} already has the activation {before.activation}"
    return view.tie(part, concat)
