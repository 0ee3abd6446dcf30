"""A launch with all that shows whether it is right: inputs, answer, and how exact it must be.

Cases are data. What they lay out is memory as a device sees it: the tensors' elements, and between
and before them floats that no kernel may use or touch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.device import ALIGNMENT, Device, Stream
from kernels.launch import Launch
from kernels.strided import Strided
from tests.tolerance import Array, assert_within

POISON = np.uint32(0x7FC0DEAD)
"""A NaN with a payload: in what is not to be read, and in all that is to be written."""

_ITEM = 4


@dataclass(frozen=True)
class Placed:
    """Memory, and the byte in it at which an operand begins."""

    memory: NDArray[Any]
    begin: int = 0


@dataclass(frozen=True)
class Check:
    """Inputs by operand, and the answer: `expected` in float64, within `bound` of it.

    The answer is written where `layout` says. An operand that `y` is computed in place of is named
    in `in_place`; its memory is y's.
    """

    inputs: Mapping[str, Placed]
    layout: Strided
    expected: Array
    bound: Array | float
    in_place: str | None = None


@dataclass(frozen=True)
class KernelCase:
    """One launch and its check, which is made when asked for."""

    name: str
    launch: Launch
    check: Callable[[], Check]

    def __str__(self) -> str:
        return f"{self.launch.instantiation.expression} {self.name}"


def placed(array: Array, layout: Strided) -> Placed:
    """A tensor's elements as float32 where `layout` has them, poison everywhere else."""
    memory = poisoned(layout)
    view(memory, layout)[...] = array
    return Placed(memory, layout.offset * _ITEM)


def poisoned(layout: Strided) -> NDArray[np.float32]:
    """Memory for a tensor from a 16-byte boundary to a little past its end, nothing in it yet."""
    ends = ((size - 1) * stride for size, stride in zip(layout.shape, layout.strides, strict=True))
    return np.full(layout.offset + sum(ends) + 1 + _ITEM, POISON).view(np.float32)


def view(memory: NDArray[np.float32], layout: Strided) -> NDArray[np.float32]:
    """The tensor in `memory`, which begins at a 16-byte boundary."""
    strides = [stride * _ITEM for stride in layout.strides]
    return np.lib.stride_tricks.as_strided(memory[layout.offset :], layout.shape, strides)


def run(case: KernelCase, device: Device) -> NDArray[np.float32]:
    """Run the case, hold the answer to its check, and return the memory of y.

    Fails where y is out of bounds, and where anything was written around it.
    """
    check = case.check()
    stream = device.stream()
    y = (
        poisoned(check.layout)
        if check.in_place is None
        else np.copy(check.inputs[check.in_place].memory)
    )
    operands = {**check.inputs, "y": Placed(y, check.layout.offset * _ITEM)}
    addresses, buffers = {}, []
    for name, operand in operands.items():
        if name != check.in_place:
            buffers.append(device.allocate(operand.memory.nbytes))
            addresses[name] = buffers[-1].address + operand.begin
            device.upload(buffers[-1].address, operand.memory, stream)
    if check.in_place is not None:
        addresses[check.in_place] = addresses["y"]
    launch(case.launch, device, addresses, stream)
    device.download(y, addresses["y"] - operands["y"].begin, stream)
    stream.synchronize()
    for buffer in buffers:
        buffer.free()
    result = np.copy(y)
    assert_within(view(y, check.layout).copy(), check.expected, check.bound)
    view(y, check.layout)[...] = POISON.view(np.float32)
    assert np.all(y.view(np.uint32) == POISON), "something was written around the output"
    return result


def launch(launched: Launch, device: Device, addresses: Mapping[str, int], stream: Stream) -> None:
    """Ask `stream` for a launch on operands at these addresses."""
    device.launch(
        device.load(launched.instantiation),
        launched.grid,
        launched.block,
        launched.shared_bytes,
        launched.bind(addresses),
        stream,
        cooperative=launched.cooperative,
    )


assert ALIGNMENT % 16 == 0  # so that an offset from a buffer's begin is one from 16 bytes
