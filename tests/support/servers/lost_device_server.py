"""Runs `convoy` on a simulated GPU. The GPU is lost as soon as a file exists. The first argument
names this file."""

import sys
from pathlib import Path

from cusim.device import CusimDevice
from cusim.streams import CusimStream
from kernels.device import cuda_device
from kernels.device.device import FaultError
from models.engines import choice
from service.cli import main as convoy


def lose_once_there(file: Path) -> None:
    """Make calls that wait for the device fail as soon as the file exists, as after an illegal
    access."""
    for kind in (CusimStream, CusimDevice):
        synchronize = kind.synchronize

        def waiting(self: object, before: object = synchronize) -> None:
            if file.exists():
                raise FaultError(
                    "cudaErrorIllegalAddress: an illegal memory access was encountered"
                )
            before(self)  # type: ignore[operator]

        kind.synchronize = waiting  # type: ignore[method-assign]


def main() -> None:
    """Run the command line."""
    lose_once_there(Path(sys.argv.pop(1)))
    cuda_device.CudaDevice = lambda *_: CusimDevice()  # type: ignore[assignment, misc]
    vars(choice)["has_driver"] = lambda: True  # as with a GPU
    convoy()
