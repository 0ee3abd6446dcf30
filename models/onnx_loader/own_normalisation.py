"""Finds the range of pixels that a network expects, by means of the network's first operations.

A network that multiplies its input by 1 / 255 or subtracts means of about 120 expects pixels from 0
to 255, like Keras models with a Rescaling layer. A network that subtracts 0.485 and divides by
0.229 expects pixels from 0 to 1. A BatchNormalization, a 1×1 convolution or a mean image may do the
same. A Clip shows the range by its limits. If the means are ImageNet's, they also show the order of
the channels, even if the operations exchange the channels or normalise each channel apart. If the
first operations do not show the range, it is unknown.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

Floats = NDArray[np.float64]

# Operators that may change the type or the count of pixels, but neither their range nor channels.
_SAME = frozenset({"Cast", "Identity", "Resize", "Round", "Upsample"})

# Operators that do the same with the 8-bit codes of quantized pixels.
_OF_CODES = frozenset(
    {"Gather", "GatherND", "Identity", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)

_ARITHMETIC: Mapping[str, Callable[..., Floats]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
}

_SYMMETRIC = frozenset({"Add", "Mul", "Min", "Max"})  # the pixels may be any input

# The mean of a channel of natural images, divided by the largest value, is between these numbers.
_LEAST_MEAN, _MOST_MEAN = 0.25, 0.75
_MEAN_OF_RGB, _NEAR = np.array((0.485, 0.456, 0.406)), 0.01  # the mean of ImageNet's photographs

_RANGES = (255.0, 1.0)

# These bounds keep the files of attackers from taking much memory or time.
_MOST_NODES = 64  # that normalise
_MOST_CHANNELS = 4  # of an image, and of a constant if the axis of the channels is unknown
_MOST_NUMBERS = 2**24  # of a constant, such as a mean image
_ALL = 2**31 - 1  # the end of a Slice that leaves nothing out


@dataclass(frozen=True, slots=True)
class OwnNormalisation:
    """The range and the channel order of the pixels that a network expects."""

    most: float  # the largest value of a pixel, 255 or 1
    order: str = ""  # "rgb" or "bgr"; "" if the operations do not show it
    crops: bool = False  # whether the operations cut rows or columns off the image


def own_normalisation(proto: ModelProto, name: str) -> OwnNormalisation | None:
    """Return the range of pixels that a network expects at its input `name`, or None if it is
    unknown.

    It is unknown if the first operations do not normalise. For example, a network that begins with
    an ordinary convolution may have been trained on any range.
    """
    with np.errstate(all="ignore"):  # the numbers of a broken file
        line = _line(proto.graph, name)
    if (line.scale <= 0).any() or not np.isfinite(line.scale).all():
        return None
    zero = -line.shift / line.scale  # the pixel that becomes 0: near the images' mean
    for most in _RANGES:
        is_mean = ((zero >= _LEAST_MEAN * most) & (zero <= _MOST_MEAN * most)).all()
        if is_mean or np.allclose(line.limits, (0, most), atol=_NEAR * most):
            return OwnNormalisation(most, _order(zero / most, line), line.is_cut)
    # Without a mean, only a division by about 255 or 127.5 shows the range.
    factor = 1 / line.scale
    known = (line.shift >= 0).any() and (factor >= 100).all() and (factor <= 300).all()
    return OwnNormalisation(255.0, crops=line.is_cut) if known else None


@dataclass(frozen=True, slots=True)
class _Line:
    """Some channels after the first operations: channel c is pixel · scale[c] + shift[c], where the
    pixel is of the input's channel `sources[c]`.

    If the axis of the channels is unknown, `sources` is empty, and there is one scale and shift for
    all channels, or one for each.
    """

    scale: Floats
    shift: Floats
    sources: tuple[int, ...]
    axes: int
    channels: int | None  # the axis of the channels; None: unknown, or removed by a Gather
    limits: tuple[float, float] = (-inf, inf)  # the smallest and largest pixel that differ
    is_cut: bool = False  # whether rows or columns are cut off
    is_coded: bool = False  # whether the values are 8-bit codes of these numbers

    def then(self, scale: Floats, shift: Floats) -> "list[_Line] | None":
        """Return these operations, followed by another scale and shift. Return None if the numbers
        of channels differ."""
        counts = {part.size for part in (self.scale, self.shift, scale, shift)} - {1}
        if len(counts) > 1 or (self.sources and not counts <= {len(self.sources)}):
            return None
        return [replace(self, scale=self.scale * scale, shift=self.shift * scale + shift)]

    def pick(self, indices: Iterable[int]) -> "_Line":
        """Return the channels with these indices."""
        at = list(indices)
        sources = tuple(self.sources[index] for index in at)
        return replace(self, scale=self.scale[at], shift=self.shift[at], sources=sources)

    def clip(self, least: float, most: float) -> "_Line":
        """Return these operations, followed by a Clip with these limits."""
        low, high = ((limit - self.shift) / self.scale for limit in (least, most))
        limits = max(self.limits[0], low.max()), min(self.limits[1], high.min())
        return replace(self, limits=limits)


def _order(mean: Floats, line: _Line) -> str:
    """If `mean` is ImageNet's, return the order of the input's channels, "rgb" or "bgr". Otherwise,
    return "".

    `mean` is in the order of the channels after the operations in `line`.
    """
    if line.sources:
        if sorted(line.sources) != [0, 1, 2]:
            return ""
        mean = mean[np.argsort(line.sources)]
    for name, one in (("rgb", _MEAN_OF_RGB), ("bgr", _MEAN_OF_RGB[::-1])):
        if mean.size == one.size and (np.abs(mean - one) < _NEAR).all():
            return name
    return ""


def _line(graph: GraphProto, name: str) -> _Line:
    """Return what the first operations do to pixels, up to the last value that has all of them."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
            constants[node.output[0]] = node.attribute[0].t
    _dequantize(graph, constants)
    (image,) = (value for value in graph.input if value.name == name)
    sizes = [dim.dim_value for dim in image.type.tensor_type.shape.dim]
    count = next((count for count in (3, 1) if sizes[1:].count(count) == 1), 0)
    axis = sizes.index(count, 1) if count else None
    ones = np.ones(count or 1)
    last = _Line(ones, 0 * ones, tuple(range(count)), len(sizes), axis)
    unread = Counter(
        each for node in graph.node if node.op_type != "Shape" for each in {*node.input}
    )
    lines = {name: last}  # of the values that are not read by every reader yet
    followed = 0
    for node in graph.node:
        read = {each for each in node.input if each in lines}
        if not read or node.op_type == "Shape":
            continue
        made = None if node.domain else _after(node, lines, constants)
        followed += 1
        if made is None or followed > _MOST_NODES:
            break
        unread.subtract(read)
        lines = {each: line for each, line in lines.items() if unread[each]}
        lines |= {each: line for each, line in zip(node.output, made, strict=False) if unread[each]}
        if len(lines) == 1:
            (last,) = lines.values()
    return last


def _dequantize(graph: GraphProto, constants: dict[str, TensorProto]) -> None:
    """Add the values of small constants that the graph stores as 8-bit codes."""
    for node in graph.node:
        if node.op_type == "DequantizeLinear":
            codes, *others = (_array(each, constants, _MOST_CHANNELS) for each in node.input)
            known = all(each is not None and each.size == 1 for each in others)
            if codes is not None and known:
                step, zero = (_floats(each)[0] for each in (*others, None)[:2])
                numbers = ((codes.astype(np.float64) - zero) * step).astype(np.float32)
                constants[node.output[0]] = numpy_helper.from_array(numbers)


_Constants = Mapping[str, TensorProto]
_Others = Sequence[
    NDArray[Any] | None
]  # a node's inputs other than the pixels; None: an empty name
_Result = Sequence[_Line] | None


def _after(node: NodeProto, lines: Mapping[str, _Line], constants: _Constants) -> _Result:
    """Return the lines of a node's outputs, or None for a node that does something else."""
    if node.op_type == "Concat":
        return _joined(node, [lines.get(each) for each in node.input])
    at = next(index for index, each in enumerate(node.input) if each in lines)
    line = lines[node.input[at]]
    if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
        # A pair of them restores the values, except for rounding.
        codes = node.op_type == "QuantizeLinear"
        return None if line.is_coded is codes or at else [replace(line, is_coded=codes)]
    if line.is_coded and node.op_type not in _OF_CODES:
        return None
    if node.op_type in _SAME:
        return [line]
    names = [each for each in node.input if each not in lines]
    others = [_array(each, constants) for each in names]
    if len(others) != len(node.input) - 1:
        return None
    if node.op_type == "ReverseSequence":  # its lengths may be computed from the batch
        return _reversed(node, line, others)
    if any(name and other is None for name, other in zip(names, others, strict=True)):
        return None
    if node.op_type in _ARITHMETIC:
        return _computed(node, line, others, at)
    do = _OF_CHANNELS.get(node.op_type)
    return do(node, line, others) if do and (not at or node.op_type in _SYMMETRIC) else None


def _array(name: str, constants: _Constants, most: int = _MOST_NUMBERS) -> NDArray[Any] | None:
    """Return the constant with this name. Return None if there is none, or if it does not have one
    to `most` numbers."""
    tensor = constants.get(name)
    if tensor is None or tensor.data_type == TensorProto.STRING:
        return None
    return numpy_helper.to_array(tensor) if 0 < prod(tensor.dims) <= most else None


def _floats(array: NDArray[Any] | None) -> Floats:
    """Return an array's numbers, or a zero for an input that is missing."""
    return np.zeros(1) if array is None else array.ravel().astype(np.float64)


def _whole(node: NodeProto, key: str, default: int) -> int:
    return next((part.i for part in node.attribute if part.name == key), default)


def _several(node: NodeProto, key: str, others: _Others, at: int) -> list[int] | None:
    """Return whole numbers that are an attribute in older opsets, and an input in newer ones."""
    array = others[at] if at < len(others) else None
    if array is not None:
        return [int(number) for number in array.ravel()]
    return next((list(part.ints) for part in node.attribute if part.name == key), None)


def _computed(node: NodeProto, line: _Line, others: _Others, at: int) -> _Result:
    if others[0] is None or (at and node.op_type not in _SYMMETRIC):
        return None  # for example, a constant minus the pixels or divided by them
    shifts = node.op_type in ("Add", "Sub")
    numbers = _per_channel(others[0], line, may_vary=shifts)
    if numbers is None:
        return None
    none, one = np.zeros(1), np.ones(1)
    apply = _ARITHMETIC[node.op_type]
    return line.then(one, apply(none, numbers)) if shifts else line.then(apply(one, numbers), none)


def _per_channel(array: NDArray[Any], line: _Line, *, may_vary: bool) -> Floats | None:
    """Return the mean of a constant in each channel. Return None if the constant does not have
    these channels, or if its numbers vary within a channel, unless they `may_vary`."""
    if line.channels is None:
        flat = array.reshape((1, -1) if line.sources else (-1, 1))
        if len(flat) > _MOST_CHANNELS:
            return None
    elif array.ndim <= line.axes:
        array = array.reshape((1,) * (line.axes - array.ndim) + array.shape)
        flat = np.moveaxis(array, line.channels, 0).reshape(array.shape[line.channels], -1)
    else:
        return None
    if not may_vary and (flat != flat[:, :1]).any():
        return None
    mean: Floats = flat.mean(axis=1, dtype=np.float64)
    return mean


def _batch_normalization(node: NodeProto, line: _Line, others: _Others) -> _Result:
    gamma, beta, mean, variance = map(_floats, others)
    epsilon = next((part.f for part in node.attribute if part.name == "epsilon"), 1e-5)
    factor = gamma / np.sqrt(np.maximum(variance, 0) + epsilon)
    return line.then(factor, beta - mean * factor) if line.channels in (None, 1) else None


def _conv(node: NodeProto, line: _Line, others: _Others) -> _Result:
    """Return the line of a 1×1 convolution whose filters read one channel each."""
    filters = others[0]
    parts = {part.name: set(part.ints) for part in node.attribute}
    if filters is None or set(filters.shape[2:]) != {1} or line.channels not in (None, 1):
        return None
    if len(filters) > _MOST_CHANNELS:
        return None
    if parts.get("pads", {0}) != {0} or parts.get("strides", {1}) != {1}:
        return None
    factors = filters.reshape(len(filters), -1).astype(np.float64)
    reads = factors[0].size
    if reads > 1:
        if reads != len(line.sources) or ((factors != 0).sum(axis=1) != 1).any():
            return None  # a filter reads several channels
        line = line.pick((factors != 0).argmax(axis=1))
    return line.then(factors.sum(axis=1), _floats(others[1] if others[1:] else None))


def _clip(node: NodeProto, line: _Line, others: _Others) -> _Result:
    """Return the line of a Clip, Min or Max."""
    names = {"Max": ["min"], "Min": ["max"]}.get(node.op_type, ["min", "max"])
    limits = dict(zip(names, others, strict=False))
    if len(others) > len(names) or any(
        each is not None and each.size > 1 for each in limits.values()
    ):
        return None
    given = {part.name: part.f for part in node.attribute}
    given |= {name: each.item() for name, each in limits.items() if each is not None}
    return [line.clip(given.get("min", -inf), given.get("max", inf))]


def _transpose(node: NodeProto, line: _Line, _: _Others) -> _Result:
    axes = next((list(part.ints) for part in node.attribute), [*range(line.axes)][::-1])
    return [replace(line, channels=axes.index(line.channels) if line.channels in axes else None)]


# --- operators that choose channels ---------------------------------------------------------------


def _gather(node: NodeProto, line: _Line, others: _Others) -> _Result:
    count, indices = len(line.sources), others[0]
    if indices is None or indices.ndim > 1 or indices.size > _MOST_CHANNELS:
        return None
    if _whole(node, "axis", 0) % line.axes != line.channels:
        return None
    picked = line.pick(int(index) % count for index in indices.ravel())
    return [picked if indices.ndim else replace(picked, axes=line.axes - 1, channels=None)]


def _gather_nd(node: NodeProto, line: _Line, others: _Others) -> _Result:
    """Return the line of x[:, [2, 1, 0]] as PyTorch's newer exporter writes it, with the channels
    on axis 0."""
    count, indices = len(line.sources), others[0]
    if indices is None or indices.shape[1:] != (1,) or line.channels != 0:
        return None
    if _whole(node, "batch_dims", 0) or indices.size > _MOST_CHANNELS:
        return None
    return [line.pick(int(index) % count for index in indices.ravel())]


def _slice(node: NodeProto, line: _Line, others: _Others) -> _Result:
    starts, ends, axes, steps = (
        _several(node, key, others, at)
        for at, key in enumerate(("starts", "ends", "axes", "steps"))
    )
    if not starts or not ends:
        return None
    axes, steps = axes or [*range(len(starts))], steps or [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=False):
        if axis % line.axes == line.channels and step:
            line = line.pick(range(*slice(start, end, step).indices(len(line.sources))))
        elif start or end < _ALL or step != 1:
            if line.channels is None or not axis % line.axes or step < 1:
                return None
            line = replace(line, is_cut=line.is_cut or step == 1)
    return [line]


def _split(node: NodeProto, line: _Line, others: _Others) -> _Result:
    count, parts = len(line.sources), len(node.output)
    sizes = _several(node, "split", others, 0) or [count // parts] * parts
    if _whole(node, "axis", 0) % line.axes != line.channels or sum(sizes) != count:
        return None
    ends = np.cumsum(sizes)
    return [line.pick(range(end - size, end)) for size, end in zip(sizes, ends, strict=True)]


def _squeeze(node: NodeProto, line: _Line, others: _Others) -> _Result:
    axes = _several(node, "axes", others, 0) or []
    if [axis % line.axes for axis in axes] != [line.channels] or len(line.sources) != 1:
        return None
    return [replace(line, axes=line.axes - 1, channels=None)]


def _unsqueeze(node: NodeProto, line: _Line, others: _Others) -> _Result:
    axes = _several(node, "axes", others, 0) or []
    if line.channels is not None or len(line.sources) != 1 or len(axes) != 1:
        return None
    return [replace(line, axes=line.axes + 1, channels=axes[0] % (line.axes + 1))]


def _reversed(node: NodeProto, line: _Line, others: _Others) -> _Result:
    count = len(line.sources)
    lengths = others[0]
    if lengths is not None and (lengths != count).any():
        return None
    if _whole(node, "time_axis", 0) != line.channels:
        return None
    return [line.pick(range(count)[::-1])]


def _joined(node: NodeProto, lines: Sequence[_Line | None]) -> _Result:
    parts = [line for line in lines if line is not None]
    first = parts[0]
    forms = {(each.axes, each.channels, each.is_coded) for each in parts}
    count = sum(each.scale.size for each in parts)
    if len(parts) < len(lines) or len(forms) > 1 or count > _MOST_CHANNELS:
        return None
    if _whole(node, "axis", 0) % first.axes != first.channels:
        return None
    limits = {each.limits for each in parts}
    return [
        replace(
            first,
            scale=np.concatenate([each.scale for each in parts]),
            shift=np.concatenate([each.shift for each in parts]),
            sources=sum((each.sources for each in parts), ()),
            limits=first.limits if len(limits) == 1 else (-inf, inf),
        )
    ]


_OF_CHANNELS: Mapping[str, Callable[[NodeProto, _Line, _Others], _Result]] = {
    "BatchNormalization": _batch_normalization,
    "Clip": _clip,
    "Conv": _conv,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "Max": _clip,
    "Min": _clip,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
