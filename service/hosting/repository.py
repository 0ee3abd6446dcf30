"""The models that one process serves: what they share, and what is done to all of them at once.

Each model has its own engine, engine thread, batcher and bound on images. They share the device,
where their batches take turns, the threads that decode, the room for bodies, the metrics.
"""

import asyncio
from collections.abc import Callable

from models import Engine, EngineError
from service.batching.turns import Turns
from service.engine.runner import EngineRunner, State
from service.engine.watchdog import Bounds
from service.engine.workers import Workers
from service.errors import ModelNotFoundError
from service.hosting.admission import ByteRoom
from service.hosting.pipeline import ModelInfo, Pipeline
from service.images.pool import DecodePool, Decoding
from service.telemetry.metrics import Metrics

# Room for bodies beside the largest one, for every image that may wait.
_BYTES_AN_IMAGE = 2**20

# For which each model's batches of every size are measured as it warms up.
_MEASURE_S = 1.0

# What an image may take to decode, where the largest that are taken need a second or two; and
# drivers to say how they are.
_DECODE_S = 60.0
_TELL_S = 10.0

# Where the model runs on the same cores, a decoded picture's batch is sooner done, and with it the
# event loop's turn to begin the next, than one more picture is wanted.
_DECODE_NICE = 5


class Repository:
    """Models by name, in the order in which they were added; used from one event loop."""

    def __init__(
        self,
        *,
        max_batch: int,
        max_queue: int,
        max_body_bytes: int,
        decode_threads: int,
        decode_bytes: int = 2**30,
        default: str | None = None,
        measure_s: float = _MEASURE_S,
        bounds: Bounds | None = None,
        decode_s: float = _DECODE_S,
    ) -> None:
        """`max_queue` is each model's; `default` names the model for who names none.

        Each model's batches of every size are timed for about `measure_s` seconds at first. What
        an engine may take is in `bounds`; to decode an image, `decode_s`. Decoding may take
        `decode_bytes` of memory at once.
        """
        self.max_body_bytes = max_body_bytes
        self.metrics = Metrics(max_batch=max_batch)
        self.models: dict[str, Pipeline] = {}
        self._default = default
        self._max_queue = max_queue
        self._room = ByteRoom(max_body_bytes + max_queue * _BYTES_AN_IMAGE)
        self._decoders = DecodePool(
            decode_threads, decode_bytes, bound_s=decode_s, nice=_DECODE_NICE
        )
        # One: reading a body holds the interpreter's lock, so that two would gain nothing.
        readers = min(1, decode_threads)
        self._reader = Workers("read", readers, bound_s=decode_s, nice=_DECODE_NICE)
        self.metrics.lost_decode_threads = lambda: self._decoders.lost + self._reader.lost
        self._teller = Workers("metrics", 1, bound_s=_TELL_S)
        self._turns = Turns()  # all models run on the one device
        self._measure_s = measure_s
        self._bounds = bounds
        self._failed = asyncio.Event()
        self._failure: EngineError | None = None

    def add(
        self,
        info: ModelInfo,
        engine: Engine,
        prepare: Callable[[bytes], Decoding],
        reopen: Callable[[], Engine] | None = None,
    ) -> Pipeline:
        """Serve one more model, which the repository closes in the end.

        `reopen` opens another engine of it, where the first hangs or fails again and again.
        """
        if info.name in self.models:
            raise ValueError(f"there are two models {info.name!r}")
        metrics = self.metrics.model(info.name, info.version)
        runner = EngineRunner(
            engine,
            info.image_shape,
            info.output,
            turns=self._turns,
            on_batch=metrics.batch,
            measure_s=self._measure_s,
            bounds=self._bounds,
            reopen=reopen,
            on_failure=self._fail,
        )
        metrics.engine = lambda: (runner.device, runner.fallback_reason)
        pipeline = Pipeline(
            info,
            runner,
            prepare,
            max_images=self._max_queue + runner.max_batch,
            max_images_a_request=self._max_queue,
            room=self._room,
            decoders=self._decoders,
            reader=self._reader,
            metrics=metrics,
        )
        self.models[info.name] = pipeline
        return pipeline

    @property
    def default(self) -> Pipeline | None:
        """The model for who names none: the one that was said, or the only one."""
        if self._default is not None:
            return self.models[self._default]
        return next(iter(self.models.values())) if len(self.models) == 1 else None

    def find(self, name: str, version: str | None = None) -> Pipeline:
        """A model; ModelNotFoundError, worded as Triton does, if it is not served."""
        pipeline = self.models.get(name)
        if pipeline is None:
            raise ModelNotFoundError(f"Request for unknown model: '{name}' is not found")
        if version is not None and version != pipeline.info.version:
            raise ModelNotFoundError(
                f"Request for unknown model: '{name}' version {version} is not found"
            )
        return pipeline

    @property
    def requests(self) -> int:
        """How many requests are inside."""
        return sum(pipeline.admission.requests for pipeline in self.models.values())

    @property
    def ready(self) -> bool:
        """Whether every model takes requests."""
        return all(pipeline.runner.state is State.READY for pipeline in self.models.values())

    def check_ready(self) -> None:
        """Raise NotReadyError or ShuttingDownError unless every model takes requests."""
        for pipeline in self.models.values():
            pipeline.runner.check_ready()

    def exposition(self) -> "asyncio.Future[bytes]":
        """Every metric in Prometheus' text format; a driver slow to tell holds nobody up."""
        return self._teller.run(Metrics.exposition, self.metrics)

    async def warm_up(self) -> None:
        """Make every engine ready, one after another; raises what an engine raises, naming it."""
        for name, pipeline in self.models.items():
            try:
                await pipeline.runner.warm_up()
            except EngineError as error:
                if len(self.models) == 1:
                    raise
                raise EngineError(f"{name}: {error}") from error

    async def failure(self) -> EngineError:
        """Wait until an engine is given up for good, and say why."""
        await self._failed.wait()
        assert self._failure is not None  # noqa: S101  set before the event; narrows the type
        return self._failure

    async def drain(self, timeout_s: float) -> bool:
        """Take nothing new and finish what is inside; False if `timeout_s` was too short."""
        for pipeline in self.models.values():
            pipeline.runner.refuse()
        drained = await asyncio.gather(*(p.drain(timeout_s) for p in self.models.values()))
        return all(drained)

    async def give_up(self) -> None:
        """Answer what waits or runs with ShuttingDownError."""
        await asyncio.gather(*(pipeline.runner.give_up() for pipeline in self.models.values()))

    async def close(self, timeout_s: float) -> bool:
        """End it: what is still inside fails. False if an engine is stuck in a call."""
        closed = await asyncio.gather(*(p.runner.close(timeout_s) for p in self.models.values()))
        self._decoders.close()
        self._reader.close()
        self._teller.close()
        return all(closed)

    def _fail(self, failure: EngineError) -> None:
        self._failure = self._failure or failure
        self._failed.set()
