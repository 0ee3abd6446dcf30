"""One model's engine, from decoded images to rows of scores: in batches, in a thread of its own."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from enum import Enum, unique
from time import perf_counter
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from models import Engine, EngineError, OutputKind
from service.batcher import Answer, Batcher, BatchRecord, Load
from service.errors import NotReadyError, ShuttingDownError
from service.labels import ScoreRow, rank
from service.latency import Latency, measure
from service.policy import NO_HURRY, Urgency
from service.turns import Turns
from service.waiting import Request
from service.workers import Workers

Pixels = NDArray[np.uint8]  # H×W×C, as the model wants them

Posted = Request[Pixels, Answer[ScoreRow]]

_log = logging.getLogger("convoy")


@unique
class State(Enum):
    """What a runner can do for a new request."""

    WARMING = "warming up"
    READY = "ready"
    FAILED = "broken: it failed to warm up"
    DRAINING = "shutting down"


class Runner(Protocol):
    """What makes images scores, in batches; used from one event loop."""

    classes: int
    max_batch: int
    device: str

    @property
    def state(self) -> State:
        """What it can do for a new request just now."""

    @property
    def depth(self) -> int:
        """How many images wait for a batch."""

    @property
    def latency(self) -> Latency:
        """How long batches take, as far as is known."""

    def expected_wait_s(self) -> float:
        """Seconds until all that is waiting or running now will have been run."""

    def check_deadline(self, count: int, urgency: Urgency) -> None:
        """Raise DeadlineError if `count` images that came now could not be expected in time."""

    async def submit(
        self, pixels: Sequence[Pixels], urgency: Urgency = NO_HURRY
    ) -> list[Answer[ScoreRow]]:
        """The scores of images, in order. QueueFullError, DeadlineError, EngineFailedError,
        ShuttingDownError.
        """

    async def warm_up(self) -> None:
        """Make it ready; raises what the engine raises."""

    def refuse(self) -> None:
        """Take nothing new from now on."""

    async def give_up(self) -> None:
        """Answer what waits or runs with ShuttingDownError."""

    async def close(self, timeout_s: float) -> bool:
        """End it: what is still inside fails. False if it is stuck."""


def check_ready(state: State) -> None:
    """Raise NotReadyError or ShuttingDownError in a state in which no requests are taken."""
    if state is State.READY:
        return
    if state is State.DRAINING:
        raise ShuttingDownError("the server is shutting down; send the request again elsewhere")
    raise NotReadyError(f"the model is {state.value}; try again in a second")


class EngineRunner:
    """A runner whose engine is in this process."""

    def __init__(
        self,
        engine: Engine,
        image_shape: tuple[int, ...],
        output: OutputKind,
        *,
        max_queue: int,
        turns: Turns | None = None,
        on_batch: Callable[[BatchRecord], None],
        measure_s: float = 0.0,
    ) -> None:
        """At most `max_queue` images wait. `turns` are the device's, where other models run on it;
        warming up measures L(n) for about `measure_s` seconds.
        """
        self.classes = engine.classes
        self.max_batch = engine.max_batch
        self.device = engine.device
        self._engine = engine
        self._image_shape = image_shape
        self._output = output
        self._measure_s = measure_s
        self._batcher = Batcher(
            self._run,
            max_batch=engine.max_batch,
            max_queue=max_queue,
            turns=turns,
            on_batch=on_batch,
        )
        self._thread = Workers("engine", 1)
        self._state = State.WARMING

    @property
    def state(self) -> State:
        """What it can do for a new request just now."""
        return self._state

    @property
    def depth(self) -> int:
        """How many images wait for a batch."""
        return self._batcher.depth

    @property
    def latency(self) -> Latency:
        """How long batches take, as far as is known."""
        return self._batcher.latency

    def expected_wait_s(self) -> float:
        """Seconds until all that is waiting or running now will have been run."""
        return self._batcher.expected_wait_s()

    def check_deadline(self, count: int, urgency: Urgency) -> None:
        """Raise DeadlineError if `count` images that came now could not be expected in time."""
        self._batcher.check_deadline(count, urgency)

    async def submit(
        self, pixels: Sequence[Pixels], urgency: Urgency = NO_HURRY
    ) -> list[Answer[ScoreRow]]:
        """The scores of images, in order; raises what `Batcher.submit` raises."""
        return await self._batcher.submit(pixels, urgency)

    def post(self, pixels: Sequence[Pixels], urgency: Urgency) -> Posted:
        """As `submit`, for who awaits the request's `outcome` otherwise, and withdraws it."""
        return self._batcher.post(pixels, urgency)

    def withdraw(self, request: Posted) -> None:
        """Take out what of a posted request is not dispatched yet."""
        self._batcher.withdraw(request)

    @property
    def load(self) -> Load:
        """What there is to do."""
        return self._batcher.load

    async def warm_up(self) -> None:
        """Make the engine ready, in its thread, and measure it; raises what the engine raises."""
        try:
            await self._thread.run(lambda _: self._engine.warm_up(), None)
            self._batcher.latency = await self._thread.run(self._measure, self._measure_s)
        except Exception:
            self._state = State.FAILED
            raise
        if self._state is State.WARMING:  # not where draining began meanwhile
            self._state = State.READY

    def refuse(self) -> None:
        """Take nothing new from now on."""
        self._state = State.DRAINING

    async def give_up(self) -> None:
        """Answer what waits or runs with ShuttingDownError."""
        self.refuse()
        await self._batcher.close(timeout_s=0)

    async def close(self, timeout_s: float) -> bool:
        """End it: what is still inside fails. False if the engine is stuck in a call.

        A thread cannot be ended from outside, so then the process has to leave without it.
        """
        await self.give_up()
        closing = self._thread.run(lambda _: self._engine.close(), None)
        self._thread.close()
        try:
            # Shielded: cancelled, it would not be called once the engine is free.
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(closing)
        except TimeoutError:
            return False
        return True

    def _measure(self, budget_s: float) -> Latency:
        """L(n) of the engine, in its thread; what the event loop adds is learned by serving."""
        blank = np.zeros(self._image_shape, np.uint8)

        def run(n: int) -> float:
            started = perf_counter()
            self._run_batch([blank] * n)
            return perf_counter() - started

        return measure(run, self.max_batch, budget_s=budget_s)

    async def _run(self, images: Sequence[Pixels]) -> Sequence[ScoreRow]:
        return await self._thread.run(self._run_batch, images)

    def _run_batch(self, images: Sequence[Pixels]) -> Sequence[ScoreRow]:
        """One batch, in the engine's thread."""
        try:
            scores = self._engine.run(images)
            if scores.shape != (len(images), self.classes):
                raise EngineError(
                    f"scores of shape {scores.shape} for {len(images)} images "
                    f"of {self.classes} classes"
                )
        except Exception:
            _log.exception("the engine failed on a batch of %d", len(images))
            raise
        return rank(scores, self._output)
