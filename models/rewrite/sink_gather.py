"""Moves a gather P, which reorders pixels, past the operations f that compute each pixel
separately, up to the next gather Q.

    f(P(x)) = P(f(x)),  Q(P(x)) = (Q·P)(x)     f an activation, a normalisation of channels, a 1×1
                                               Conv, a ScaleShift, or a sum of such tensors

P and Q then become one gather. In Swin, one gather between two blocks is enough, instead of two.
The rule applies only if all results of f are gathered again. Otherwise, it would not save a gather.
"""

from dataclasses import replace
from math import prod

from models.graph import (
    Activate,
    Binary,
    Conv,
    Node,
    Normalise,
    Resample,
    Reshape,
    ScaleShift,
    Value,
)
from models.rewrite.gather_ahead import is_of_pixels
from models.rewrite.gather_pixels import gathered, moved_pixels, source_of_pixels
from models.rewrite.rule import GraphView, Outcome, Rewrite


def sink_gather(view: GraphView, node: Node) -> Outcome:
    """Return a rewrite that moves a gather past the operations that follow, if this saves a gather.
    `node` is the last node of the gather."""
    if not isinstance(node, Resample | Reshape):
        return None
    source = source_of_pixels(view, node.output)
    if source is None or len(view.shape(source)) != len(view.shape(node.output)):
        return None
    nodes = _of_pixels(view, node.output)
    ends = _ends(view, node.output, nodes)
    if not nodes or ends is None or view.value(node.output).inside is not None:
        return None
    moved = moved_pixels(view, node.output)
    if moved is None or moved.stays:
        return None
    size = view.shape(moved.x)[1:]
    made, values = list[Node](), dict[str, Value]()
    names = {node.output: moved.x}
    for each in nodes:
        shape = (view.shape(each.output)[0], *size)
        name = view.fresh(f"{each.output}.ahead")
        value = replace(view.value(each.output), name=name, shape=shape)
        names[each.output], values[each.output] = value.name, value
        made.append(replace(_of_size(each, size).renamed(names), output=value.name))
    whole = Rewrite(nodes=tuple(made), values=tuple(values.values()))
    for end in ends:
        back = gathered(view, values[end], moved.places, end)
        whole = Rewrite(
            nodes=(*whole.nodes, *back.nodes),
            values=(*whole.values, *back.values),
            weights={**whole.weights, **back.weights},
        )
    return whole


def _of_pixels(view: GraphView, name: str) -> list[Node]:
    """Return, in the order of the graph, the nodes that compute each pixel separately and read only
    the value `name`, weights and each other's results."""
    known, found = {name}, list[Node]()
    pending = [name]
    while pending:
        for node in view.readers(pending.pop()):
            if node.output not in known and _computes_pixels(view, node, known):
                known.add(node.output)
                found.append(node)
                # Nodes that also read this value may be next.
                pending = list(known)
    return found


def _computes_pixels(view: GraphView, node: Node, known: set[str]) -> bool:
    values = [name for name in node.operands() if view.weight(name) is None]
    if not known.issuperset(values) or view.value(node.output).inside is not None:
        return False
    match node:
        case Activate() | ScaleShift():
            return True
        case Normalise():
            return is_of_pixels(view, node)
        case Conv():
            return node.problem.window.is_pointwise and node.problem.projection is None
        case Binary():
            rest = [view.shape(name) for name in node.operands() if name not in values]
            return all(prod(shape) == 1 for shape in rest) and all(
                view.shape(name) == view.shape(node.output) for name in values
            )
        case _:
            return False


def _ends(view: GraphView, name: str, nodes: list[Node]) -> list[str] | None:
    """Return the results of `nodes` that are read by other nodes. Return None if one of these
    readers does not gather pixels, or reads the value `name` itself."""
    inner = {node.output for node in nodes}
    ends = []
    for value in (name, *(node.output for node in nodes)):
        others = [node for node in view.readers(value) if node.output not in inner]
        if value in view.outputs or not all(_gathers(view, node) for node in others):
            return None
        if others:
            ends.append(value)
    return None if name in ends else ends


def _gathers(view: GraphView, node: Node) -> bool:
    if isinstance(node, Reshape) and node.output not in view.outputs:
        readers = view.readers(node.output)
    else:
        readers = (node,)
    return bool(readers) and all(
        isinstance(each, Resample) and all(view.shape(table)[1] == 1 for table in each.taps)
        for each in readers
    )


def _of_size(node: Node, size: tuple[int, ...]) -> Node:
    """Return a copy of the node for images of another size."""
    if not isinstance(node, Conv):
        return node
    window = replace(node.problem.window, input=size, output=size)
    return replace(node, problem=replace(node.problem, window=window))
