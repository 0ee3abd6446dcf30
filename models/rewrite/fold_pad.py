"""Folds a Pad along spatial axes into the padding of the Conv or Pool that reads it.

    conv(pad(x)) = conv(x) with larger padding; the same is true for some pools

The value of the padding must suit the Conv or Pool. A Conv and an average pool need 0. The average
pool then counts its padding as zeros. A maximum pool ignores its padding, so it needs -inf, or 0 if
x is never negative. If other nodes read the padded tensor, the Pad is kept for them.

The rule does not apply if channels are padded. It also does not apply to an average pool with
padding that it does not count, or to a maximum pool with zeros if a window may lie entirely in the
padding.
"""

from dataclasses import replace

import numpy as np

from kernels.problems.pool import PoolKind
from kernels.problems.window import Window
from models.graph import Conv, Node, Pad, Pool
from models.rewrite.nonnegative import is_nonnegative
from models.rewrite.rule import GraphView, Outcome, Refusal, Rewrite

_LOWEST = float(np.finfo(np.float32).min)


def fold_pad(view: GraphView, node: Node) -> Outcome:
    """Return a rewrite that folds the Pad before the Conv or Pool `node` into the padding of
    `node`."""
    if not isinstance(node, Conv | Pool):
        return None
    pad = view.producer(node.x)
    if not isinstance(pad, Pad):
        return None
    if pad.begin[0] or pad.end[0]:
        return Refusal(f"{pad.name} pads channels too")
    window = _with_pads(node.problem.window, pad, view.shape(pad.x)[1:])
    if isinstance(node, Conv):
        if pad.value != 0:
            return Refusal(f"{pad.name} pads with {pad.value:g}, but a Conv pads with 0")
        conv_problem = replace(node.problem, window=window)
        return Rewrite(nodes=(replace(node, x=pad.x, problem=conv_problem),))

    kind = node.problem.kind
    if kind is PoolKind.MAX:
        obstacle = _obstacle_to_max(view, pad, window)
    else:
        obstacle = _obstacle_to_average(pad, node)
        kind = PoolKind.AVERAGE_PADDED
    if obstacle is not None:
        return Refusal(obstacle)
    pool_problem = replace(node.problem, kind=kind, window=window)
    return Rewrite(nodes=(replace(node, x=pad.x, problem=pool_problem),))


def _with_pads(window: Window, pad: Pad, size: tuple[int, ...]) -> Window:
    return replace(
        window,
        input=size,
        pads_begin=tuple(a + b for a, b in zip(window.pads_begin, pad.begin[1:], strict=True)),
        pads_end=tuple(a + b for a, b in zip(window.pads_end, pad.end[1:], strict=True)),
    )


def _obstacle_to_max(view: GraphView, pad: Pad, window: Window) -> str | None:
    if pad.value <= _LOWEST:
        return None
    if pad.value != 0:
        return f"{pad.name} pads with {pad.value:g}, but a maximum pool ignores padding"
    if not is_nonnegative(view, pad.x):
        return f"{pad.x} may be negative, so the zeros of {pad.name} may be the maximum"
    for axis, size in enumerate(window.input):
        begin = window.pads_begin[axis]
        last = (window.output[axis] - 1) * window.strides[axis]
        # The taps of a dilated window may all miss the image, wherever the window begins and ends.
        if window.dilations[axis] > 1 or window.kernel[axis] <= begin or last >= size + begin:
            return f"a window may hold only the zeros of {pad.name}"
    return None


def _obstacle_to_average(pad: Pad, pool: Pool) -> str | None:
    window = pool.problem.window
    if pad.value != 0:
        return f"{pad.name} pads with {pad.value:g}, but an average pool pads with 0"
    if pool.problem.kind is PoolKind.AVERAGE and any(window.pads_begin + window.pads_end):
        return f"{pool.name} counts the zeros of {pad.name}, but not its own padding"
    return None
