"""One kernel launch, worked out before there is any device: which kernel, how wide, on what."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kernels.device.device import Argument, Dim3, Instantiation, TemplateArgument
from kernels.problems.window import Window

THREADS = 256
"""Threads a block of the kernels that give each thread one output: enough blocks to fill a GPU even
for small images, enough warps in each to hide the memory's latency."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel with its geometry and arguments.

    An argument that is a `str` names an operand ("x", "weight", "y") whose address is not known
    yet; `bind` puts it in.
    """

    instantiation: Instantiation
    grid: Dim3
    block: Dim3
    arguments: tuple[Argument | str, ...]
    shared_bytes: int = 0  # dynamic, a block

    @property
    def operands(self) -> tuple[str, ...]:
        """The names to bind, in the order of the arguments."""
        return tuple(each for each in self.arguments if isinstance(each, str))

    def bind(self, addresses: Mapping[str, int]) -> tuple[Argument, ...]:
        """The arguments with every operand's address in its place. Raises KeyError."""
        return tuple(addresses[each] if isinstance(each, str) else each for each in self.arguments)

    def renamed(self, names: Mapping[str, str]) -> "Launch":
        """The same on other operands: an operand's name → the one to have instead."""
        arguments = (
            names.get(each, each) if isinstance(each, str) else each for each in self.arguments
        )
        return replace(self, arguments=tuple(arguments))


def instantiate(source: str, kernel: str, **arguments: TemplateArgument) -> Instantiation:
    """A kernel template with its arguments, by their names there and in their order."""
    return Instantiation(source, kernel, tuple(arguments.items()))


def blocks_of_threads(threads: int) -> tuple[Dim3, Dim3]:
    """The grid and block that give each of `threads` work items a thread of its own."""
    return (-(-threads // THREADS), 1, 1), (THREADS, 1, 1)


def int32(number: int) -> np.int32:
    """A C++ `int`. Raises ValueError where it does not fit: kernels index with 32 bits."""
    if not -(2**31) <= number < 2**31:
        raise ValueError(f"{number} is beyond 32 bits; the tensor is too large for a kernel")
    return np.int32(number)


def int_struct(*members: int | Iterable[int]) -> bytes:
    """A C++ struct of `int`s and arrays of them, in order. Raises ValueError as `int32` does."""
    flat: list[Any] = []
    for member in members:
        flat += [member] if isinstance(member, int) else member
    return np.array([int32(number) for number in flat], np.int32).tobytes()


def window_struct(window: Window) -> bytes:
    """`Window` of kernels/src/window.cuh; a 2-D window becomes one of depth 1."""

    def three(axes: tuple[int, ...], missing: int) -> tuple[int, ...]:
        return (missing,) * (3 - len(axes)) + axes

    return int_struct(
        three(window.input, 1),
        three(window.output, 1),
        three(window.kernel, 1),
        three(window.strides, 1),
        three(window.dilations, 1),
        three(window.pads_begin, 0),
        three(window.pads_end, 0),
    )
