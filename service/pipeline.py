"""From the bytes of images to their scores: everything between HTTP and one model's runner.

    admit -> decode (threads) -> runner (batches, in the engine's thread) -> scores

Whatever is inside is bounded: see `service/admission.py`.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TypeVar

from models import Images, OutputKind
from service.admission import Admission, ByteRoom, Inside, Visit
from service.errors import ServiceError
from service.labels import ScoreRow
from service.latency import Latency
from service.metrics import ModelMetrics
from service.policy import NO_HURRY, Urgency
from service.runner import Pixels, Runner, State, check_ready
from service.workers import Workers

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


@dataclass(frozen=True, slots=True)
class Scored:
    """A request's scores, one row an image in order, and where its time went, in seconds.

    Batches run one after another, so the last image's wait covers the request's others.
    """

    rows: list[ScoreRow]
    decode_s: float
    queue_s: float
    compute_s: float
    batch: int  # images in the batch of its last one


class Pipeline:
    """A runner with its decoder and its bounds; used from one event loop."""

    def __init__(
        self,
        info: ModelInfo,
        runner: Runner,
        decode: Callable[[bytes], Pixels],
        *,
        max_images: int,
        max_images_a_request: int,
        room: ByteRoom,
        decoders: Workers,
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
        self.decode = decode
        self._decoders = decoders
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
        self.runner.check_deadline(len(files), urgency)
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

    async def _score(self, pixels: Sequence[Pixels], since: float, urgency: Urgency) -> Scored:
        decode_s = perf_counter() - since
        answers = await self.runner.submit(pixels, urgency)
        last = answers[-1]
        return Scored(
            [answer.result for answer in answers],
            decode_s=decode_s,
            queue_s=last.queue_ms / 1e3,
            compute_s=last.compute_ms / 1e3,
            batch=last.batch_size,
        )

    async def _decode(self, files: Sequence[bytes]) -> list[Pixels]:
        jobs = [self._decoders.run(self.decode, file) for file in files]
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
