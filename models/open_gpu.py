"""The one place where a GPU is opened."""

from kernels.device.device import Device, DeviceError
from models.errors import EngineError


def open_gpu(advice: str) -> Device:
    """The first GPU. EngineError where none answers, with what to do then."""
    from kernels.device.cuda_device import CudaDevice  # noqa: PLC0415  only where a GPU is asked for

    try:
        return CudaDevice()
    except DeviceError as error:
        raise EngineError(f"{error}. {advice}") from error
