"""Opens a GPU, for the engine and for tuning."""

from kernels.device.device import Device, DeviceError
from models.errors import EngineError


def open_gpu(advice: str) -> Device:
    """The first GPU. Raises EngineError where none is available; `advice` ends its message."""
    from kernels.device.cuda_device import CudaDevice  # noqa: PLC0415  only where a GPU is asked for

    try:
        return CudaDevice()
    except DeviceError as error:
        raise EngineError(f"{error}. {advice}") from error
