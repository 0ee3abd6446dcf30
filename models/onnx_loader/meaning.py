"""Finds out whether a model's scores are probabilities, logits or something else. To do this, it
computes the range of the values near the output: their bounds and their sum over the classes.

The range of a node's output follows from the node and the ranges of its inputs. For example, a
softmax gives numbers from 0 to 1 with the sum 1, and a multiplication by 100 changes this sum to
100. A sigmoid or softmax may also be written out as 1 / (1 + e^-x) or e^x / sum, and then has the
same range.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import exp, inf, isclose, isfinite, log, prod

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from models.graph import Shape
from models.onnx_loader.importer import OnnxNode, RefusedError, static_shape
from models.onnx_loader.integers import constant_of
from models.scores import Meaning, OutputKind, set_key

# The most values that are examined. The deciding nodes are few and near the scores.
_MOST_VALUES = 96

_OVER_IMAGES = "a softmax over the images of a batch"

# The allowed difference of a sum from 1, which Clip and label smoothing cause.
_NEAR = 1e-3
# The same for the largest probability, if a bound cuts off others.
_CUT = 0.1


@dataclass(frozen=True, slots=True)
class Range:
    """The bounds of a value's elements, their sum, and other facts that are true for every
    image."""

    low: float = -inf
    high: float = inf
    total: float | None = None  # the sum of `size` elements; None: unknown
    size: int = 0
    is_log: bool = False  # the elements are logarithms of numbers with that sum, or from 0 to 1
    is_part: bool = False  # from numbers with a known sum, some of them left out or cut off
    is_known: bool = True  # False: an operator that is not understood may bound them
    is_each: bool = False  # each element is bounded by itself, as by a sigmoid
    is_fixed: bool = False  # equal for all images that run alone in a batch
    picks: str = ""  # the operator that selected some of the scores: ArgMax, TopK
    by: str = ""  # the operator that bounds the elements


def meaning_of_scores(scores: ir.Value) -> Meaning:
    """Return whether the model's scores are probabilities, logits or something else, and the
    reason."""
    found = range_of(scores)
    if found.picks:
        return Meaning(None, "", picked(scores, found.picks))
    try:
        classes = prod(static_shape(scores)[1:])
    except RefusedError:
        return Meaning(None, "the shape of its output is unknown")
    return _meaning(found, classes, str(scores.name))


def picked(scores: ir.Value, operator: str) -> str:
    """Return the error message for a model whose output is selected by `operator`, such as ArgMax.

    The message also names the input of this operator, because it has all scores.
    """
    node = scores.producer()
    while node is not None and node.op_type != operator and node.inputs and node.inputs[0]:
        node = node.inputs[0].producer()
    behind = node.inputs[0] if node is not None and node.inputs else None
    what = "class numbers" if operator in ("ArgMax", "ArgMin") else "some of the scores"
    before = "" if behind is None else f", or use the input of {operator}: {set_key(behind.name)}"
    return (
        f'its output "{scores.name}" has {what} selected by {operator}, not one score per class.'
        f" Export the model without {operator}{before}"
    )


def range_of(value: ir.Value) -> Range:
    """Return the range of a value in a normalised model."""
    return _Ranges().of(value)


def _meaning(found: Range, classes: int, name: str) -> Meaning:
    if found.is_fixed and found.by == _OVER_IMAGES:
        refusal = (
            f'its output "{name}" is made by {found.by}, so an image that is alone in its batch'
            " always has the same scores; export the model with the softmax over its classes"
            " (dim=1)"
        )
        return Meaning(None, "", refusal)
    is_bounded = found.by and (found.low, found.high) != (-inf, inf)
    by = f"{found.by} bounds its output" if is_bounded else ""
    if found.size == classes and found.total is not None:
        if classes == 1:
            refusal = (
                f'its output "{name}" is a single score after {found.by}, and so it is'
                f" {found.total:g} for every image; export the model with a sigmoid instead"
            )
            return Meaning(None, "", refusal)
        if found.is_log:
            return Meaning(OutputKind.LOG_PROBABILITIES, by)
        if isclose(found.total, 1, rel_tol=_NEAR):
            return Meaning(OutputKind.PROBABILITIES, by)
        if isclose(found.total, 100, rel_tol=_NEAR):
            return Meaning(OutputKind.PERCENT, by)
        if found.low >= 0:
            return Meaning(OutputKind.SHARES, f"{by}, and the scores add up to {found.total:g}")
    if not found.is_known:
        return Meaning(None, by)
    if found.is_log and found.is_each:
        one = OutputKind.LOG_PROBABILITIES if classes == 1 else OutputKind.INDEPENDENT_LOG
        return Meaning(one, by)
    if found.is_part and found.low >= 0 and isclose(found.high, 1, rel_tol=_CUT):
        return Meaning(OutputKind.PROBABILITIES, f"{by}, and part of the output is cut off")
    if found.low >= 0 and isfinite(found.high) and found.by:
        if found.is_each or classes == 1:
            if found.high <= 1 + _NEAR:
                one = OutputKind.PROBABILITIES if classes == 1 else OutputKind.INDEPENDENT
                return Meaning(one, by)
            if isclose(found.high, 100, rel_tol=_NEAR):
                percent = OutputKind.PERCENT if classes == 1 else OutputKind.INDEPENDENT_PERCENT
                return Meaning(percent, by)
            if found.is_each:
                return Meaning(None, f"{by} to numbers from 0 to {found.high:g}")
        if found.high <= 1 + _NEAR or isclose(found.high, 100, rel_tol=_NEAR):
            return Meaning(None, by)
    # Scores of 0 or more (from a Softplus, or the Neg of a LogSoftmax) or around 0 (from a Tanh): a
    # softmax of such scores may rank the classes wrong, and gives all classes nearly equal
    # probabilities.
    is_loss = found.low >= 0 and found.high == inf
    is_around_0 = found.is_each and -inf < found.low < 0 < found.high < inf
    # The same is true for a second softmax of shifted probabilities.
    is_shifted = found.by not in ("", "Clip") and -inf < found.low and found.high < inf
    if (found.by and is_loss) or is_around_0 or is_shifted:
        return Meaning(None, by, around_0=is_around_0)
    return Meaning(OutputKind.LOGITS, by)


_UNBOUNDED = Range()
_UNKNOWN = Range(is_known=False)

# Operators that only move or convert numbers, average them, or select the largest.
_MOVES = frozenset(
    {
        "AveragePool", "Cast", "DepthToSpace", "DequantizeLinear", "Dropout", "Expand", "Flatten",
        "Gather", "GlobalAveragePool", "GlobalMaxPool", "Identity", "MaxPool", "Pad",
        "QuantizeLinear", "ReduceMean", "Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze",
        "Tile", "Transpose", "Unsqueeze",
    }
)  # fmt: skip
_LINEAR = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_WITHOUT_BOUNDS = frozenset(
    {
        "BatchNormalization", "Celu", "Elu", "Gelu", "GroupNormalization", "HardSwish",
        "InstanceNormalization", "LayerNormalization", "LeakyRelu", "Mish",
        "PRelu", "RMSNormalization", "Resize", "Selu", "Swish",
    }
)  # fmt: skip
_BOUNDED: Mapping[str, tuple[float, float]] = {
    "Sigmoid": (0, 1),
    "HardSigmoid": (0, 1),
    "Tanh": (-1, 1),
    "Softsign": (-1, 1),
    "Erf": (-1, 1),
    "Softplus": (0, inf),
}
_PICKS = frozenset({"ArgMax", "ArgMin", "Hardmax", "TopK", "NonZero", "NonMaxSuppression"})


class _Ranges:
    """Computes the range of a value from the ranges of its inputs.

    Once a limited number of values has been examined, all other values count as unbounded.
    """

    def __init__(self) -> None:
        self._known: dict[ir.Value, Range] = {}

    def of(self, value: ir.Value) -> Range:
        if value not in self._known:
            # A value far from the scores, or one that depends on itself, may be any number.
            known = len(self._known) < _MOST_VALUES
            self._known[value] = _UNBOUNDED
            if known:
                self._known[value] = self._computed(value)
        return self._known[value]

    def _computed(self, value: ir.Value) -> Range:
        constant = constant_of(value)
        if constant is not None:
            return _of_constant(constant)
        node = value.producer()
        if node is None:
            return _UNBOUNDED  # this is the image
        if node.op_type in ("Normalizer", "LpNormalization"):
            return self._normalised(OnnxNode(node), node.outputs[0])
        if node.domain not in ("", "ai.onnx"):
            return _UNKNOWN
        return self._of_node(OnnxNode(node), value)

    def _of_node(self, node: OnnxNode, value: ir.Value) -> Range:
        kind = node.node.op_type
        if kind in _PICKS:
            return Range(picks=kind)
        if kind in ("Softmax", "LogSoftmax"):
            return _softmax(node, is_log=kind == "LogSoftmax")
        if kind in _BOUNDED:
            low, high = _BOUNDED[kind]
            of = self.of(node.node.inputs[0]) if node.has(0) else _UNBOUNDED  # type: ignore[arg-type]
            return Range(low, high, is_each=True, picks=of.picks, by=kind)
        if kind in _WITHOUT_BOUNDS:
            return _UNBOUNDED
        if kind in _LINEAR:
            return self._linear(node)
        inputs = [self.of(each) for each in node.node.inputs if each is not None]
        if not inputs:
            return _UNKNOWN
        if kind in _MOVES:
            return _moved(inputs[0], value)
        computed = [
            seen
            for each, seen in zip(filter(None, node.node.inputs), inputs, strict=True)
            if not _is_constant(each)
        ]
        if computed and all(each.picks for each in computed):
            return computed[0]
        if kind in ("ReduceMax", "ReduceMin") and _one_of_many(node, value):
            return replace(inputs[0], total=None, picks=kind)
        rule = _RULES.get(kind)
        if rule is None:
            return _UNKNOWN
        if kind in ("Div", "Sub") and (whole := self._by_hand(node, inputs)) is not None:
            return whole
        return rule(node, inputs, value)

    def _linear(self, node: OnnxNode) -> Range:
        """Return the range of a linear layer's result. It is unbounded, or unknown if the layer
        reads the result of a softmax."""
        for each in node.node.inputs[:2]:
            if each is not None and each.const_value is None:
                seen = self.of(each)
                if seen.picks:
                    return seen
                if seen.total is not None:
                    return _UNKNOWN
        return _UNBOUNDED

    def _normalised(self, node: OnnxNode, value: ir.Value) -> Range:
        """Return the range of a Normalizer or LpNormalization.

        It is bounded only if the node divides numbers of 0 or more by their sum.
        """
        x, kind = node.node.inputs[0], node.node.op_type
        by_sum = node.text("norm", "MAX") == "L1" or node.integer("p", 2) == 1
        shape = static_shape_or_none(value)
        if x is None or not by_sum or not shape or self.of(x).low < 0:
            return _UNBOUNDED
        axis = -1 if kind == "Normalizer" else node.integer("axis", -1)
        return Range(0, 1, 1, shape[axis], by=kind)

    def _by_hand(self, node: OnnxNode, inputs: list[Range]) -> Range | None:
        """Return the range of a Div or Sub that ends a normalisation, or None for another Div or
        Sub.

        The normalisations are x / sum(x) with x never negative, x - log(sum(e^x)), and x - min(x).
        """
        x, divisor = node.input(0), _origin(node.input(1))
        by = "a division by the sum"
        if node.node.op_type == "Sub":
            by = "a subtraction of the sum's logarithm"
            if divisor is not None and divisor.op_type == "Log":
                divisor = _origin(divisor.inputs[0])
                summed = "Exp"
            elif divisor is not None and divisor.op_type == "ReduceLogSumExp":
                summed = ""
            elif divisor is not None and divisor.op_type == "ReduceMin":
                least = divisor.inputs[0]
                is_own = least is not None and _root(least) is _root(x)
                return Range(0, inf, by="a subtraction of the smallest score") if is_own else None
            else:
                return None
        else:
            summed = ""
            if inputs[0].low < 0:
                return None
        if divisor is None or divisor.op_type not in _SUMS:
            return None
        added = divisor.inputs[0]
        if summed:
            before = None if added is None else _origin(added)
            if before is None or before.op_type != summed:
                return None
            added = before.inputs[0]
        if added is None or _root(added) is not _root(x):
            return None
        size = _size_of_sum(divisor)
        if not size:
            return None
        if node.node.op_type == "Sub":
            return Range(-inf, 0, 1, size, is_log=True, by=by)
        return Range(0, 1, 1, size, by=by)


_SUMS = frozenset({"ReduceSum", "ReduceL1", "ReduceLogSumExp"})


def _of_constant(array: NDArray[np.generic]) -> Range:
    if array.size == 0 or array.dtype.kind not in "fiub":
        return _UNKNOWN
    return Range(float(np.min(array)), float(np.max(array)), is_fixed=True)


def static_shape_or_none(value: ir.Value) -> Shape | None:
    """Return a value's shape, or None if any size is unknown."""
    try:
        return static_shape(value)
    except RefusedError:
        return None


def _softmax(node: OnnxNode, *, is_log: bool) -> Range:
    shape = static_shape_or_none(node.output)
    by = node.node.op_type
    low, high = (-inf, 0.0) if is_log else (0.0, 1.0)
    if not shape:
        return Range(low, high, is_known=False, by=by)
    axis = node.integer("axis", -1)
    if axis % len(shape) == 0 < len(shape) - 1:
        return Range(low, high, is_fixed=True, by=_OVER_IMAGES)
    return Range(low, high, 1, shape[axis], is_log=is_log, by=by)


def _moved(seen: Range, value: ir.Value) -> Range:
    """Return the range of `value`, whose elements are copies or averages of another value's
    elements.

    `seen` is the range of the other value. The result keeps its sum only if an axis of `value` has
    as many elements as were summed.
    """
    if seen.total is None:
        return seen
    shape = static_shape_or_none(value)
    if shape is not None and (seen.size in shape[1:] or seen.size == 1):
        return seen
    if shape is not None and prod(shape[1:]) < seen.size:
        return replace(seen, total=None, size=0, is_part=not seen.is_log)
    return replace(seen, total=None, size=0, is_each=True)  # several rows are joined


def _one_of_many(node: OnnxNode, value: ir.Value) -> bool:
    before, after = static_shape_or_none(node.input(0)), static_shape_or_none(value)
    if before is None or after is None:
        return False
    return prod(after[1:]) == 1 < prod(before[1:]) and len([s for s in before[1:] if s > 1]) == 1


def _origin(value: ir.Value | None) -> ir.Node | None:
    """Return the node that computes a value. Nodes are skipped if they only move elements or
    combine them with a constant."""
    node = None if value is None else value.producer()
    while node is not None:
        if node.op_type in _MOVES:
            value = node.inputs[0]
        elif node.op_type in ("Add", "Clip", "Max", "Min"):
            computed = [each for each in node.inputs if each is not None and not _is_constant(each)]
            if len(computed) != 1:
                return node
            (value,) = computed
        else:
            return node
        node = None if value is None else value.producer()
    return None


def _is_constant(value: ir.Value) -> bool:
    return constant_of(value) is not None


def _root(value: ir.Value) -> ir.Value:
    """Follow copies and casts of a value back to the original value, and return it."""
    while (node := value.producer()) is not None and node.op_type in ("Identity", "Cast"):
        if node.inputs[0] is None:
            break
        value = node.inputs[0]
    return value


def _size_of_sum(node: ir.Node) -> int:
    """Return how many elements a reduction adds for each element of its result, or 0 if it is
    unknown."""
    read = node.inputs[0]
    before = None if read is None else static_shape_or_none(read)
    after = static_shape_or_none(node.outputs[0])
    if before is None or after is None or not prod(after):
        return 0
    return prod(before) // prod(after)


# --- arithmetic ----------------------------------------------------------------------------------

_Rule = Callable[[OnnxNode, list[Range], ir.Value], Range]


def _product(a: float, b: float) -> float:
    return 0.0 if 0 in (a, b) else a * b


def _mixed(inputs: list[Range], low: float, high: float) -> Range:
    """Return a range from `low` to `high`, with all other facts that hold for every input."""
    bounded = [each for each in inputs if each.by]
    return Range(
        low,
        high,
        is_known=all(each.is_known for each in inputs),
        is_each=bool(bounded) and all(each.is_each for each in bounded),
        is_fixed=all(each.is_fixed for each in inputs),
        by=bounded[0].by if bounded else "",
    )


def _sums(node: OnnxNode, inputs: list[Range]) -> tuple[float | None, int]:
    """Return the sum of the elements of an addition's result, and the number of these elements.

    Each input must be a constant, or have a known sum over the same number of elements. Otherwise,
    the sum is None.
    """
    totals = [
        (each.total, each.size) for each in inputs if each.total is not None and not each.is_log
    ]
    constants = [
        array for v in node.node.inputs if v is not None and (array := constant_of(v)) is not None
    ]
    if not totals or len(totals) + len(constants) < len(inputs):
        return None, 0
    size = totals[0][1]
    if any(other != size for _, other in totals):
        return None, 0
    total = sum(total for total, _ in totals if total is not None)
    for array in constants:
        if array.size not in (1, size):
            return None, 0
        total += float(np.sum(array.astype(np.float64))) * (size if array.size == 1 else 1)
    return total, size


def _add(node: OnnxNode, inputs: list[Range], _: ir.Value) -> Range:
    low, high = sum(each.low for each in inputs), sum(each.high for each in inputs)
    total, size = _sums(node, inputs)
    return replace(_mixed(inputs, low, high), total=total, size=size)


def _mean(node: OnnxNode, inputs: list[Range], value: ir.Value) -> Range:
    return _times(_add(node, inputs, value), 1 / len(inputs))


def _sub(node: OnnxNode, inputs: list[Range], _: ir.Value) -> Range:
    a, b = inputs
    made = _mixed(inputs, a.low - b.high, a.high - b.low)
    number = _scalar(node, 1)
    if number is None or a.total is None or a.is_log:
        return made
    return replace(made, total=a.total - number * a.size, size=a.size)


def _times(seen: Range, factor: float) -> Range:
    bounds = sorted((_product(seen.low, factor), _product(seen.high, factor)))
    total = seen.total
    if seen.is_log:
        total = total if factor == 1 else None
    elif total is not None:
        total *= factor
    return replace(
        seen, low=bounds[0], high=bounds[1], total=total, is_log=seen.is_log and factor == 1
    )


def _scalar(node: OnnxNode, index: int) -> float | None:
    array = constant_of(node.input(index))
    if array is None or array.size == 0:
        return None
    first = float(array.flat[0])
    return first if np.all(array == array.flat[0]) and isfinite(first) else None


def _mul(node: OnnxNode, inputs: list[Range], _: ir.Value) -> Range:
    if node.input(0) is node.input(1):
        return _squared(inputs[0], "Mul")
    for index in (0, 1):
        if (factor := _scalar(node, index)) is not None:
            return _times(inputs[1 - index], factor)
    a, b = inputs
    ends = [_product(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    made = _mixed(inputs, min(ends), max(ends))
    # For example p log p, which is no logit although it has no bounds.
    is_odd = a.by and b.by and not (isfinite(made.low) and isfinite(made.high))
    return replace(made, is_known=made.is_known and not is_odd)


def _div(node: OnnxNode, inputs: list[Range], _: ir.Value) -> Range:
    if (divisor := _scalar(node, 1)) is not None and divisor:
        return _times(inputs[0], 1 / divisor)
    a, b = inputs
    if b.low < 0:
        made = _mixed(inputs, -inf, inf)
        return replace(made, is_known=made.is_known and not a.by)
    least, most = 1 / b.high if b.high else inf, 1 / b.low if b.low else inf
    ends = [_product(x, y) for x in (a.low, a.high) for y in (least, most)]
    made = _mixed(inputs, min(ends), max(ends))
    # Each number is bounded by itself, for example 1 / (1 + e^-x).
    is_each = constant_of(node.input(0)) is not None and not made.by
    return replace(made, is_each=made.is_each or is_each, by=made.by or "a division")


def _reciprocal(_node: OnnxNode, inputs: list[Range], _: ir.Value) -> Range:
    (x,) = inputs
    if x.low <= 0:
        return _mixed(inputs, -inf, inf)
    made = _mixed(inputs, 1 / x.high, 1 / x.low)
    return replace(made, is_each=True, by=made.by or "Reciprocal")


def _exp(_node: OnnxNode, inputs: list[Range], _: ir.Value) -> Range:
    (x,) = inputs
    low, high = (exp(min(bound, 700)) if bound < 700 else inf for bound in (x.low, x.high))
    if x.is_log:
        return replace(x, low=0, high=1, is_log=False)
    return _from_0(x, low, high, "Exp")


def _log(_node: OnnxNode, inputs: list[Range], _: ir.Value) -> Range:
    (x,) = inputs
    low, high = (log(bound) if bound > 0 else -inf for bound in (x.low, x.high))
    whole = x.total is not None and isclose(x.total, 1, rel_tol=_NEAR) and not x.is_log
    is_log = whole or (x.is_each and x.low >= 0 and x.high <= 1 + _NEAR)
    is_softplus = x.by == "Exp" and x.is_each and (low, high) == (0, inf)  # log(1 + e^z)
    by = "Softplus" if is_softplus else x.by
    return replace(x, low=low, high=high, total=1 if whole else None, is_log=is_log, by=by)


def _neg(_node: OnnxNode, inputs: list[Range], _: ir.Value) -> Range:
    made = _times(inputs[0], -1)
    return replace(made, is_log=True) if made.by == "Softplus" and made.high == 0 else made


def _clip(node: OnnxNode, inputs: list[Range], _: ir.Value) -> Range:
    low = node.scalar(1, -inf) if not _computed(node, 1) else -inf
    high = node.scalar(2, inf) if not _computed(node, 2) else inf
    return _between(inputs[0], low, high)


def _between(seen: Range, low: float, high: float) -> Range:
    # The sum is kept if the bounds cut off almost nothing.
    is_kept = seen.total is not None and low <= seen.low + _NEAR and high >= seen.high - _NEAR
    by = seen.by if seen.by or not (isfinite(low) and isfinite(high)) else "Clip"
    is_cut = seen.total is not None and not seen.is_log and not is_kept
    return replace(
        seen,
        low=min(max(seen.low, low), high),
        high=max(min(seen.high, high), low),
        total=seen.total if is_kept or seen.is_log else None,
        is_part=seen.is_part or is_cut,
        by=by,
    )


def _computed(node: OnnxNode, index: int) -> bool:
    return node.has(index) and constant_of(node.input(index)) is None


def _relu(_node: OnnxNode, inputs: list[Range], _: ir.Value) -> Range:
    return _between(inputs[0], 0, inf)


def _max(_node: OnnxNode, inputs: list[Range], _: ir.Value) -> Range:
    made = _mixed(inputs, max(each.low for each in inputs), max(each.high for each in inputs))
    return _kept_sum(made, inputs)


def _min(_node: OnnxNode, inputs: list[Range], _: ir.Value) -> Range:
    made = _mixed(inputs, min(each.low for each in inputs), min(each.high for each in inputs))
    return _kept_sum(made, inputs)


def _kept_sum(made: Range, inputs: list[Range]) -> Range:
    """Return the range `made` of a Max or Min, with the sum of an input that the node hardly
    changes.

    For example, the maximum with a constant near 0 hardly changes probabilities. An input is hardly
    changed if all other inputs are constants of at most about 0, or of at least about 1.
    """
    for seen in inputs:
        others = [each for each in inputs if each is not seen]
        if (
            seen.total is not None
            and not seen.is_log
            and all(
                each.low == each.high and (each.high <= _NEAR or each.low >= 1 - _NEAR)
                for each in others
            )
        ):
            return replace(made, total=seen.total, size=seen.size)
    return made


def _reduce_sum(node: OnnxNode, inputs: list[Range], value: ir.Value) -> Range:
    seen, count = inputs[0], _size_of_sum(node.node)
    if not count:
        return _UNKNOWN
    return _moved(_times(seen, count), value)


def _concat(_node: OnnxNode, inputs: list[Range], value: ir.Value) -> Range:
    made = _mixed(inputs, min(each.low for each in inputs), max(each.high for each in inputs))
    first = inputs[0]
    if first.total is not None and all(
        (each.total, each.size, each.is_log) == (first.total, first.size, first.is_log)
        for each in inputs
    ):
        return _moved(replace(made, total=first.total, size=first.size, is_log=first.is_log), value)
    # For example p and 1 - p: the scores of test images must show whether they add up to 1.
    return replace(made, is_each=False)


def _where(_node: OnnxNode, inputs: list[Range], _: ir.Value) -> Range:
    chosen = inputs[1:]
    low, high = min(each.low for each in chosen), max(each.high for each in chosen)
    return replace(_mixed(chosen, low, high), is_each=False, is_fixed=False, is_known=False)


def _pow(node: OnnxNode, inputs: list[Range], _: ir.Value) -> Range:
    exponent = _scalar(node, 1)
    if exponent is None or exponent <= 0 or (inputs[0].low < 0 and exponent % 2):
        return _mixed(inputs[:1], -inf, inf)
    return _squared(inputs[0], "Pow")


def _squared(x: Range, by: str) -> Range:
    """Return the range of values of a power of x. The exponent is even, or x is never negative."""
    return _from_0(x, 0, 1 if max(-x.low, x.high) <= 1 else inf, by)


def _sqrt(_node: OnnxNode, inputs: list[Range], _: ir.Value) -> Range:
    (x,) = inputs
    return _from_0(x, max(0, x.low) ** 0.5, max(0, x.high) ** 0.5, "Sqrt")


def _abs(_node: OnnxNode, inputs: list[Range], _: ir.Value) -> Range:
    (x,) = inputs
    return x if x.low >= 0 else _from_0(x, 0, max(-x.low, x.high), "Abs")


def _from_0(x: Range, low: float, high: float, by: str) -> Range:
    """Return the range of an elementwise function of x whose results are never negative."""
    is_each = x.is_each or not x.by
    return replace(x, low=low, high=high, total=None, is_log=False, is_each=is_each, by=x.by or by)


_RULES: Mapping[str, _Rule] = {
    "Abs": _abs,
    "Add": _add,
    "Clip": _clip,
    "Concat": _concat,
    "Div": _div,
    "Exp": _exp,
    "Log": _log,
    "Max": _max,
    "Mean": _mean,
    "Min": _min,
    "Mul": _mul,
    "Neg": _neg,
    "Pow": _pow,
    "Reciprocal": _reciprocal,
    "ReduceMax": lambda _, inputs, value: _moved(replace(inputs[0], total=None), value),
    "ReduceMin": lambda _, inputs, value: _moved(replace(inputs[0], total=None), value),
    "ReduceSum": _reduce_sum,
    "Relu": _relu,
    "Sqrt": _sqrt,
    "Sub": _sub,
    "Sum": _add,
    "Where": _where,
}
