"""A Concat of channels disappears, because its parts are written into its output directly.

    y = concat(x1, ..., xn):   x_i lives inside y, at channel offset_i = Σ_{j<i} C_j

A part that cannot live there is copied there by a node of its own, with a caveat as the reason: the
part is an input or an output of the network, already inside another value, listed twice, at an
offset that the kernels' vectors do not reach, a view of another value, or itself viewed as
contiguous memory. Where x1 is the last of merged siblings, m[c:], all of m lives there:

    y = z[c:],  z = concat(m, x2, ..., xn)

Refused where every part would be copied, and along other axes than channels.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from models.graph import ChannelSlice, Concat, Conv, Identity, Node, Reshape, Slice, Value
from models.rewrite.rule import GraphView, Outcome, Refusal, Rewrite

# Kernels read and write channels in vectors of 16 bytes, aligned: 8 numbers in fp16. In fp32 these
# are 4 numbers, but a graph is rewritten before its precision is chosen.
CHANNEL_ALIGNMENT = 8


def concat_in_place(view: GraphView, node: Node) -> Outcome:
    """Apply the rule to a node."""
    if not isinstance(node, Concat):
        return None
    if node.axis != 0:
        return Refusal(f"it concatenates along axis {node.axis}, not along channels")
    parts, before = _with_siblings(view, node)
    whole = replace(view.value(node.output), inside=None)
    if before:
        channels, *spatial = whole.shape
        name = view.fresh(f"{node.output}/siblings")
        whole = replace(whole, name=name, shape=(before + channels, *spatial))
    values: list[Value] = [whole]
    copies: list[Node] = []
    caveats: dict[str, str] = {}
    offset = 0
    for index, part in enumerate(parts):
        inside = ChannelSlice(whole.name, offset)
        obstacle = _obstacle(view, parts, index, offset)
        if obstacle is None:
            values.append(replace(view.value(part), inside=inside))
        else:
            name = view.fresh(f"{node.output}.{index}")
            copy = replace(view.value(part), name=name, inside=inside)
            values.append(copy)
            copies.append(Identity(name=f"{node.name}.{index}", output=copy.name, x=part))
            caveats[copies[-1].name] = f"{part} is copied: {obstacle}"
        offset += view.shape(part)[0]
    if len(copies) == len(parts):
        return Refusal("; ".join(caveats.values()))
    if not before:
        return Rewrite(nodes=tuple(copies), values=tuple(values[1:]), caveats=caveats)
    end = before + view.shape(node.output)[0]
    y = Slice(name=node.name, output=node.output, x=whole.name, axis=0, start=before, stop=end)
    return Rewrite(nodes=(*copies, y), values=tuple(values), caveats=caveats)


def _with_siblings(view: GraphView, node: Concat) -> tuple[tuple[str, ...], int]:
    """Return a Concat's parts, and how many of the first part's channels precede the Concat's
    output.

    Where the first part is the last of merged siblings, the siblings' whole output replaces it; the
    channels before that part do not belong to the Concat.
    """
    first, *others = node.parts
    last = view.producer(first)
    if not isinstance(last, Slice) or not isinstance(view.producer(last.x), Conv):
        return node.parts, 0
    ends_there = last.axis == 0 and last.stop == view.shape(last.x)[0]
    is_read_alone = node.output not in view.outputs and not any(
        isinstance(reader, Concat) for reader in view.readers(node.output)
    )
    parts = (last.x, *others)
    if not ends_there or not is_read_alone or _obstacle(view, parts, 0, 0) is not None:
        return node.parts, 0
    return parts, last.start


def _obstacle(view: GraphView, parts: Sequence[str], index: int, offset: int) -> str | None:
    """Return why part `index` cannot be written at its place, or None."""
    part = parts[index]
    if part in view.inputs:
        return "it is an input of the network"
    if part in view.outputs:
        return "it is an output of the network"
    inside = view.value(part).inside
    if inside is not None:
        return f"it lies inside {inside.parent}"
    if part in parts[:index]:
        return "it is listed twice"
    if offset % CHANNEL_ALIGNMENT:
        return f"offset {offset} is not a multiple of {CHANNEL_ALIGNMENT} channels"
    producer = view.producer(part)
    if isinstance(producer, Reshape | Identity):
        return f"{producer.name} makes no copy that could be placed"
    return _view_of_one_run(view, part)


def _view_of_one_run(view: GraphView, part: str) -> str | None:
    """Return why `part` must be contiguous in memory, or None if it need not be.

    Inside a larger value there would be gaps between its pixels.
    """
    if prod(view.shape(part)[1:]) == 1:
        return None
    for reader in view.readers(part):
        if isinstance(reader, Reshape) and reader.channels_last:
            return f"{reader.name} views it as one run of memory"
    return None
