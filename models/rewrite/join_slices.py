"""Replaces Slices of channels, a ScaleShift for each, and their Concat by a single ScaleShift.

    concat_i(s_i · x[c_i : c_{i+1}] + t_i) = s · x + t,   s = concat_i(s_i), t = concat_i(t_i)

Some networks normalise each channel of their input separately and are exported in this form. The
slices must cover all channels of x in order. If no slice has a ScaleShift, the result is x itself.
"""

import numpy as np

from models.graph import Concat, Identity, Node, ScaleShift, Slice
from models.rewrite.folding import Float64, weight64, with_scale_shift
from models.rewrite.rule import GraphView, Outcome, Rewrite


def join_slices(view: GraphView, node: Node) -> Outcome:
    """Return a rewrite that replaces `node` by one ScaleShift, if `node` is a Concat of scaled
    slices that cover a tensor in order."""
    if not isinstance(node, Concat) or node.axis != 0:
        return None
    scales: list[Float64] = []
    shifts: list[Float64] = []
    x, end, is_scaled = None, 0, False
    for part in node.parts:
        scaling = view.producer(part)
        source = scaling
        if isinstance(scaling, ScaleShift):
            source = view.producer(scaling.x) if scaling.activation is None else None
        if not isinstance(source, Slice) or source.axis != 0 or source.step != 1:
            return None
        if source.start != end:
            return None
        if x not in (None, source.x):
            return None
        x, end = source.x, source.stop
        if isinstance(scaling, ScaleShift):
            is_scaled = True
            scales.append(weight64(view, scaling.scale))
            shifts.append(weight64(view, scaling.shift))
        else:
            scales.append(np.ones(source.stop - source.start))
            shifts.append(np.zeros(source.stop - source.start))
    if x is None or end != view.shape(x)[0]:
        return None
    if not is_scaled:
        return Rewrite(nodes=(Identity(name=node.name, output=node.output, x=x),))
    return with_scale_shift(view, node, x, np.concatenate(scales), np.concatenate(shifts), None)
