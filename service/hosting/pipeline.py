"""One served model: from the bytes of images to their scores, with its bounds and metrics."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from models import ChannelOrder, OutputKind
from service.engine.runner import EngineRunner
from service.engine.supervised_engine import State
from service.engine.threads import Workers
from service.hosting.admission import Admission, ByteRoom, Reservation
from service.hosting.inference import Inference, Outcome, Wanted
from service.images.decode_pool import DecodePool, Decoding
from service.telemetry.metrics import ModelMetrics


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model's metadata."""

    name: str
    version: str  # digits
    image_shape: tuple[int, ...]  # H×W×C, the engine's input
    scores: str  # the output's name in the model
    output: OutputKind
    labels: Sequence[str]  # empty: clients see class indices alone
    channels: ChannelOrder = ChannelOrder.RGB  # the engine's; clients send RGB, or grey
    tensor: str = ""  # the name of the model's own input; empty: clients cannot send that
    tensor_shape: tuple[int, ...] = ()  # of one image in that input, float32


class Pipeline:
    """A runner with its decoders and bounds; used from one event loop."""

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
        """At most `max_images` are decoded, queued or running. `reader` parses long bodies."""
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
        metrics.engines = lambda: runner.engines
        metrics.pending = lambda: runner.batcher.depth
        metrics.watch(
            {
                "convoy_ready": (
                    "1 while the model accepts requests.",
                    lambda: float(runner.state is State.READY),
                ),
                "convoy_queue_depth": (
                    "Images waiting for a batch.",
                    lambda: runner.batcher.depth,
                ),
                "convoy_images_inside": (
                    "Images inside, from admission to answer.",
                    lambda: self.admission.images,
                ),
            }
        )

    def start(
        self, wanted: Wanted, reservation: Reservation, then: Callable[[Outcome], None]
    ) -> Inference:
        """Begin a request's work; for its errors see `Inference.start`."""
        inference = Inference(self, reservation, then)
        inference.start(wanted)
        return inference

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new requests and finish those inside; False if `timeout_s` was too short."""
        self.runner.refuse()
        try:
            async with asyncio.timeout(timeout_s):
                await self.admission.emptied()
        except TimeoutError:
            return False
        return True
