"""Opens the engine that runs a classifier on a device."""

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from kernels.device.device import Device
from kernels.device.driver import has_driver
from kernels.image.place import Kind
from kernels.problems.precision import Precision
from models.classifier import Classifier
from models.engines.choice import NO_DRIVER, NO_GPU, DeviceChoice
from models.engines.compare import compare
from models.engines.engine import DeviceKind, Engine, Fallback, Progress
from models.engines.onnxruntime_engine import OnnxRuntimeEngine, SessionModel, WarmUpResult
from models.engines.prove import prove
from models.errors import EngineError, NoGpuError, NoKernelsError
from models.open_gpu import open_gpu
from models.precision import beyond_half

_log = logging.getLogger("convoy")


def open_engines(
    classifier: Classifier,
    choices: Sequence[DeviceChoice],
    *,
    max_batch: int,
    threads: int = 0,
    tuning: Path | None = None,
    progress: Progress = iter,
    takes: Kind = Kind.TENSOR,
) -> Sequence[Engine]:
    """Return one engine per device choice, opened by `open_engine` with `threads` threads.

    Engines on the same device share weights, plans and kernels. At most one choice may be AUTO.
    """
    engines: list[Engine] = []
    last: dict[DeviceChoice, Engine] = {}
    for choice in choices:
        beside = last.get(choice)
        last[choice] = _open(
            classifier, choice, max_batch, threads, tuning, progress, takes, beside
        )
        engines.append(last[choice])
    return engines


def open_engine(
    classifier: Classifier,
    *,
    device: DeviceKind,
    max_batch: int,
    threads: int = 0,
    tuning: Path | None = None,
    progress: Progress = iter,
    takes: Kind = Kind.TENSOR,
) -> Engine:
    """Return an engine for batches of 1 to `max_batch` images. Its `warm_up` has not run yet.

    `threads` is the number of threads that compute on the CPU or compile for a GPU. If it is 0,
    ONNX Runtime chooses the number, and one thread per core compiles. The file `tuning` has
    measurements from which a GPU engine chooses the algorithms of convolutions. If it is None, the
    default file is used if it exists. `progress` wraps the sequence of kernels to compile. A GPU
    accepts images of all kinds up to `takes`, in the order of `Kind`.

    The warm-up checks that batching does not change an image's scores. If batching changes them,
    the largest batch becomes 1. On a GPU, the warm-up also compares the scores with ONNX Runtime's
    scores.

    If the device is unavailable or this comparison fails, AUTO logs the reason and uses the CPU.
    Other choices raise EngineError. If Convoy has no kernels for the model, AUTO logs a warning and
    uses the CPU, and CUDA raises NoKernelsError. Raises UnsupportedModelError if ONNX Runtime
    computes other scores for the original file.
    """
    return _open(classifier, DeviceChoice(device), max_batch, threads, tuning, progress, takes)


def _open(
    classifier: Classifier,
    choice: DeviceChoice,
    max_batch: int,
    threads: int,
    tuning: Path | None,
    progress: Progress,
    takes: Kind,
    beside: Engine | None = None,
) -> Engine:
    """Open an engine that shares weights, plans and kernels with `beside`.

    `beside` is an engine of the same classifier and device whose warm-up has not run yet, or None.
    """

    def on_cpu(reason: str = "") -> Engine:
        engine = OnnxRuntimeEngine(
            SessionModel.of(classifier),
            max_batch=max_batch,
            threads=threads,
            fallback_reason=reason,
            beside=beside if isinstance(beside, OnnxRuntimeEngine) else None,
            prove=partial(prove, classifier=classifier),
        )
        if beside is None:
            _compare(engine, classifier, threads)
        return engine

    def fall_back(failure: EngineError) -> Engine:
        _log.warning("%s runs on the CPU: %s", classifier.name, failure)
        return on_cpu(str(failure))

    def on_gpu(fallback: Fallback | None) -> Engine:
        opened = None if beside else open_gpu(NO_GPU, choice.number)
        # The modules that plan and launch take 0.2 s to import.
        from models.engines.cuda_engine import CudaEngine  # noqa: PLC0415
        from models.tuning.measured import choose_for  # noqa: PLC0415

        sharing = beside if isinstance(beside, CudaEngine) else None
        gpu = sharing.gpu if sharing else opened or open_gpu(NO_GPU, choice.number)
        check_architecture(gpu, classifier.precision)
        if classifier.precision is Precision.FP16:
            for node, reason in beyond_half(classifier.rewritten.graph).items():
                _log.warning("%s of %s stays in float32: %s", node, classifier.name, reason)
        choose = choose_for(gpu, classifier.rewritten.graph, max_batch, tuning)
        if sharing is None:
            _compare(None, classifier, threads)
        return CudaEngine(
            classifier,
            gpu,
            max_batch=max_batch,
            choose=choose,
            progress=progress,
            beside=sharing,
            prove=partial(prove, classifier=classifier, choose=choose, threads=threads),
            fallback=fallback,
            takes=takes,
            threads=threads,
        )

    if (reason := _why_on_cpu(classifier, choice)) is not None:
        return on_cpu(reason)
    if choice.kind is DeviceKind.CUDA:
        return on_gpu(None)
    try:
        return on_gpu(fall_back)
    except NoGpuError as failure:
        if has_driver():
            return fall_back(failure)
        _log.info("%s runs on the CPU: %s", classifier.name, NO_DRIVER)
        return on_cpu(NO_DRIVER)
    except EngineError as failure:
        return fall_back(failure)


def try_on_cpu(
    classifier: Classifier, choices: Sequence[DeviceChoice], *, max_batch: int, threads: int
) -> tuple[Engine, WarmUpResult] | None:
    """Return a CPU engine after its warm-up, and the results of the warm-up.

    The result is None if one of the device choices may select a GPU. Raises EngineError.
    """
    reasons = [_why_on_cpu(classifier, choice) for choice in choices]
    if not has_driver():
        automatic = [choice.kind is DeviceKind.AUTO for choice in choices]
        reasons = [
            NO_DRIVER if reason is None and auto else reason
            for reason, auto in zip(reasons, automatic, strict=True)
        ]
    if None in reasons:
        return None
    if NO_DRIVER in reasons:
        _log.info("%s runs on the CPU: %s", classifier.name, NO_DRIVER)
    model = SessionModel.of(classifier)
    engine = OnnxRuntimeEngine(
        model,
        max_batch=max_batch,
        threads=threads,
        fallback_reason=reasons[0] or "",
        prove=partial(prove, classifier=classifier),
    )
    _compare(engine, classifier, threads)
    engine.warm_up()
    return engine, engine.proved(model)


def _compare(engine: OnnxRuntimeEngine | None, classifier: Classifier, threads: int) -> None:
    """Compare the CPU engine's scores with the scores of the original file. Raises
    UnsupportedModelError if they differ too much.

    On some processors, sums of 8-bit products overflow. They overflow differently in the engine's
    model and in the original file. A quantized model is therefore compared in a separate session
    that avoids overflow. This session is also used if `engine` is None.
    """
    if classifier.given is None or classifier.given.is_compared:
        return
    if engine is not None and not classifier.network.quantized:
        compare(engine, classifier)
        return
    model = SessionModel.of(classifier)
    judge = OnnxRuntimeEngine(model, max_batch=1, threads=threads, exact=True)
    try:
        compare(judge, classifier)
    finally:
        judge.close()


def _why_on_cpu(classifier: Classifier, choice: DeviceChoice) -> str | None:
    """Return the reason why the model runs on the CPU even if the machine has a GPU.

    The result is "" if the CPU was requested. It is None if the model runs on a GPU when there is
    one. Raises NoKernelsError.
    """
    if not classifier.network.no_kernels:
        return "" if choice.kind is DeviceKind.CPU else None
    if choice.kind is DeviceKind.CUDA:
        raise NoKernelsError(f"{classifier.name}: {classifier.network.no_kernels}")
    _log.warning(
        "%s: Convoy's kernels cannot run this model; ONNX Runtime runs its original nodes on"
        " the CPU, one image at a time",
        classifier.name,
    )
    return "Convoy's kernels cannot run this model"


def check_architecture(gpu: Device, precision: Precision) -> None:
    """Raise EngineError if a GPU is too old for a precision."""
    if not precision.architectures.includes(gpu.architecture):
        raise EngineError(
            f"{gpu.name} (sm_{gpu.architecture}) has no tensor cores for {precision.value}; GPUs"
            f" have them from sm_{precision.architectures.first} on. Use --precision fp32 or fp16"
        )
