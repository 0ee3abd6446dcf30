"""Launches kernels/src/pooling.cu, which pools over windows and over whole images."""

from math import prod

from kernels.device.launch import (
    Launch,
    blocks_of_threads,
    instantiate,
    int32,
    launch,
    window_struct,
)
from kernels.layout.pixels import Pixels, vector_width
from kernels.problems.pool import PoolKind, PoolProblem
from kernels.problems.precision import one_type

_ROWS = 8
"""Warps of a block of `global_pool`, 256 threads in all."""

_LANES = 32


def pool_launch(problem: PoolProblem, n: int, x: Pixels, y: Pixels) -> Launch:
    """Return a launch that pools n images, with the operands x and y. Raises ValueError if channels
    or types do not match, or if an index exceeds 32 bits."""
    if not x.channels == y.channels == problem.c:
        raise ValueError(
            f"x and y must have {problem.c} channels, got {x.channels} and {y.channels}"
        )
    v = vector_width(x, y)
    vectors = problem.c // v
    steps = n * problem.window.output_volume * vectors
    int32(n * prod(problem.window.input) * x.pitch)
    return launch(
        instantiate("pooling.cu", "pool", t=_element(x, y), kind=_name(problem.kind), v=v),
        *blocks_of_threads(steps),
        x="x",
        y="y",
        steps=steps,
        vectors=vectors,
        x_pitch=x.pitch,
        y_pitch=y.pitch,
        window=window_struct(problem.window),
    )


def global_pool_launch(kind: PoolKind, n: int, pixels: int, x: Pixels, y: Pixels) -> Launch:
    """Return a launch that pools all pixels of each of n images, with the operands x and y. Each
    image has `pixels` pixels. Raises ValueError if channels or types do not match, or if an index
    exceeds 32 bits."""
    if x.channels != y.channels:
        raise ValueError(f"y must have x's {x.channels} channels, got {y.channels}")
    int32(n * pixels * x.pitch)
    return launch(
        instantiate("pooling.cu", "global_pool", t=_element(x, y), kind=_name(kind), rows=_ROWS),
        (-(-x.channels // _LANES), n, 1),
        (_LANES, _ROWS, 1),
        x="x",
        y="y",
        channels=x.channels,
        pixels=pixels,
        x_pitch=x.pitch,
        y_pitch=y.pitch,
    )


def _element(x: Pixels, y: Pixels) -> str:
    return one_type(x.stored, y.stored).element


def _name(kind: PoolKind) -> str:
    return f"PoolKind::{kind.name}"
