"""Which engine runs a classifier on a device."""

from pathlib import Path

from models.classifier import Classifier
from models.engines.cuda_engine import CudaEngine, Progress
from models.engines.engine import DeviceKind, Engine
from models.engines.onnxruntime_engine import OnnxRuntimeEngine
from models.open_gpu import open_gpu
from models.tuning.measured import choose_for


def open_engine(
    classifier: Classifier,
    *,
    device: DeviceKind,
    max_batch: int,
    threads: int = 0,
    tuning: Path | None = None,
    progress: Progress = iter,
) -> Engine:
    """An engine for batches of 1..max_batch images, not yet warm.

    `threads` is for the CPU, 0 leaving their number to ONNX Runtime. A GPU's engine chooses its
    convolutions by the measurements in `tuning`, or by those in the default file if there is one;
    `progress` wraps the kernels that it compiles. Raises EngineError where the device is not
    available. AUTO is the CPU until the CUDA engine has been measured on a GPU.
    """
    if device is DeviceKind.CUDA:
        gpu = open_gpu("Use --device cpu where there is no GPU")
        choose = choose_for(gpu, classifier.rewritten.graph, max_batch, tuning)
        return CudaEngine(classifier, gpu, max_batch=max_batch, choose=choose, progress=progress)
    return OnnxRuntimeEngine(classifier, max_batch=max_batch, threads=threads)
