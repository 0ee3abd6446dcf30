"""Which engine runs a classifier on a device."""

from models.classifier import Classifier
from models.engine import DeviceKind, Engine
from models.errors import EngineError
from models.onnxruntime_engine import OnnxRuntimeEngine


def open_engine(
    classifier: Classifier, *, device: DeviceKind, max_batch: int, threads: int = 0
) -> Engine:
    """An engine for batches of 1..max_batch images, not yet warm.

    `threads` is for the CPU; 0 leaves their number to ONNX Runtime. EngineError where the device
    cannot be had. AUTO is the CPU until the CUDA engine exists.
    """
    if device is DeviceKind.CUDA:
        raise EngineError("this version has no CUDA engine yet; use --device cpu, or auto")
    return OnnxRuntimeEngine(classifier, max_batch=max_batch, threads=threads)
