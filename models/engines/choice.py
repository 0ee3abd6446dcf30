"""Defines the device choice of an engine, and decides whether all engines will run on the CPU."""

from collections.abc import Sequence
from dataclasses import dataclass

from kernels.device.driver import has_driver
from models.engines.engine import DeviceKind
from models.open_gpu import count_gpus

NO_DRIVER = "this machine has no NVIDIA driver"
NO_GPU = "Use --device cpu where there is no GPU"


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """A device on which one engine should run."""

    kind: DeviceKind
    number: int = 0  # the GPU's index


def every_gpu() -> Sequence[DeviceChoice]:
    """Return one choice for each GPU. Raises EngineError if there is no GPU."""
    return [DeviceChoice(DeviceKind.CUDA, number) for number in range(count_gpus(NO_GPU))]


def all_on_cpu(choices: Sequence[DeviceChoice]) -> bool:
    """Return whether every engine will run on the CPU, whatever its model is. AUTO is the CPU if
    the machine has no NVIDIA driver."""
    kinds = {choice.kind for choice in choices}
    return DeviceKind.CUDA not in kinds and (DeviceKind.AUTO not in kinds or not has_driver())
