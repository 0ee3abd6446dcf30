"""Runs PyTorch on the CPU in place of a GPU, for small problems."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.kernels.contest import Effort
from cusim.device import CusimDevice
from kernels.device.device import Graph, Stream
from kernels.problems.conv import same_padded

torch: Any = pytest.importorskip("torch", reason="PyTorch computes the baselines")

FLAT = same_padded((5, 6), 3, 4, 8).with_batch(2)
DEEP = same_padded((2, 3, 4), 3, 3, 5)
QUICK = Effort(copies=2, replays=2, screen_copies=2, screen_replays=2)
HANDLE = 99


@dataclass
class CpuRuntime:
    """Runs PyTorch without a GPU."""

    torch: Any = torch
    where: str = "cpu"

    def on(self, stream: Stream) -> AbstractContextManager[Any]:
        return nullcontext()

    @contextmanager
    def capture(self, stream: Stream) -> Iterator[Graph]:
        yield SimpleNamespace(replay=lambda stream: None)

    def synchronize(self) -> None:
        pass


def opened_device() -> CusimDevice:
    """Return the simulated device. Its streams have the fixed handle 99, for libraries that need
    the handle of a CuPy stream."""
    device = CusimDevice()
    device_stream = device.stream

    def stream() -> Any:
        made: Any = device_stream()
        made.cupy = SimpleNamespace(ptr=HANDLE)
        return made

    device.stream = stream  # type: ignore[method-assign]
    return device
