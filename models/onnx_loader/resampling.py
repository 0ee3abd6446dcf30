"""Converts ONNX's Resize and Pad to Convoy's typed nodes.

A Resize, or a Pad that repeats elements, becomes one table per axis. A table is P×T×2. For each of
P output positions, it has T input positions and their factors. Positions are computed in float32,
as in ONNX Runtime.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from models.graph import Identity, Pad, Resample, Slice
from models.onnx_loader.importer import (
    Importer,
    ImpossibleError,
    OnnxNode,
    RefusedError,
    attributes_only,
)
from models.onnx_loader.integers import BYTE_SHIFTS
from models.quantized_filters import is_quantized

Positions = NDArray[np.float32]
Index = NDArray[np.int64]
Table = NDArray[np.float64]


def resize(to: Importer, node: OnnxNode) -> None:
    """Convert a Resize of the spatial axes, with nearest or linear interpolation, to a Resample
    node."""
    attributes_only(
        node, {"antialias": 0, "keep_aspect_ratio_policy": "stretch", "exclude_outside": 0}
    )
    for index, what in ((2, "scales"), (3, "sizes")):
        given = node.input(index).const_value if node.has(index) else None
        if given is not None and (given.numpy() <= 0).any():
            raise ImpossibleError(f"each of {what}={given.numpy().tolist()} must be above 0")
    before, after = node.input_shape(0), node.output_shape
    _check_left(after)
    if len(before) not in (4, 5) or before[:2] != after[:2]:
        raise RefusedError(
            f"it resizes {before} to {after}; only H and W of images, or D, H and W of volumes, may"
            " change"
        )
    factors = _factors(node, before, after)
    mode = node.text("mode", "nearest")
    tables = []
    for size, wanted, factor in zip(before[2:], after[2:], factors[2:], strict=True):
        at = _positions(node, size, wanted, np.float32(factor))
        if mode == "nearest":
            tables.append(_nearest(node, at, size))
        elif mode == "linear":
            tables.append(_linear(at, size))
        else:
            raise RefusedError(
                f"mode={mode} is not supported; only mode=nearest and mode=linear are supported"
            )
    _resample(to, node, node.x(), tables)


def _check_left(shape: Sequence[int]) -> None:
    if 0 in shape:
        raise ImpossibleError(f"its output {tuple(shape)} has no elements")


def _factors(node: OnnxNode, before: Sequence[int], after: Sequence[int]) -> list[float]:
    """Return the scale of each axis. If the node gives no scale, it is the output size divided by
    the input size."""
    factors = [wanted / size for size, wanted in zip(before, after, strict=True)]
    given = node.constant(2).reshape(-1) if node.has(2) else np.zeros(0)
    if given.size:
        rank = len(before)
        axes = node.integers("axes", list(range(rank)))
        for axis, factor in zip(axes, given, strict=True):
            factors[axis % rank] = float(factor)
    return factors


def _positions(node: OnnxNode, size: int, wanted: int, factor: np.float32) -> Positions:
    """Return the input position of each output position, as coordinate_transformation_mode defines
    it."""
    mode = node.text("coordinate_transformation_mode", "half_pixel")
    half, i = np.float32(0.5), np.arange(wanted, dtype=np.float32)
    if mode == "half_pixel" or (mode == "pytorch_half_pixel" and wanted > 1):
        return (i + half) / factor - half
    if mode == "pytorch_half_pixel" or (mode == "align_corners" and wanted == 1):
        return np.zeros_like(i)
    if mode == "align_corners":
        if not np.isclose(size * factor, wanted):  # ONNX and ONNX Runtime disagree
            raise RefusedError(
                f"coordinate_transformation_mode=align_corners with a scale of {factor:g} is not"
                f" supported for {size} pixels; {size} times the scale must be a whole number"
            )
        return i * np.float32(size - 1) / np.float32(wanted - 1)
    if mode == "asymmetric":
        return i / factor
    raise RefusedError(
        f"coordinate_transformation_mode={mode} is not supported; only half_pixel,"
        " pytorch_half_pixel, align_corners and asymmetric are supported"
    )


def _nearest(node: OnnxNode, at: Positions, size: int) -> Table:
    half = np.float32(0.5)
    rounding: Mapping[str, Callable[[Positions], Positions]] = {
        "round_prefer_floor": lambda at: np.ceil(at - half),
        "round_prefer_ceil": lambda at: np.floor(at + half),
        "floor": np.floor,
        "ceil": np.ceil,
    }
    mode = node.text("nearest_mode", "round_prefer_floor")
    if mode not in rounding:
        raise RefusedError(
            f"nearest_mode={mode} is unknown; only {', '.join(rounding)} are supported"
        )
    return _of_one_tap(rounding[mode](at).clip(0, size - 1).astype(np.int64))


def _linear(at: Positions, size: int) -> Table:
    at = at.clip(0, size - 1)
    low = np.floor(at)
    high = np.minimum(low + 1, size - 1)
    part = (at - low).astype(np.float64)
    taps = (np.stack([low, 1 - part], -1), np.stack([high, part], -1))
    return np.stack(taps, 1)


def _of_one_tap(positions: Index) -> Table:
    return np.stack([positions, np.ones_like(positions)], -1)[:, np.newaxis].astype(np.float64)


def _resample(to: Importer, node: OnnxNode, x: str, tables: Sequence[Table]) -> None:
    names = tuple(
        to.weight(f"{node.name}/taps{axis}", table) for axis, table in enumerate(tables, start=1)
    )
    to.nodes.append(Resample(name=node.name, output=to.declare(node.output), x=x, taps=names))


# For each mode, the positions on an axis of this size that stand for positions outside it.
_INSIDE: Mapping[str, Callable[[Index, int], Index]] = {
    "edge": lambda at, size: at.clip(0, size - 1),
    "reflect": lambda at, size: size - 1 - abs(size - 1 - abs(at)),
    "wrap": lambda at, size: at % size,
}


def pad(to: Importer, node: OnnxNode) -> None:
    """Convert a Pad. It adds a constant or repeats elements of the image. Negative padding crops
    the image."""
    rank = len(node.output_shape)
    pads = node.constant_integers(1)
    axes = node.constant_integers(3) if node.has(3) else list(range(rank))
    begin, end = [0] * rank, [0] * rank
    for index, axis in enumerate(axes):
        begin[axis], end[axis] = pads[index], pads[index + len(axes)]
    if begin[0] or end[0]:
        raise RefusedError(f"pads={pads} change axis 0, the batch; only other axes may change")
    _check_left(node.output_shape)
    x = _cut(to, node, begin[1:], end[1:])
    before, after = (max(0, size) for size in begin[1:]), (max(0, size) for size in end[1:])
    widths = list(zip(before, after, strict=True))
    mode = node.text("mode", "constant")
    output = to.declare(node.output)
    if to.shape(x) == to.shape(output):
        to.nodes.append(Identity(name=node.name, output=output, x=x))
    elif mode == "constant":
        to.nodes.append(
            Pad(
                name=node.name,
                output=output,
                x=x,
                begin=tuple(first for first, _ in widths),
                end=tuple(last for _, last in widths),
                value=_padded_with(to, node),
            )
        )
    elif mode in _INSIDE and is_quantized(to.values[node.x()].stored):
        raise RefusedError(
            f"mode={mode} is not supported for quantized values; only mode=constant is supported"
        )
    elif mode in _INSIDE:
        _pad_inside(to, node, x, mode, widths)
    else:
        modes = ", ".join(["constant", *_INSIDE])
        raise RefusedError(f"mode={mode} is unknown; only {modes} are supported")


def _padded_with(to: Importer, node: OnnxNode) -> float:
    """Return the number with which a Pad pads. A quantized integer is returned as the number that
    it represents."""
    value, stored = node.scalar(2, 0.0), to.values[node.x()].stored
    if not is_quantized(stored):
        return value
    kind = node.input(0).dtype
    shift = 0 if kind is None else BYTE_SHIFTS[kind]
    return float(np.float32(stored.scale) * np.float32(value + shift - stored.zero_point))


def _cut(to: Importer, node: OnnxNode, begin: Sequence[int], end: Sequence[int]) -> str:
    """Crop the input along axes with negative padding, and return the name of the result."""
    x, shape = node.x(), list(node.input_shape(0)[1:])
    for axis, (first, last) in enumerate(zip(begin, end, strict=True)):
        if min(first, last) >= 0:
            continue
        start, stop = max(0, -first), shape[axis] - max(0, -last)
        shape[axis] = stop - start
        name = to.temporary(f"{node.name}/cut{axis}", tuple(shape))
        to.nodes.append(Slice(name=name, output=name, x=x, axis=axis, start=start, stop=stop))
        x = name
    return x


def _pad_inside(
    to: Importer, node: OnnxNode, x: str, mode: str, widths: Sequence[tuple[int, int]]
) -> None:
    channels, *spatial = to.shape(x)
    if any(widths[0]) or len(spatial) not in (2, 3):
        raise RefusedError(
            f"mode={mode} cannot pad {(channels, *spatial)} by {list(widths)}: this mode pads only"
            " H and W of images, or D, H and W of volumes, with channels first"
        )
    tables = []
    for size, (before, after) in zip(spatial, widths[1:], strict=True):
        positions = _INSIDE[mode](np.arange(-before, size + after), size)
        if mode == "reflect" and max(before, after) >= size:
            raise ImpossibleError(
                f"mode={mode} cannot pad {size} pixels by {before} and {after}; it can add at most"
                f" {size - 1} on each side"
            )
        if positions.min() < 0:
            raise RefusedError(f"mode={mode} cannot pad {size} pixels by {before} and {after}")
        tables.append(_of_one_tap(positions))
    _resample(to, node, x, tables)
