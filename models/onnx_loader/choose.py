"""Finds out which of a model's outputs has the scores of the classes.

features ─ Gemm ─ logits ─ Softmax ─ probabilities     of these outputs, the last is the scores
         └ ... ─ TopK, ArgMax, ReduceMax               never scores: they select some scores
"""

from collections.abc import Iterable, Mapping
from math import prod

import onnx_ir as ir

from models.errors import NotScoresError
from models.onnx_loader.meaning import range_of, static_shape_or_none
from models.onnx_loader.outputs import Outputs
from models.scores import classes_of, set_key

_LISTED = 8  # the most names in a message
_COMPARED = 32  # the most outputs that are compared
# The least number of a main output's own convolutions, beyond twice another output's number.
_MORE_OWN = 2


def choose_scores(model: ir.Model, outputs: Outputs, labels: int, beside: str | None) -> None:
    """Remove all outputs of the model except the scores and the output `beside`, if it exists.

    `labels` is the number of known labels, or 0. Raises NotScoresError if no output or more than
    one output can be the scores.
    """
    found = list(model.graph.outputs)
    if outputs.wanted is not None:
        scores = next(value for value in found if value.name == outputs.wanted)
    else:
        scores = _found(found, outputs, labels) if len(found) > 1 else found[0]
    others = [value for value in found if value.name == beside and value is not scores]
    model.graph.outputs[:] = [scores, *others]


def _found(found: list[ir.Value], outputs: Outputs, labels: int) -> ir.Value:
    if len(found) > _COMPARED:
        raise NotScoresError(
            f"it has {len(found)} outputs ({outputs.listed}); name its scores: {set_key('NAME')}"
        )
    reasons: dict[ir.Value, str] = {value: _unfit(value) for value in found}
    fitting = _distinct(value for value in found if not reasons[value])
    if labels and any(_fits_labels(value, labels) for value in fitting):
        fitting = [value for value in fitting if _fits_labels(value, labels)]
    fitting = [
        value
        for value in fitting
        if not any(other is not value and _leads_to(value, other) for other in fitting)
    ]
    if len(fitting) > 1:
        fitting = _without_auxiliary(fitting)
    if len(fitting) != 1:
        raise NotScoresError(_several(found, fitting, reasons, outputs))
    return fitting[0]


def _several(
    found: list[ir.Value],
    fitting: list[ir.Value],
    reasons: Mapping[ir.Value, str],
    outputs: Outputs,
) -> str:
    if not fitting:
        why = "; ".join(f'"{value.name}" {reasons[value]}' for value in found[:_LISTED])
        return (
            f"none of its outputs can be scores: {why} ({outputs.listed}). Export the model with"
            " one score per class"
        )
    names = ", ".join(f'"{value.name}" {_shape(value)}' for value in fitting[:_LISTED])
    return (
        f"it has {len(found)} outputs, of which {len(fitting)} may be its scores: {names};"
        f" {set_key(fitting[0].name)}, or name another output (all outputs: {outputs.listed})"
    )


def _shape(value: ir.Value) -> str:
    shape = static_shape_or_none(value)
    return "of an unknown shape" if shape is None else "×".join(["N", *map(str, shape[1:])])


def _unfit(value: ir.Value) -> str:
    """Return the reason why an output cannot be scores, or "" if it can."""
    shape = static_shape_or_none(value)
    if shape is not None and len([size for size in shape[1:] if size > 1]) > 1:
        return f"has several axes per image, {_shape(value)}"
    if shape is not None and not shape:
        return "is one number for all images"
    if value.producer() is None:
        return "is an input or a constant"
    found = range_of(value)
    return f"is selected by {found.picks}" if found.picks else ""


def _distinct(values: Iterable[ir.Value]) -> list[ir.Value]:
    """Remove values that have the same elements as an earlier value.

    Two values have the same elements if they differ only by casts and reshapes.
    """
    roots: dict[ir.Value, ir.Value] = {}
    for value in values:
        roots.setdefault(_moved_from(value), value)
    return list(roots.values())


_SAME = frozenset({"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})


def _moved_from(value: ir.Value) -> ir.Value:
    while (node := value.producer()) is not None and node.op_type in _SAME:
        if not node.inputs or node.inputs[0] is None:
            break
        value = node.inputs[0]
    return value


def _fits_labels(value: ir.Value, labels: int) -> bool:
    shape = static_shape_or_none(value)
    return shape is not None and classes_of(prod(shape[1:])) == labels


def _leads_to(value: ir.Value, other: ir.Value) -> bool:
    """Return whether `other` depends on the image only through `value`."""
    without = _ancestors(other, _moved_from(value))
    return without is not None and not any(each.is_graph_input() for each in without)


def _ancestors(value: ir.Value, without: ir.Value | None = None) -> set[ir.Value] | None:
    """Return `value` and all values from which it is computed.

    The search stops at `without`, which the result leaves out. If it never reaches `without`,
    return None.
    """
    seen, waiting, met = {value}, [value], without is None
    while waiting:
        node = waiting.pop().producer()
        for each in () if node is None else node.inputs:
            if each is without and each is not None:
                met = True
            elif each is not None and each not in seen:
                seen.add(each)
                waiting.append(each)
    return seen if met else None


def _without_auxiliary(fitting: list[ir.Value]) -> list[ir.Value]:
    """If all outputs except one are auxiliary classifiers, return only the main output.

    Auxiliary classifiers serve training only. They branch off early in the network, so fewer
    convolutions are theirs alone. If this does not show the main output, return all outputs.
    """
    sizes = {prod(static_shape_or_none(value) or ()) for value in fitting}
    if len(sizes) != 1:
        return fitting
    above = [_ancestors(value) or set() for value in fitting]
    own = []
    for number, values in enumerate(above):
        others: set[ir.Value] = set().union(*(a for i, a in enumerate(above) if i != number))
        nodes = {each.producer() for each in values - others}
        own.append(sum(node is not None and node.op_type == "Conv" for node in nodes))
    most = max(own)
    rest = sorted(own)[:-1]
    if most >= _MORE_OWN + 2 * rest[-1]:
        return [fitting[own.index(most)]]
    return fitting
