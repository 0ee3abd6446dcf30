"""Implements the CPU engine, which runs the converted model in ONNX Runtime.

Modules that read ONNX are imported only where they are used. A server that receives a SessionModel
from another process does not need them.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from kernels.image.place import Kind
from kernels.problems.precision import Precision
from models.engines.engine import (
    Batch,
    Engine,
    Images,
    Pixels,
    Proof,
    Results,
    Tensor,
    batch_size,
    unproved,
)
from models.errors import EngineError
from models.preprocessing import Preprocessing
from models.served import Inner, Layers
from models.session import PIXELS, TENSORS, open_session, session_options

if TYPE_CHECKING:
    from models.classifier import Classifier

# A way to run images is clearly faster if it takes less than this fraction of another way's time,
# in the best of several tries. Threads that wait for each other after every layer must be clearly
# faster to be chosen, because they lose most when a server gives a core other work.
_CLEARLY = 0.97

# Each way is tried at least this often, and all ways together for at least these seconds: the first
# runs of a quick model take three times as long as later ones.
_TRIES, _TRY_S = 3, 0.01

# If one thread computes an image in less time, several threads save little, and every layer wakes
# them.
_QUICK_S = 0.001


@dataclass(frozen=True)
class SessionModel:
    """Holds a classifier in a form that can be pickled. Its network is stored as bytes that ONNX
    Runtime can load."""

    name: str
    data: bytes  # ONNX; inputs PIXELS and TENSORS
    scores: str  # the output's name
    inner: Mapping[str, Inner]
    preprocessing: Preprocessing
    classes: int
    precision: Precision  # the precision of the file's nodes; a GPU may use another one
    one_by_one: bool  # images of one batch may influence each other

    @staticmethod
    def of(classifier: "Classifier") -> "SessionModel":
        """Return the classifier as a SessionModel."""
        from models.engines.normalised import with_either_input  # noqa: PLC0415
        from models.engines.saturation import pairs_saturate  # noqa: PLC0415
        from models.engines.unsigned import on_integers  # noqa: PLC0415

        proto, inner = classifier.network.proto, classifier.inner
        if any(node.op_type == "DequantizeLinear" for node in proto.graph.node):
            proto = on_integers(proto, pairs_saturate=pairs_saturate(), kept=inner)
        return SessionModel(
            classifier.name,
            with_either_input(proto, classifier.preprocessing, inner.values()).SerializeToString(),
            proto.graph.output[0].name,
            inner,
            classifier.preprocessing,
            classifier.classes,
            _precision(classifier),
            bool(classifier.network.no_kernels),  # its images may influence each other
        )


@dataclass(frozen=True)
class WarmUpResult:
    """Holds the choices that an engine made during its warm-up, in a form that can be pickled. All
    engines of the same model with the same number of threads can use them."""

    model: SessionModel
    threads: int
    max_batch: int
    side_by_side: bool
    one_thread: bool
    fallback_reason: str
    layers: Layers | None

    def open(self, beside: "OnnxRuntimeEngine | None" = None) -> "OnnxRuntimeEngine":
        """Return an engine that uses these choices. Its warm-up measures and checks nothing. Raises
        EngineError."""
        return OnnxRuntimeEngine(
            self.model,
            max_batch=self.max_batch,
            threads=self.threads,
            fallback_reason=self.fallback_reason,
            beside=beside,
            side_by_side=self.side_by_side,
            one_thread=self.one_thread,
            layers=self.layers,
        )


class OnnxRuntimeEngine:
    """Runs a classifier on the CPU with `threads` threads; 0 lets ONNX Runtime choose their number.

    The session normalises pixels, so `run` takes decoded pixels unchanged. A batch may contain both
    pixels and tensors. The results have no ranked classes; the caller ranks the scores.

    By default, ONNX Runtime splits each layer across all threads, which synchronise after every
    layer. If another task, such as decoding, delays one thread, all threads wait. Therefore the
    warm-up measures two alternatives. If an image takes little time and one thread is as fast as
    several, one thread runs every batch. Otherwise, each thread runs different images, unless that
    is clearly slower. This needs a second copy of the weights.

    If a model runs with its original nodes, each session call gets one image. Threads run the
    images of a batch in parallel if that is not clearly slower. Otherwise, `max_batch` becomes 1.

    Engines of the same classifier share their single-threaded sessions, including the weights. Each
    engine has its own multi-threaded session.
    """

    def __init__(
        self,
        model: SessionModel,
        *,
        max_batch: int,
        threads: int = 0,
        fallback_reason: str = "",
        beside: "OnnxRuntimeEngine | None" = None,
        prove: Proof = unproved,
        side_by_side: bool | None = None,
        one_thread: bool | None = None,
        layers: Layers | None = None,
        exact: bool = False,
    ) -> None:
        """Open the engine. If `beside` is given, share its single-threaded sessions.

        `beside` is an engine of the same model before its warm-up. `prove` checks the scores at the
        end of `warm_up`. If `side_by_side` is true, each thread runs different images. If
        `one_thread` is true, one thread runs every batch. If one of these two is None, `warm_up`
        measures which choice is faster. `layers` lists the layers of a quantized model that compute
        with integers. If it is None, the first session counts them. `exact` is passed to
        `open_session`.
        """
        if max_batch < 1:
            raise EngineError(f"max_batch must be at least 1, got {max_batch}")
        p = model.preprocessing
        self.fallback_reason = fallback_reason
        self._prove = prove
        self._model: SessionModel | None = model  # None if no other process may open it
        self._settled, self._one_thread = side_by_side, one_thread
        inside = 1 if one_thread else threads  # threads inside the session
        self.max_batch = max_batch
        self.classes = model.classes
        self._forms, self._image_shape = p.forms, p.image_shape
        self._no_tensors = np.empty((0, *p.input_shape), np.float32)
        self._gathered: Images | None = None
        self._threads = threads
        self._one_by_one = model.one_by_one
        self._session: ort.InferenceSession | None = None
        self._single: ort.InferenceSession | None = None
        if beside is not None:
            self._session = beside._session if inside == 1 else None
            self._single = beside._single
            layers = layers or beside._layers
        self._scores_name, self._inner = model.scores, model.inner
        try:
            if model.precision is Precision.INT8 and layers is None:
                from models.engines.counted import open_counted  # noqa: PLC0415

                self._session, layers = open_counted(
                    model.data, session_options(model.data, inside, exact=exact)
                )
            self._session = self._session or open_session(model.data, inside, exact=exact)
            apart = threads <= max_batch and side_by_side is not False
            if threads > 1 and (apart or (one_thread is None and max_batch > 1)):
                one = self._session if inside == 1 else None
                self._single = self._single or one or open_session(model.data, 1)
        except Exception as error:  # ONNX Runtime's exceptions have no other common base class
            raise EngineError(f"ONNX Runtime cannot open {model.name}: {error}") from error
        self._layers: Layers | None = layers
        computes = layers is None or layers.on_integers
        self.precision = model.precision if computes else Precision.FP32
        self._beside = ThreadPoolExecutor(max(1, threads - 1), "beside")  # no thread starts yet
        self._side_by_side: ort.InferenceSession | None = None  # None if this is not used

    @property
    def device(self) -> str:
        """Return the device and the version of ONNX Runtime for display."""
        return f"cpu (ONNX Runtime {ort.__version__})"

    @property
    def layers(self) -> str:
        """Return the number of layers of a quantized model that compute with integers, and the
        names of the others, as counted in the session."""
        return "" if self._layers is None else str(self._layers)

    @property
    def takes(self) -> Kind:
        """Return Kind.TENSOR. Images of later kinds are converted to pixels before they reach this
        engine."""
        return Kind.TENSOR

    @property
    def on_cpu(self) -> bool:
        """Return True, since ONNX Runtime computes on this machine's CPU."""
        return True

    def proved(self, model: SessionModel) -> WarmUpResult:
        """Return the choices that this engine made in its warm-up, for other engines of the same
        model."""
        return WarmUpResult(
            model,
            self._threads,
            self.max_batch,
            self._side_by_side is not None,
            bool(self._one_thread),
            self.fallback_reason,
            self._layers,
        )

    def elsewhere(self) -> Callable[[], Engine] | None:
        """Return a picklable function that opens a copy of this engine in another process.

        The copy computes with one thread. The result is None if this engine uses several threads
        after its warm-up.
        """
        if self._model is None:
            return None
        found = replace(self.proved(self._model), threads=1, side_by_side=False)
        return found.open

    def warm_up(self) -> Engine:
        """Choose how threads divide the work of a batch, and check the scores with `prove`.

        All threads can share each image, one thread can run each batch, or each thread can run
        different images. The times of these choices are measured, unless the constructor got the
        choice.
        """
        single, self._single = self._single, None
        if single is not None:
            if self._one_thread is None:
                self._one_thread = self._is_as_fast_alone(single)
            if self._one_thread:
                self._session = single
            apart = self._settled
            if apart is None:
                useful = self._one_by_one or not self._one_thread
                enough = self._threads <= self.max_batch
                apart = useful and enough and self._is_as_fast_apart(single)
            self._side_by_side = single if apart else None
        if self._side_by_side is None:
            self._beside.shutdown()
            if self._one_by_one:
                self.max_batch = 1  # a batch would only make an image wait for others
        self.max_batch = self._prove(self)
        if not self._one_thread:
            self._model = None
        return self

    def _is_as_fast_alone(self, single: ort.InferenceSession) -> bool:
        """Return whether one thread runs an image in less than _QUICK_S seconds, and is not clearly
        slower than all threads together."""
        image = np.zeros((1, *self._image_shape), np.uint8)
        run_alone = partial(self._arrays, single, image, self._outputs())
        together_s, alone_s = _fastest(partial(self.run, image), run_alone)
        return alone_s < _QUICK_S and alone_s * _CLEARLY <= together_s

    def _is_as_fast_apart(self, single: ort.InferenceSession) -> bool:
        """Run a batch of one image per thread in two ways: each thread runs one image, or all
        threads work on each image. Return whether the first way is not clearly slower."""
        images = np.zeros((self._threads, *self._image_shape), np.uint8)
        side_by_side = partial(self._run_side_by_side, single, images, self._outputs())
        together_s, apart_s = _fastest(partial(self.run, images), side_by_side)
        return apart_s * _CLEARLY <= together_s

    def run(self, images: Batch, inner: Collection[str] = ()) -> Results:
        """Return the scores of N images, given as pixels or tensors. Raises EngineError if their
        shape is wrong.

        The session always computes the values inside the network that clients may request. Only
        those named in `inner` are returned.
        """
        n = batch_size(images, self._forms, self.max_batch)
        if self._session is None:
            raise EngineError("the engine is closed; open a new engine")
        outputs = self._outputs(inner)
        parts: list[_Arrays] = []
        apart = 0
        try:
            if self._side_by_side is not None and n >= self._threads:
                apart = n - n % self._threads
                parts.append(self._run_side_by_side(self._side_by_side, images[:apart], outputs))
            if apart < n:
                parts.append(self._arrays(self._session, images[apart:], outputs))
        except Exception as error:  # as above
            raise EngineError(f"ONNX Runtime failed on a batch of size {n}: {error}") from error
        scores, *others = _joined(parts)
        if not others:
            return Results(scores)
        return Results(scores, inner=dict(zip(outputs[1:], others, strict=True)))

    def close(self) -> None:
        """Close the sessions, and end the threads."""
        self._session = self._single = self._side_by_side = None
        self._beside.shutdown(wait=False)

    def _outputs(self, inner: Collection[str] = ()) -> Sequence[str]:
        return [self._scores_name, *inner]

    def _empty(self, n: int, outputs: Sequence[str]) -> "_Arrays":
        """Return uninitialised arrays for the outputs of n images."""
        shapes = [(self.classes,), *(self._inner[name].shape for name in outputs[1:])]
        return [np.empty((n, *shape), np.float32) for shape in shapes]

    def _run_side_by_side(
        self, session: ort.InferenceSession, images: Batch, outputs: Sequence[str]
    ) -> "_Arrays":
        """Return the outputs of the images. Threads run in parallel, and each runs one image at a
        time.

        Each thread takes the next image until none is left, so a delayed thread takes fewer images.
        """
        arrays = self._empty(len(images), outputs)
        indices = iter(range(len(images)))  # the GIL ensures that each index goes to one thread

        def work(indices: Iterator[int]) -> None:
            for index in indices:
                found = self._arrays(session, images[index : index + 1], outputs)
                for array, one in zip(arrays, found, strict=True):
                    array[index] = one[0]

        others = [self._beside.submit(work, indices) for _ in range(self._threads - 1)]
        try:
            work(indices)
        finally:
            wait(others)  # the caller may overwrite the images afterwards
        for other in others:
            other.result()
        return arrays

    def _arrays(
        self, session: ort.InferenceSession, images: Batch, outputs: Sequence[str]
    ) -> "_Arrays":
        """Return the outputs of the images. The session runs all images at once if the model allows
        it."""
        if self._one_by_one and len(images) > 1:
            singles = (images[i : i + 1] for i in range(len(images)))
            return _joined([self._arrays(session, single, outputs) for single in singles])
        tensors = [index for index, image in enumerate(images) if image.dtype == np.float32]
        if not tensors:
            gathered = self._gather(images)  # type: ignore[arg-type]
            return self._joint(session, gathered, self._no_tensors, outputs)
        pixels = [index for index, image in enumerate(images) if image.dtype != np.float32]
        arrays = self._empty(len(images), outputs)
        found = self._joint(
            session,
            np.array([images[index] for index in pixels], np.uint8).reshape(-1, *self._image_shape),
            np.stack([images[index] for index in tensors]),
            outputs,
        )
        for array, rows in zip(arrays, found, strict=True):
            array[pixels + tensors] = rows
        return arrays

    def _joint(
        self,
        session: ort.InferenceSession,
        pixels: Images,
        tensors: Tensor,
        outputs: Sequence[str],
    ) -> "_Arrays":
        scores, *others = session.run(outputs, {PIXELS: pixels, TENSORS: tensors})
        n = len(pixels) + len(tensors)
        return [
            np.reshape(scores, (n, self.classes)),
            *(
                np.reshape(values, (n, *self._inner[name].shape))
                for name, values in zip(outputs[1:], others, strict=True)
            ),
        ]

    def _gather(self, images: Images | Sequence[Pixels]) -> Images:
        """Return the images as one array. Several images are copied into a buffer that later calls
        reuse."""
        if isinstance(images, np.ndarray):
            return images
        if len(images) == 1:
            return np.asarray(images[0])[np.newaxis]
        if self._gathered is None:
            # Allocated once: fresh memory costs a page fault for every 4 kB.
            self._gathered = np.empty((self.max_batch, *self._image_shape), np.uint8)
        for place, image in zip(self._gathered, images, strict=False):
            place[...] = image
        return self._gathered[: len(images)]


_Arrays = list[NDArray[np.float32]]  # scores, then inner values: n rows each


def _joined(parts: Sequence[_Arrays]) -> _Arrays:
    """Concatenate the results of several parts of a batch: one array per output of the session."""
    if len(parts) == 1:
        return parts[0]
    return [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]


def _precision(classifier: "Classifier") -> Precision:
    """Return the precision in which ONNX Runtime computes the network. The precision that is set
    for GPUs does not affect it."""
    if classifier.network.quantized:
        return Precision.INT8
    from models.onnx_loader import Opaque  # noqa: PLC0415

    # The loader converts float16 to float32, except in a model that runs with its original nodes.
    halves = any(isinstance(n, Opaque) and n.halves for n in classifier.network.graph.nodes)
    return Precision.FP16 if halves else Precision.FP32


def _fastest(*ways: Callable[[], object]) -> Sequence[float]:
    """Call the functions alternately several times, and return the shortest time of each, in
    seconds."""
    tries: list[list[float]] = []
    while len(tries) < _TRIES or sum(map(sum, tries)) < _TRY_S:
        tries.append([_seconds(run) for run in ways])
    return [min(each) for each in zip(*tries, strict=True)]


def _seconds(run: Callable[[], object]) -> float:
    started = perf_counter()
    run()
    return perf_counter() - started


def elsewhere(engine: Engine) -> Callable[[], Engine] | None:
    """Return a picklable function that opens a copy of the engine in another process.

    The copy computes the same scores with one thread, and does not repeat the checks of the
    warm-up. The result is None if the engine is on a GPU or uses several threads.
    """
    return engine.elsewhere() if isinstance(engine, OnnxRuntimeEngine) else None
