"""From the bytes of images to their scores: everything between HTTP and one model's runner.

    admit -> decode (threads) -> runner (batches, in the engine's thread) -> scores

Whatever is inside is bounded: see `service/hosting/admission.py`.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

import numpy as np

from models import Images, OutputKind
from service.batching.latency import Latency
from service.batching.policy import NO_HURRY, Urgency
from service.batching.waiting import Answered
from service.engine.ranking import ScoreRow
from service.engine.runner import Pixels, Posted, Runner, State, check_ready
from service.engine.workers import Workers
from service.errors import ServiceError
from service.hosting.admission import Admission, ByteRoom, Inside, Visit
from service.images.pool import DecodePool, Decoding
from service.telemetry.metrics import ModelMetrics

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What clients are told of a model."""

    name: str
    version: str  # digits
    image_shape: tuple[int, ...]  # H×W×C of the pixels that its engine takes
    scores: str  # what the model calls its output
    output: OutputKind
    labels: Sequence[str]  # empty: classes are named by their index


Scored = Answered[ScoreRow]
Outcome = Scored | Exception


class Pipeline:
    """A runner with its decoder and its bounds; used from one event loop."""

    def __init__(
        self,
        info: ModelInfo,
        runner: Runner,
        prepare: Callable[[bytes], Decoding],
        *,
        max_images: int,
        max_images_a_request: int,
        room: ByteRoom,
        decoders: DecodePool,
        reader: Workers,
        metrics: ModelMetrics,
        inside: Inside | None = None,
    ) -> None:
        """At most `max_images` wait or run, decoding included; `inside` counts them, also where
        there are other processes that let some in.
        """
        self.info = info
        self.classes = runner.classes
        self.max_batch = runner.max_batch
        self.device = runner.device
        self.metrics = metrics
        self.admission = Admission(
            max_images=max_images,
            max_images_a_request=max_images_a_request,
            room=room,
            expected_wait_s=runner.expected_wait_s,
            inside=inside,
        )
        self.runner = runner
        self.prepare = prepare
        self.decoders = decoders
        self.reader = reader
        self.metrics.pending = lambda: runner.depth
        self.metrics.watch(
            {
                "convoy_ready": (
                    "1 while requests are taken.",
                    lambda: float(runner.state is State.READY),
                ),
                "convoy_engine_restarts_total": (
                    "Restarts of an engine that hung or failed, tried.",
                    lambda: runner.restarts,
                ),
                "convoy_queue_depth": (
                    "Images waiting for a batch.",
                    lambda: runner.depth,
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
        return self.runner.state

    @property
    def latency(self) -> Latency:
        """How long batches take, as far as is known."""
        return self.runner.latency

    def check_ready(self) -> None:
        """Raise NotReadyError or ShuttingDownError unless new requests are taken."""
        check_ready(self.runner.state)

    async def warm_up(self) -> None:
        """Make the engine ready; raises what the engine raises."""
        await self.runner.warm_up()

    def aside(self, function: Callable[[T], R], argument: T) -> "asyncio.Future[R]":
        """Have a thread call `function(argument)`, which reads a long body."""
        return self.reader.run(function, argument)

    def refuse(self) -> None:
        """Take nothing new from now on."""
        self.runner.refuse()

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
        await self.runner.give_up()

    async def close(self, timeout_s: float) -> bool:
        """End it: what is still inside fails. False if the engine is stuck in a call."""
        return await self.runner.close(timeout_s)


class Scoring:
    """One request's way from its files, or pixels, to its scores: callbacks, and no task."""

    __slots__ = (
        *("files", "pixels", "urgency", "wanted"),
        *("pipeline", "visit", "received", "decode_s"),
        *("_at", "_decoded", "_then", "_undecoded"),
    )

    # What a request wants done, set once it is read.
    files: list[bytes]  # encoded images; none where there are pixels
    pixels: Sequence[Pixels] | Images | None  # H×W×C as `info.image_shape` says
    urgency: Urgency
    wanted: Any  # of the answer; for who makes it

    def __init__(self, pipeline: Pipeline, visit: Visit) -> None:
        self.pipeline = pipeline
        self.visit = visit
        self.received = 0.0  # perf_counter seconds, once the body is there; then decoding begins
        self.decode_s = 0.0  # what that took, reading included; to be told
        self._then: Callable[[Outcome], None] | None = None  # until the runner has it
        self._at = _NOTHING  # what is being done for it

    def score(self, then: Callable[[Outcome], None]) -> None:
        """Have the images decoded, where they are files, and scored; `then` is told of the outcome.

        Files are taken out of the list once they are decoded; pixels may be views of the body,
        which therefore counts until the visit ends.

        Raised or told: QueueFullError, TooManyImagesError: not admitted. ImageError,
        PayloadTooLargeError, UnsupportedMediaTypeError: one cannot be decoded. DeadlineError: they
        cannot be done in time, which is asked before they are decoded and after.
        EngineFailedError, ShuttingDownError.
        """
        pixels, files = self.pixels, self.files
        if pixels is not None:
            self.visit.admit(len(pixels))
            self._then = then
            self._post(list(pixels))
            return
        self.visit.admit(len(files))
        if self.urgency is not NO_HURRY:
            self.pipeline.runner.check_deadline(len(files), self.urgency)
        self._then = then
        self._decode(files)

    async def scored(self) -> Scored:
        """As `score`, for who awaits it."""
        outcome: asyncio.Future[Scored] = asyncio.get_running_loop().create_future()

        def settle(ended: Outcome) -> None:
            if outcome.done():  # cancelled, in this very turn
                return
            if isinstance(ended, Exception):
                outcome.set_exception(ended)
            else:
                outcome.set_result(ended)

        self.score(settle)
        try:
            return await outcome
        finally:
            self.withdraw()  # only where this was cancelled there is anything left to withdraw

    def withdraw(self) -> None:
        """Nobody wants to hear of it any longer."""
        self._then = None
        for each in self._at:
            each.withdraw()

    def _decode(self, files: list[bytes]) -> None:
        if sum(map(len, files)) <= _LONG_FILES:
            self._prepared(_prepare(files, self.pipeline.prepare), None)
            return
        prepare = partial(_prepare, prepare=self.pipeline.prepare)
        job = self.pipeline.reader.post(prepare, files, self._prepared)
        if job is not None:
            self._at = (job,)

    def _prepared(self, decodings: list[Decoding], error: Exception | None) -> None:
        """The headers are read: have the images decoded, all or none."""
        if error is not None:
            self._fail(error)
            return
        decoders = self.pipeline.decoders
        try:
            decoders.admit(*decodings)
        except ServiceError as refused:
            self._fail(refused)
            return
        if len(decodings) == 1:
            one = decoders.post(decodings[0], self._one_decoded)
            if one is not None:
                self._at = (one,)
            return
        self._decoded: list[Pixels | Exception] = [_NO_PIXELS] * len(decodings)
        self._undecoded = len(decodings)
        posted = (
            decoders.post(decoding, partial(self._some_decoded, place))
            for place, decoding in enumerate(decodings)
        )
        jobs = [job for job in posted if job is not None]
        if jobs:
            self._at = jobs

    def _post(self, pixels: Sequence[Pixels]) -> None:
        """Have the images scored."""
        self.decode_s = perf_counter() - self.received
        then = self._then
        if then is not None:
            self._at = (self.pipeline.runner.post(pixels, then, self.urgency),)
            self._then = None  # which may hold this

    def _one_decoded(self, pixels: Pixels, error: Exception | None) -> None:
        if error is not None:
            self._fail(error)
            return
        try:
            self.files.clear()
            self.visit.release_bytes()
            self._post((pixels,))
        except Exception as failure:  # noqa: BLE001  told to who wants to know
            self._fail(failure)

    def _some_decoded(self, place: int, pixels: Pixels, error: Exception | None) -> None:
        decoded = self._decoded
        decoded[place] = pixels if error is None else error
        self._undecoded -= 1
        if self._undecoded:
            return
        # All have ended, so that it is always the first bad image that is named.
        first = _first_failure(decoded)
        if first is not None:
            self._fail(first)
            return
        images = [each for each in decoded if not isinstance(each, Exception)]
        try:
            self.files.clear()
            self.visit.release_bytes()
            self._post(images)
        except Exception as failure:  # noqa: BLE001  told to who wants to know
            self._fail(failure)

    def _fail(self, failure: Exception) -> None:
        then, self._then = self._then, None
        self._at = _NOTHING
        if then is not None:
            then(failure)


_NOTHING: Sequence[Posted] = ()

# Bytes of files whose headers take longer to read than to hand to a thread.
_LONG_FILES = 2**18

_NO_PIXELS: Pixels = np.zeros((0, 0, 0), np.uint8)


def _prepare(files: list[bytes], prepare: Callable[[bytes], Decoding]) -> list[Decoding]:
    """What decoding each takes; raises what is wrong with the first that is, naming it."""
    decodings = []
    for place, file in enumerate(files):
        try:
            decodings.append(prepare(file))
        except ServiceError as error:
            raise _named(error, place, len(files)) from error
    return decodings


def _first_failure(outcomes: Sequence[Pixels | Exception]) -> Exception | None:
    """The first error there is, of several images naming which."""
    for place, outcome in enumerate(outcomes):
        if isinstance(outcome, ServiceError):
            return _named(outcome, place, len(outcomes))
        if isinstance(outcome, Exception):
            return outcome
    return None


def _named(error: ServiceError, place: int, images: int) -> ServiceError:
    """An error of one image of so many, which is said where there are several."""
    if images == 1:
        return error
    named = type(error)(f"image {place + 1} of {images}: {error}")
    named.__cause__ = error
    return named
