"""One model, from the bytes of images to their scores, with its bounds and its counts."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from models import OutputKind
from service.engine.runner import EngineRunner, State
from service.engine.workers import Workers
from service.hosting.admission import Admission, ByteRoom, Reservation
from service.hosting.inference import Inference, Outcome, Wanted
from service.images.pool import DecodePool, Decoding
from service.telemetry.metrics import ModelMetrics


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What clients are told of a model."""

    name: str
    version: str  # digits
    image_shape: tuple[int, ...]  # H×W×C of the pixels that its engine takes
    scores: str  # what the model calls its output
    output: OutputKind
    labels: Sequence[str]  # empty: classes are named by their index


class Pipeline:
    """A runner with its decoders and its bounds; used from one event loop."""

    def __init__(
        self,
        info: ModelInfo,
        runner: EngineRunner,
        prepare: Callable[[bytes], Decoding],
        *,
        max_images: int,
        max_images_a_request: int,
        room: ByteRoom,
        decoders: DecodePool,
        reader: Workers,
        metrics: ModelMetrics,
    ) -> None:
        """At most `max_images` wait or run, decoding included. `reader` reads long bodies."""
        self.info = info
        self.runner = runner
        self.prepare = prepare
        self.decoders = decoders
        self.reader = reader
        self.metrics = metrics
        self.admission = Admission(
            max_images=max_images,
            max_images_a_request=max_images_a_request,
            room=room,
            expected_wait_s=runner.batcher.expected_wait_s,
        )
        metrics.pending = lambda: runner.batcher.depth
        metrics.watch(
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
                    lambda: runner.batcher.depth,
                ),
                "convoy_images_inside": (
                    "Images from before they are decoded until they are answered.",
                    lambda: self.admission.images,
                ),
            }
        )

    def start(
        self, wanted: Wanted, reservation: Reservation, then: Callable[[Outcome], None]
    ) -> Inference:
        """Have what a request wants done; see `Inference.start` for what it raises or is told."""
        inference = Inference(self, reservation, then)
        inference.start(wanted)
        return inference

    async def drain(self, timeout_s: float) -> bool:
        """Take nothing new and finish what is inside; False if `timeout_s` was too short."""
        self.runner.refuse()
        try:
            async with asyncio.timeout(timeout_s):
                await self.admission.emptied()
        except TimeoutError:
            return False
        return True
