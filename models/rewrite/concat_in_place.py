"""Removes a Concat of channels: the nodes that compute its inputs write directly into its output.

    y = concat(x1, ..., xn):   x_i is stored in y, from channel offset_i = Σ_{j<i} C_j

If an input x_i cannot be stored in y, an additional node copies it. The Rewrite's `caveats` give
one of these reasons:

- The input is an input or output of the network, or is already stored in another tensor.
- The input occurs twice in the Concat.
- The input is a view of another tensor, or another node reads it as contiguous memory.
- The offset of the input is not aligned for the kernels' vector loads.

If the rule `merge_siblings` merged convolutions, their outputs are slices of a larger tensor m. If
x1 is the last slice, m[c:], all of m is stored in one buffer with y:

    y = z[c:],   z = concat(m, x2, ..., xn)

The rule does not apply if every input would be copied, or if the Concat is along another axis.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from models.graph import ChannelSlice, Concat, Conv, Identity, Node, Reshape, Slice, Value
from models.rewrite.rule import GraphView, Outcome, Refusal, Rewrite

# Kernels read and write channels in aligned vectors of 16 bytes: 8 numbers in fp16. In fp32 a
# vector has 4 numbers, but the precision is chosen after this rewrite.
CHANNEL_ALIGNMENT = 8


def concat_in_place(view: GraphView, node: Node) -> Outcome:
    """Return a rewrite that removes the Concat of channels `node`. The nodes before the Concat then
    write their results directly to its output."""
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
    """Return the tensors to store in one buffer, and the number of channels before the Concat's
    output.

    Usually, these are the Concat's inputs, and 0. If the first input is the last slice of the
    output m of merged convolutions, m takes the place of the slice. The other slices of m then
    precede the Concat's output in the buffer.
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
    """Return the reason why input `index` of the Concat cannot be stored in its output, or None."""
    part = parts[index]
    if part in view.inputs:
        return "it is an input of the network"
    if part in view.outputs:
        return "it is an output of the network"
    inside = view.value(part).inside
    if inside is not None:
        return f"it is stored in {inside.parent}"
    if part in parts[:index]:
        return "it is listed twice"
    if offset % CHANNEL_ALIGNMENT:
        return f"offset {offset} is not a multiple of {CHANNEL_ALIGNMENT} channels"
    producer = view.producer(part)
    if isinstance(producer, Reshape | Identity):
        return f"{producer.name} is a view of another value"
    return _view_of_one_run(view, part)


def _view_of_one_run(view: GraphView, part: str) -> str | None:
    """Return the reason why the Concat input `part` must be contiguous in memory, or None.

    Such an input cannot be stored in the Concat's output, where its pixels would have gaps between
    them.
    """
    if prod(view.shape(part)[1:]) == 1:
        return None
    for reader in view.readers(part):
        if isinstance(reader, Reshape) and reader.channels_last:
            return f"{reader.name} reads it as contiguous memory"
    return None
