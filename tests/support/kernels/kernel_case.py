"""Defines the cases of kernels. A case has launches, their inputs, the right answer, and its
allowed error.

A case describes memory as a device sees it. Before and between the elements of the tensors there
are floats that no kernel may read or write.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.device.device import (
    ALIGNMENT,
    SOURCE_ROOT,
    Argument,
    Buffer,
    Device,
    Instantiation,
    Stream,
)
from kernels.device.launch import Launch
from kernels.layout.strided import VECTOR, StridedTensor
from kernels.problems.precision import BYTE, HALF, Storage
from tests.support.tolerance import Array, assert_within

POISON = np.uint32(0x7FC0DEAD)
"""A NaN with a payload. It fills memory that must not be read, and memory that must be written."""

HALF_POISON = np.uint16(0x7EAD)
"""The same for float16."""

BYTE_POISON = np.uint8(0xA7)
"""The same for bytes. Few outputs have this value."""


COPY = os.path.relpath(Path(__file__).with_name("copy.cu"), SOURCE_ROOT)
"""The source of the kernel that writes those operands before a case that, in a network, earlier
launches write."""

WEIGHTS = frozenset(
    ("weight", "bias", "scale", "shift", "multiplier", "offset", "depths", "heights", "widths")
)
"""The operands that no kernel writes."""


@dataclass(frozen=True)
class PlacedArray:
    """Holds memory, and the offset in bytes at which an operand begins."""

    memory: NDArray[Any]
    begin: int = 0


@dataclass(frozen=True)
class Check:
    """Holds the inputs by operand, and the answer. The answer is `expected`, in float64, with an
    error of at most `bound`.

    `layout` states where the answer is in memory. `in_place` names the operand whose memory y
    replaces. The contents of `scratch` operands after the launch are not checked. `bound` does not
    include the rounding of y to its stored type.
    """

    inputs: Mapping[str, PlacedArray]
    layout: StridedTensor
    expected: Array
    bound: Array | float
    in_place: str | None = None
    scratch: tuple[str, ...] = ()


@dataclass(frozen=True)
class KernelCase:
    """Holds consecutive launches and their check. The check is created when it is needed."""

    name: str
    launches: tuple[Launch, ...]
    check: Callable[[], Check]

    def __str__(self) -> str:
        expressions = dict.fromkeys(each.instantiation.expression for each in self.launches)
        return f"{' '.join(expressions)} {self.name}"


def placed(array: NDArray[Any], layout: StridedTensor) -> PlacedArray:
    """Return memory that has a tensor's elements at the positions of `layout`, and poison
    everywhere else."""
    memory = poisoned(layout)
    view(memory, layout)[...] = array
    return PlacedArray(memory, layout.offset * memory.itemsize)


def poisoned(layout: StridedTensor) -> Array:
    """Return poisoned memory for a tensor, from a 16-byte boundary to its last element.

    If its pixels are aligned to vectors, the memory extends to the end of the last vector, because
    kernels may read that far (kernels/layout/operands.py, `vectors_in`).
    """
    end = layout.offset + layout.reach + 1
    apart = [stride for stride in layout.strides if stride > 1]
    if len(apart) < len(layout.strides) and not any(n % VECTOR for n in (layout.offset, *apart)):
        end = -(-end // VECTOR) * VECTOR
    if layout.stored.dtype == BYTE.dtype:
        return np.full(end, BYTE_POISON)
    poison = HALF_POISON if layout.stored == HALF else POISON
    return np.full(end, poison).view(layout.stored)


def view(memory: Array, layout: StridedTensor) -> Array:
    """Return a view of the tensor in `memory`. `memory` begins at a 16-byte boundary."""
    strides = [stride * memory.itemsize for stride in layout.strides]
    return np.lib.stride_tricks.as_strided(memory[layout.offset :], layout.shape, strides)


def run(case: KernelCase, device: Device, *, times: int = 1) -> Array:
    """Run the case, check the answer, and return the memory of y.

    Fails if the error of y exceeds its bound, or if any memory other than y was written. If the
    case runs several `times`, only y is cleared between the runs, and every run must give
    bit-identical results.
    """
    check = case.check()
    memories = {name: operand.memory for name, operand in check.inputs.items()}
    begins = {name: operand.begin for name, operand in check.inputs.items()}
    # In place, y has the memory and the address of the input.
    y = memories.pop(check.in_place) if check.in_place else poisoned(check.layout)
    memories["y"] = y.copy()
    begins["y"] = check.layout.offset * y.itemsize

    stream = device.stream()
    buffers = {
        name: device.allocate(memory.nbytes, constant=name in WEIGHTS)
        for name, memory in memories.items()
    }
    # Launches write the operands that earlier launches write in a network, so that the case's
    # launches overlap with them.
    written = [name for name in memories if name not in (*WEIGHTS, *check.scratch)]
    sources = {name: device.allocate(memories[name].nbytes) for name in written}
    for name, memory in memories.items():
        device.upload((buffers | sources)[name].address, memory, stream)
    addresses = {name: buffer.address + begins[name] for name, buffer in buffers.items()}
    if check.in_place:
        addresses[check.in_place] = addresses["y"]
    after = {name: np.empty_like(memory) for name, memory in memories.items()}
    seen = set()
    for _ in range(times):
        # There are two such launches. The first has not ended when the case's launch begins.
        for names in (written[0::2], written[1::2]):
            _copy({buffers[name].address: sources[name] for name in names}, device, stream)
        for each in case.launches:
            launch(each, device, addresses, stream)
        for name, memory in after.items():
            device.download(memory, buffers[name].address, stream)
        stream.synchronize()
        seen.add(after["y"].tobytes())
    for buffer in (*buffers.values(), *sources.values()):
        buffer.free()

    assert len(seen) == 1, f"{times} runs gave {len(seen)} different answers"
    result = after.pop("y")
    for name, memory in after.items():
        if name in check.scratch:
            continue
        assert memory.tobytes() == memories[name].tobytes(), f"operand {name} was written"
    _hold(result.copy(), check)
    return result


def _hold(memory: Array, check: Check) -> None:
    """Fail if `memory` does not contain the answer, or if the poison around the answer has changed.
    Where NaN is expected, the answer must be NaN."""
    y = view(memory, check.layout)
    unknown = np.isnan(check.expected)
    assert np.all(np.isnan(y[unknown])), "NaN was lost"
    bound = check.bound + storage_error(np.abs(check.expected) + check.bound, check.layout.stored)
    known = (np.where(unknown, 0.0, each) for each in (y, check.expected, bound))
    assert_within(*known)
    untouched = poisoned(check.layout)
    y[...] = untouched[0]
    assert memory.tobytes() == untouched.tobytes(), "something was written around the output"


def _copy(wanted: Mapping[int, Buffer], device: Device, stream: Stream) -> None:
    """Launch the kernel that copies up to three buffers, each to its address."""
    arguments: list[Argument] = []
    for target, source in wanted.items():
        arguments += [source.address, target, np.int32(source.nbytes)]
    arguments += [0, 0, np.int32(0)] * (3 - len(wanted))
    kernel = device.load(Instantiation(COPY, "copy"))
    device.launch(kernel, (6, 1, 1), (64, 1, 1), 0, arguments, stream, dependent=True)


def storage_error(sizes: Array, stored: Storage) -> Array | float:
    """Return the rounding error of storing numbers. For float16 it is half a unit in the last
    place. For float it is 0."""
    return np.maximum(2.0**-11 * sizes, 2.0**-25) if stored == HALF else 0.0


def launch(launched: Launch, device: Device, addresses: Mapping[str, int], stream: Stream) -> None:
    """Enqueue a launch with operands at these addresses. The launch may overlap with the previous
    launch."""
    device.launch(
        device.load(launched.instantiation),
        launched.grid,
        launched.block,
        launched.shared_bytes,
        launched.bind(addresses),
        stream,
        dependent=True,
        cluster=launched.cluster,
    )


assert ALIGNMENT % 16 == 0  # so that an offset from a buffer's begin is one from 16 bytes
