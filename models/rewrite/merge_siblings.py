"""Merges 1×1 convolutions that read the same tensor into one convolution with all their output
channels.

    y_i = f(conv(x, w_i) + b_i)  →  m = f(conv(x, w) + b),  y_i = m[c_i : c_{i+1}],
    w = concat_i(w_i),  b = concat_i(b_i)

The convolutions may differ only in their filters and biases. If an output is the first input of a
Concat, its channels become the last channels of m. The rule `concat_in_place` can then store m and
the Concat's output in one buffer. A convolution is not merged if its output is a later input of a
Concat, if its number of channels is not a multiple of 8, or if its filter is quantized.
"""

from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np

from models.graph import Concat, Conv, Node, Slice, Value
from models.rewrite.concat_in_place import CHANNEL_ALIGNMENT
from models.rewrite.folding import weight_of
from models.rewrite.rule import GraphView, Outcome, Rewrite


def merge_siblings(view: GraphView, node: Node) -> Outcome:
    """Return a rewrite that merges 1×1 convolutions of the same tensor. The Conv `node` is the
    first of them."""
    if not isinstance(node, Conv) or not _may_merge(view, node):
        return None
    alike = [
        other
        for other in view.readers(node.x)
        if isinstance(other, Conv) and other.x == node.x and _may_merge(view, other)
        if _without_filters(other) == _without_filters(node)
    ]
    first_parts = [conv for conv in alike if _concats(view, conv)]
    siblings = [conv for conv in alike if not _concats(view, conv)] + first_parts[:1]
    if len(siblings) == 1 or node not in siblings:
        return None
    if any(view.precedes(other, node) for other in siblings):
        return None
    return _merged(view, siblings)


def _may_merge(view: GraphView, conv: Conv) -> bool:
    return (
        conv.problem.window.kernel_volume == 1
        and conv.problem.groups == 1
        and conv.problem.k % CHANNEL_ALIGNMENT == 0
        and conv.residual is None
        and view.grid(conv.weight) is None
        and conv.output not in view.outputs
        and view.value(conv.output).inside is None
        and not any(
            isinstance(reader, Slice) for reader in view.readers(conv.output)
        )  # merged already
        and all(_is_first(view, concat, conv.output) for concat in _concats(view, conv))
    )


def _concats(view: GraphView, conv: Conv) -> list[Concat]:
    return [reader for reader in view.readers(conv.output) if isinstance(reader, Concat)]


def _is_first(view: GraphView, concat: Concat, part: str) -> bool:
    """Return whether `part` is the first input of a Concat that can be stored in one buffer with
    the merged convolutions.

    `part` must occur only once in the Concat. The Concat must concatenate channels. Its result must
    be neither an output of the network nor an input of another Concat.
    """
    return (
        concat.axis == 0
        and concat.parts.index(part) == 0
        and concat.parts.count(part) == 1
        and concat.output not in view.outputs
        and not any(isinstance(reader, Concat) for reader in view.readers(concat.output))
    )


def _without_filters(conv: Conv) -> tuple[object, ...]:
    return replace(conv.problem, k=1), conv.activation, conv.bias is None


def _merged(view: GraphView, siblings: list[Conv]) -> Rewrite:
    first = siblings[0]
    names = [(sibling.weight, sibling.bias) for sibling in siblings]
    weights = {view.fresh(f"{first.weight}/siblings"): [weight for weight, _ in names]}
    biases = [bias for _, bias in names if bias is not None]
    if biases:
        weights[view.fresh(f"{biases[0]}/siblings")] = biases
    filters = [sibling.problem.k for sibling in siblings]
    problem = replace(first.problem, k=sum(filters))
    output = Value(view.fresh(f"{first.output}/siblings"), problem.output_shape[1:])
    weight, *bias = weights
    conv = replace(
        first,
        name=" + ".join(sibling.name for sibling in siblings),
        output=output.name,
        weight=weight,
        bias=bias[0] if bias else None,
        problem=problem,
    )
    ends = accumulate(filters, initial=0)
    slices = (
        Slice(
            name=sibling.name, output=sibling.output, x=output.name, axis=0, start=start, stop=stop
        )
        for sibling, (start, stop) in zip(siblings, pairwise(ends), strict=True)
    )
    return Rewrite(
        nodes=(conv, *slices),
        values=(output,),
        weights={
            name: np.concatenate([weight_of(view, part) for part in parts])
            for name, parts in weights.items()
        },
    )
