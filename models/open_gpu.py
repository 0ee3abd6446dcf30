"""Opens GPUs for the engine and for tuning."""

from kernels.device.device import Device, DeviceError
from models.errors import NoGpuError


def open_gpu(advice: str, number: int = 0) -> Device:
    """Return the GPU with CUDA's index `number`.

    Raises NoGpuError if this GPU does not exist. `advice` becomes the end of the message.
    """
    from kernels.device.cuda_device import CudaDevice  # noqa: PLC0415  only where a GPU is asked for

    try:
        return CudaDevice(number)
    except DeviceError as error:
        raise NoGpuError(f"{error}. {advice}") from error


def count_gpus(advice: str) -> int:
    """Return the number of GPUs that CUDA_VISIBLE_DEVICES allows. Raises NoGpuError if there is
    none. `advice` becomes the end of the message."""
    from kernels.device.cuda_device import count_devices  # noqa: PLC0415  as above

    try:
        return count_devices()
    except DeviceError as error:
        raise NoGpuError(f"{error}. {advice}") from error
