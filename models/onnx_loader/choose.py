"""Finds a model's scores among its outputs, in the normal form, where all shapes are known.

features ─ Gemm ─ logits ─ Softmax ─ probabilities     the last; what is before it leads to it
         └ ... ─ TopK, ArgMax, ReduceMax               choose some, so that they are no scores
"""

from collections.abc import Iterable, Mapping
from math import prod

import onnx_ir as ir

from models.errors import NotScoresError
from models.onnx_loader.meaning import range_of, static_shape_or_none
from models.onnx_loader.outputs import Outputs
from models.scores import classes_of, set_key

_LISTED = 8  # names in a message
_COMPARED = 32  # outputs
_MORE_OWN = 2  # convolutions, and as many as twice another head's


def choose_scores(model: ir.Model, outputs: Outputs, labels: int, beside: str | None) -> None:
    """Leave only the output that is the scores, and after it the one called `beside`, if there is
    one. `labels` is the number of labels that are known.

    Raises NotScoresError where several may be the scores.
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
        return f"none of its outputs can be scores: {why} ({outputs.listed})"
    names = ", ".join(f'"{value.name}" {_shape(value)}' for value in fitting[:_LISTED])
    return (
        f"it has {len(found)} outputs, of which {len(fitting)} may be its scores: {names};"
        f" {set_key(fitting[0].name)}, or the one that is right (all outputs: {outputs.listed})"
    )


def _shape(value: ir.Value) -> str:
    shape = static_shape_or_none(value)
    return "of an unknown shape" if shape is None else "×".join(["N", *map(str, shape[1:])])


def _unfit(value: ir.Value) -> str:
    """Return why an output is not scores; empty if it may be."""
    shape = static_shape_or_none(value)
    if shape is not None and len([size for size in shape[1:] if size > 1]) > 1:
        return f"has positions, {_shape(value)}"
    if shape is not None and not shape:
        return "is one number for all images"
    if value.producer() is None:
        return "is an input or a constant"
    found = range_of(value)
    return f"is what {found.picks} chose" if found.picks else ""


def _distinct(values: Iterable[ir.Value]) -> list[ir.Value]:
    """Return values without those that have the same numbers as an earlier one."""
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
    """Return whether the image reaches `other` through `value` alone."""
    without = _ancestors(other, _moved_from(value))
    return without is not None and not any(each.is_graph_input() for each in without)


def _ancestors(value: ir.Value, without: ir.Value | None = None) -> set[ir.Value] | None:
    """Return all values that a value is computed from, not past `without`; None if that is not
    among them."""
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
    """Leave out heads that only helped to train: they leave the network early.

    Such a head has as many scores as the last one, which needs several convolutions more that are
    its own.
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
