"""Device memory to measure on: one problem's own operands, and enough more to keep a cache cold."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kernels.device import Buffer, Device
from kernels.timing import REUSE_BYTES, operand_sets, set_bytes, sets_needed

CHUNK_BYTES = 64 << 20


@dataclass
class Arena:
    """Two stretches of memory, each as large as was ever asked for: one read, one written.

    What is read is uniform in [-1, 1]: zeros would draw less power than any data and run faster.
    What is written is never read as data, or it would grow from run to run.
    """

    device: Device
    reuse_bytes: int = REUSE_BYTES
    _buffers: dict[str, Buffer] = field(default_factory=dict)

    def sets(self, read: Mapping[str, int], written: Mapping[str, int]) -> list[dict[str, int]]:
        """Addresses of operands of these sizes, in as many sets as keep the cache cold.

        They are good until the next call.
        """
        count = sets_needed(set_bytes(read) + set_bytes(written), self.reuse_bytes)
        sets: list[dict[str, int]] = [{} for _ in range(count)]
        for kind, sizes in (("read", read), ("written", written)):
            begin = self._at_least(kind, count * set_bytes(sizes))
            for entry, addresses in zip(sets, operand_sets(begin, sizes, count), strict=True):
                entry.update(addresses)
        return sets

    def close(self) -> None:
        """Free the memory."""
        self.device.synchronize()
        for buffer in self._buffers.values():
            buffer.free()
        self._buffers.clear()

    def _at_least(self, kind: str, nbytes: int) -> int:
        """The address of that many bytes."""
        buffer = self._buffers.get(kind)
        if buffer is not None and buffer.nbytes >= nbytes:
            return buffer.address
        if buffer is not None:
            self.device.synchronize()
            self._buffers.pop(kind).free()
        buffer = self._buffers[kind] = self.device.allocate(nbytes)
        if kind == "read":
            stream = self.device.stream()
            noise = np.random.default_rng(0).random(min(nbytes, CHUNK_BYTES) // 4, np.float32)
            noise = 2 * noise - 1
            for begin in range(0, nbytes, CHUNK_BYTES):
                part = noise[: (nbytes - begin) // 4]
                self.device.upload(buffer.address + begin, part, stream)
            stream.synchronize()
        return buffer.address


@dataclass
class Operands:
    """Named operands of one problem, each in a buffer of its own."""

    device: Device
    addresses: dict[str, int] = field(default_factory=dict)
    _buffers: list[Buffer] = field(default_factory=list)

    def put(self, name: str, array: NDArray[np.generic]) -> None:
        """A copy of `array`, there when this returns."""
        stream = self.device.stream()
        self.device.upload(self.room(name, array.nbytes), np.ascontiguousarray(array), stream)
        stream.synchronize()

    def room(self, name: str, nbytes: int) -> int:
        """The address of `nbytes` of any content."""
        buffer = self.device.allocate(max(nbytes, 1))
        self._buffers.append(buffer)
        self.addresses[name] = buffer.address
        return buffer.address

    def close(self) -> None:
        """Free all of it."""
        self.device.synchronize()
        for buffer in self._buffers:
            buffer.free()
        self._buffers.clear()
