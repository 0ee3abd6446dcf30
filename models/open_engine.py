"""Which engine runs a classifier on a device."""

from kernels.device import DeviceError
from kernels.heuristic import heuristic
from models.classifier import Classifier
from models.cuda_engine import CudaEngine, Progress
from models.engine import DeviceKind, Engine
from models.errors import EngineError
from models.onnxruntime_engine import OnnxRuntimeEngine


def open_engine(
    classifier: Classifier,
    *,
    device: DeviceKind,
    max_batch: int,
    threads: int = 0,
    progress: Progress = iter,
) -> Engine:
    """An engine for batches of 1..max_batch images, not yet warm.

    `threads` is for the CPU, 0 leaving their number to ONNX Runtime; `progress` wraps the kernels
    that a GPU's engine compiles. EngineError where the device cannot be had. AUTO is the CPU until
    the CUDA engine has been measured on a GPU.
    """
    if device is DeviceKind.CUDA:
        return _open_cuda(classifier, max_batch, progress)
    return OnnxRuntimeEngine(classifier, max_batch=max_batch, threads=threads)


def _open_cuda(classifier: Classifier, max_batch: int, progress: Progress) -> CudaEngine:
    from kernels.cuda_device import CudaDevice  # noqa: PLC0415  only where a GPU is asked for

    try:
        device = CudaDevice()
    except DeviceError as error:
        raise EngineError(f"{error}. Use --device cpu where there is no GPU") from error
    return CudaEngine(
        classifier, device, max_batch=max_batch, choose=heuristic(device), progress=progress
    )
