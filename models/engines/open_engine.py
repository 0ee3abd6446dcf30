"""Which engine runs a classifier on a device."""

import logging
import re
from functools import partial
from pathlib import Path

from kernels.device.device import Device
from kernels.problems.precision import Precision
from models.classifier import Classifier
from models.engines.cuda_engine import CudaEngine, Progress
from models.engines.engine import DeviceKind, Engine
from models.engines.onnxruntime_engine import OnnxRuntimeEngine
from models.engines.proved_engine import Fallback, ProvedEngine, prove
from models.errors import EngineError, NoKernelsError
from models.open_gpu import open_gpu
from models.tuning.measured import choose_for

_log = logging.getLogger("convoy")


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
    `progress` wraps the kernels that it compiles. As it warms up, its scores are compared with ONNX
    Runtime's. EngineError where the device cannot be had; AUTO takes the CPU then, and where the
    comparison fails, and logs why. A model that Convoy's kernels cannot run is the CPU's on AUTO,
    with a warning, and NoKernelsError on CUDA.
    """

    def on_cpu(reason: str = "") -> Engine:
        return OnnxRuntimeEngine(
            classifier, max_batch=max_batch, threads=threads, fallback_reason=reason
        )

    def fall_back(failure: EngineError) -> Engine:
        _log.warning("%s runs on the CPU: %s", classifier.name, failure)
        return on_cpu(str(failure))

    def on_gpu(fallback: Fallback | None) -> Engine:
        gpu = open_gpu("Use --device cpu where there is no GPU")
        check_architecture(gpu, classifier.precision)
        choose = choose_for(gpu, classifier.rewritten.graph, max_batch, tuning)
        engine = CudaEngine(classifier, gpu, max_batch=max_batch, choose=choose, progress=progress)
        check = partial(prove, classifier=classifier, choose=choose, threads=threads)
        return ProvedEngine(engine, check, fallback)

    if classifier.network.no_kernels:
        if device is DeviceKind.CUDA:
            raise NoKernelsError(f"{classifier.name}: {classifier.network.no_kernels}")
        _log.warning(
            "%s: none of it runs on Convoy's kernels; ONNX Runtime serves it on the CPU as it is",
            classifier.name,
        )
        return on_cpu("none of the model runs on Convoy's kernels")
    if device is DeviceKind.CPU:
        return on_cpu()
    if device is DeviceKind.CUDA:
        return on_gpu(None)
    try:
        return on_gpu(fall_back)
    except EngineError as failure:
        return fall_back(failure)


def check_architecture(gpu: Device, precision: Precision) -> None:
    """Raise EngineError where a GPU is too old for a precision."""
    number = re.match(r"\d+", gpu.architecture)  # none for the simulator, which runs all
    if number and int(number[0]) < precision.least_architecture:
        raise EngineError(
            f"{gpu.name} (sm_{gpu.architecture}) has no tensor cores for {precision.value}; that "
            f"needs sm_{precision.least_architecture}. Use --precision fp32 or fp16"
        )
