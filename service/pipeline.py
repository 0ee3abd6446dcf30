"""From the bytes of images to their scores: everything between HTTP and one model's engine.

    admit -> decode (threads) -> batch -> engine (one thread) -> scores

Whatever is inside is bounded: see `service/admission.py`.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, unique
from time import perf_counter
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from models import Engine, EngineError, Images, OutputKind
from service.admission import Admission, ByteRoom, Visit
from service.batcher import Batcher
from service.errors import NotReadyError, ServiceError, ShuttingDownError
from service.latency import Latency, measure
from service.metrics import Metrics
from service.policy import NO_HURRY, Urgency
from service.turns import Turns
from service.workers import Workers

Pixels = NDArray[np.uint8]  # H×W×C, as the model wants them
T = TypeVar("T")
R = TypeVar("R")

ScoreRow = NDArray[np.float32]  # one score a class

_log = logging.getLogger("convoy")


@unique
class State(Enum):
    """What a pipeline can do for a new request."""

    WARMING = "warming up"
    READY = "ready"
    FAILED = "broken: it failed to warm up"
    DRAINING = "shutting down"


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What clients are told of a model."""

    name: str
    version: str  # digits
    image_shape: tuple[int, ...]  # H×W×C of the pixels that its engine takes
    scores: str  # what the model calls its output
    output: OutputKind
    labels: Sequence[str]  # empty: classes are named by their index


@dataclass(frozen=True, slots=True)
class Scored:
    """A request's scores, one row an image in order, and where its time went, in seconds.

    Batches run one after another, so the last image's wait covers the request's others.
    """

    rows: list[ScoreRow]
    decode_s: float
    queue_s: float
    compute_s: float


class Pipeline:
    """An engine with its decoder, its batcher and its bounds; used from one event loop."""

    def __init__(
        self,
        info: ModelInfo,
        engine: Engine,
        decode: Callable[[bytes], Pixels],
        *,
        max_queue: int,
        room: ByteRoom,
        decoders: Workers,
        metrics: Metrics,
        turns: Turns | None = None,
        measure_s: float = 0.0,
    ) -> None:
        """`turns` are the device's, where other models run on it; warming up measures L(n) for
        about `measure_s` seconds.
        """
        self.info = info
        self.classes = engine.classes
        self.max_batch = engine.max_batch
        self.device = engine.device
        self.metrics = metrics.model(info.name, info.version)
        # Images wait or run. The batcher could hold them all, so that none is refused after it
        # was decoded.
        max_images = max_queue + engine.max_batch
        self._batcher = Batcher(
            self._run,
            max_batch=engine.max_batch,
            max_queue=max_images,
            turns=turns,
            on_batch=self.metrics.batch,
        )
        self._measure_s = measure_s
        self.admission = Admission(
            max_images=max_images,
            max_images_a_request=max_queue,
            room=room,
            expected_wait_s=self._batcher.expected_wait_s,
        )
        self._engine = engine
        self._decode_one = decode
        self._engine_thread = Workers("engine", 1)
        self._decoders = decoders
        self._gathered: Images | None = None
        self._state = State.WARMING
        self.metrics.pending = lambda: self._batcher.depth
        self.metrics.watch(
            {
                "convoy_ready": (
                    "1 while requests are taken.",
                    lambda: float(self._state is State.READY),
                ),
                "convoy_queue_depth": (
                    "Images waiting for a batch.",
                    lambda: self._batcher.depth,
                ),
                "convoy_images_inside": (
                    "Images from before they are decoded until they are answered.",
                    lambda: self.admission.images,
                ),
            }
        )

    @property
    def state(self) -> State:
        """What it can do for a new request just now."""
        return self._state

    @property
    def latency(self) -> Latency:
        """How long batches take, as far as is known."""
        return self._batcher.latency

    def check_ready(self) -> None:
        """Raise NotReadyError or ShuttingDownError unless new requests are taken."""
        if self._state is State.READY:
            return
        if self._state is State.DRAINING:
            raise ShuttingDownError("the server is shutting down; send the request again elsewhere")
        raise NotReadyError(f"the model is {self._state.value}; try again in a second")

    async def warm_up(self) -> None:
        """Make the engine ready, in its thread, and measure it; raises what the engine raises."""
        try:
            await self._engine_thread.run(lambda _: self._engine.warm_up(), None)
            self._batcher.latency = await self._engine_thread.run(self._measure, self._measure_s)
        except Exception:
            self._state = State.FAILED
            raise
        if self._state is State.WARMING:  # not where draining began meanwhile
            self._state = State.READY

    async def score_files(
        self, visit: Visit, files: list[bytes], *, since: float, urgency: Urgency = NO_HURRY
    ) -> Scored:
        """The scores of encoded images, which are taken out of the list once they are decoded.

        What there was to do `since` then, in perf_counter's seconds, counts as decoding.
        QueueFullError, TooManyImagesError: not admitted. ImageError, PayloadTooLargeError,
        UnsupportedMediaTypeError: one cannot be decoded. DeadlineError: they cannot be done in
        time, which is asked before they are decoded and after. EngineFailedError,
        ShuttingDownError.
        """
        visit.admit(len(files))
        self._batcher.check_deadline(len(files), urgency)
        pixels = await self._decode(files)
        files.clear()
        visit.release_bytes()
        return await self._score(pixels, since, urgency)

    async def score_pixels(
        self,
        visit: Visit,
        pixels: Sequence[Pixels] | Images,
        *,
        since: float,
        urgency: Urgency = NO_HURRY,
    ) -> Scored:
        """The scores of images that are decoded: H×W×C as `info.image_shape` says. Raises as above.

        They may be views of the body, which therefore counts until the visit ends.
        """
        visit.admit(len(pixels))
        return await self._score(list(pixels), since, urgency)

    def aside(self, function: Callable[[T], R], argument: T) -> "asyncio.Future[R]":
        """Have a decode thread call `function(argument)`, which takes a while."""
        return self._decoders.run(function, argument)

    def refuse(self) -> None:
        """Take nothing new from now on."""
        self._state = State.DRAINING

    async def drain(self, timeout_s: float) -> bool:
        """Take nothing new and finish what is inside; False if `timeout_s` was too short."""
        self.refuse()
        try:
            async with asyncio.timeout(timeout_s):
                await self.admission.emptied()
        except TimeoutError:
            return False
        return True

    async def give_up(self) -> None:
        """Answer what waits or runs with ShuttingDownError."""
        self.refuse()
        await self._batcher.close(timeout_s=0)

    async def close(self, timeout_s: float) -> bool:
        """End it: what is still inside fails. False if the engine is stuck in a call.

        A thread cannot be ended from outside, so then the process has to leave without it.
        """
        await self.give_up()
        closing = self._engine_thread.run(lambda _: self._engine.close(), None)
        self._engine_thread.close()
        try:
            # Shielded: cancelled, it would not be called once the engine is free.
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(closing)
        except TimeoutError:
            return False
        return True

    def _measure(self, budget_s: float) -> Latency:
        """L(n) of the engine, in its thread; what the event loop adds is learned by serving."""
        blank = np.zeros(self.info.image_shape, np.uint8)

        def run(n: int) -> float:
            started = perf_counter()
            self._run_batch([blank] * n)
            return perf_counter() - started

        return measure(run, self.max_batch, budget_s=budget_s)

    async def _score(self, pixels: Sequence[Pixels], since: float, urgency: Urgency) -> Scored:
        decode_s = perf_counter() - since
        answers = await self._batcher.submit(pixels, urgency)
        last = answers[-1]
        return Scored(
            [answer.result for answer in answers],
            decode_s=decode_s,
            queue_s=last.queue_ms / 1e3,
            compute_s=last.compute_ms / 1e3,
        )

    async def _decode(self, files: Sequence[bytes]) -> list[Pixels]:
        jobs = [self._decoders.run(self._decode_one, file) for file in files]
        if len(jobs) == 1:
            return [await jobs[0]]
        # Each outcome is waited for, so that it is always the first bad image that is named.
        pixels = []
        for number, outcome in enumerate(await asyncio.gather(*jobs, return_exceptions=True), 1):
            if isinstance(outcome, ServiceError):
                raise type(outcome)(f"image {number} of {len(jobs)}: {outcome}") from outcome
            if isinstance(outcome, BaseException):
                raise outcome
            pixels.append(outcome)
        return pixels

    async def _run(self, images: Sequence[Pixels]) -> Sequence[ScoreRow]:
        return await self._engine_thread.run(self._run_batch, images)

    def _run_batch(self, images: Sequence[Pixels]) -> Sequence[ScoreRow]:
        """One batch, in the engine's thread."""
        try:
            scores = self._engine.run(self._gather(images))
            if scores.shape != (len(images), self.classes):
                raise EngineError(
                    f"scores of shape {scores.shape} for {len(images)} images "
                    f"of {self.classes} classes"
                )
        except Exception:
            _log.exception("the engine failed on a batch of %d", len(images))
            raise
        return list(scores)

    def _gather(self, images: Sequence[Pixels]) -> Images:
        """The images as one array, which the next batch overwrites."""
        if self._gathered is None:
            # Made once: a fresh megabyte costs a page fault for every 4 kB, each time.
            self._gathered = np.empty((self._engine.max_batch, *images[0].shape), np.uint8)
        for place, image in zip(self._gathered, images, strict=False):
            place[...] = image
        return self._gathered[: len(images)]
