"""One model's engine, from decoded images to rows of scores: batches, in a thread of its own.

A watchdog restarts an engine that hangs or keeps failing:

    READY ── RESTARTING (the batch fails with 500, waiting requests with 503) ── READY, or FAILED

A hung engine is abandoned with its thread. FAILED is final, and reported so that the process can
end. After a lost device no other engine is tried: only a new process helps.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from enum import Enum, unique
from math import inf
from time import monotonic

from models import DeviceLostError, Engine, EngineError, Image, OutputKind
from service.batching.batcher import Batcher, BatchRecord
from service.batching.device_turns import Turns
from service.batching.policy import NO_HURRY, Urgency
from service.batching.queue import OnOutcome, Request
from service.engine.engine_thread import EngineThread
from service.engine.ranking import ScoreRow
from service.engine.watchdog import Bounds, Restarts
from service.errors import NotReadyError, ServiceError, ShuttingDownError, ThreadLostError

# Batches that fail in a row before the engine is restarted.
_FAILURES = 5

_log = logging.getLogger("convoy")


@unique
class State(Enum):
    """Whether a runner takes requests, and why not; the value goes into error messages."""

    WARMING = "warming up"
    READY = "ready"
    RESTARTING = "restarting: its engine hung or failed"
    FAILED = "broken: its engine failed"
    DRAINING = "shutting down"

    def check_ready(self) -> None:
        """Raise NotReadyError or ShuttingDownError unless new requests are taken."""
        if self is State.READY:
            return
        if self is State.DRAINING:
            raise ShuttingDownError("the server is shutting down; send the request again elsewhere")
        raise NotReadyError(f"the model is {self.value}; try again in a second")


class EngineRunner:
    """Batches requests for one engine, and restarts it."""

    def __init__(
        self,
        engine: Engine,
        image_shape: tuple[int, ...],
        output: OutputKind,
        *,
        turns: Turns | None = None,
        on_batch: Callable[[BatchRecord], None],
        measure_s: float = 0.0,
        bounds: Bounds | None = None,
        reopen: Callable[[], Engine] | None = None,
        on_failure: Callable[[EngineError], None] = lambda _: None,
    ) -> None:
        """`turns` are shared by the models on one device.

        Warming up measures L(n) for about `measure_s` seconds. `reopen` opens a new engine after
        one that exceeds the `bounds` or fails repeatedly; without it the former makes the runner
        FAILED, and the latter is kept. `on_failure` is called when the runner is FAILED.
        """
        self.classes = engine.classes
        self.max_batch = engine.max_batch
        self._described = engine
        self.state = State.WARMING
        self.restarts = 0  # tried so far
        self.batcher = Batcher(
            self._run, max_batch=engine.max_batch, turns=turns, on_batch=on_batch
        )
        self._image_shape = image_shape
        self._output = output
        self._measure_s = measure_s
        self._bounds = bounds or Bounds()
        self._reopen = reopen
        self._on_failure = on_failure
        self._engine: EngineThread | None = EngineThread(engine, image_shape, output)
        self._threads = [self._engine]  # those not yet closed, stuck ones included
        self._restarting: asyncio.Task[None] | None = None
        self._recent = Restarts()
        self._warm_up_s = 0.0
        self._failures = 0  # in a row

    @property
    def device(self) -> str:
        """The device's name."""
        return self._described.device

    @property
    def fallback_reason(self) -> str:
        """Why the model runs on the CPU where `auto` looked for a GPU; otherwise empty."""
        return self._described.fallback_reason

    def post(
        self, images: Sequence[Image], then: OnOutcome[ScoreRow], urgency: Urgency = NO_HURRY
    ) -> Request[Image, ScoreRow]:
        """Score images, as `Batcher.post` runs items; or NotReadyError."""
        if self._engine is None:  # refuses requests that were admitted earlier, too
            self.state.check_ready()
        return self.batcher.post(images, then, urgency)

    async def warm_up(self) -> None:
        """Warm the engine up and measure it; raises what the engine raises."""
        (engine,) = self._threads
        bound_s, started = self._bounds.warm_up_s or inf, monotonic()
        try:
            self.batcher.latency = await engine.warm_up(self._measure_s, bound_s)
        except Exception as error:
            self.state = State.FAILED
            if isinstance(error, ThreadLostError):
                raise EngineError(f"the engine is not warm within {bound_s:g} s") from error
            raise
        self._warm_up_s = monotonic() - started
        if self.state is State.WARMING:  # draining may have begun
            self.state = State.READY

    def refuse(self) -> None:
        """Take no new requests."""
        self.state = State.DRAINING

    async def give_up(self) -> None:
        """Fail waiting and running requests with ShuttingDownError."""
        self.refuse()
        await self.batcher.close(timeout_s=0)

    async def close(self, timeout_s: float) -> bool:
        """Fail all requests and close the engine; False if a call does not return in time.

        The thread of that call cannot be ended, so the process has to exit without it.
        """
        await self.give_up()
        if self._restarting:
            self._restarting.cancel()
        closings = [thread.close() for thread in self._threads]
        # A timeout cancels nothing: an engine that is free again is still closed.
        _, stuck = await asyncio.wait(closings, timeout=timeout_s)
        return not stuck

    async def _run(self, images: Sequence[Image]) -> Sequence[ScoreRow]:
        engine, size = self._engine, len(images)
        if engine is None:
            raise EngineError("there is no engine")
        bound_s = self._bounds.batch(self.batcher.latency, size)
        try:
            rows = await engine.run(images, bound_s)
        except ThreadLostError:
            self._replace(engine, f"it did not end a batch of {size} within {bound_s:.1f} s")
            raise
        except DeviceLostError as error:
            self._replace(engine, str(error), lost=True)
            raise
        except Exception as error:
            self._failures += 1
            if self._failures == _FAILURES and self._reopen is not None:
                self._replace(engine, f"it failed on {_FAILURES} batches in a row: {error}")
            raise
        self._failures = 0
        return rows

    def _replace(self, engine: EngineThread, why: str, *, lost: bool = False) -> None:
        """Abandon an engine, which closes once it is free, and start another if not `lost`.

        Waiting requests fail at once and can go elsewhere, since a restart takes any time.
        """
        engine.close()
        self._engine = None
        if self.state is State.DRAINING:
            _log.error("the engine is given up: %s", why)
            self.batcher.fail_waiting(
                lambda: ShuttingDownError("the engine failed while the server was shutting down")
            )
        elif lost:
            self._fail(DeviceLostError(f"the device is lost: {why}"))
        elif self._reopen is None or not self._recent.another(monotonic()):
            self._fail(EngineError(f"the engine is given up for good: {why}"))
        else:
            _log.error("the engine is restarted: %s", why)
            self.state = State.RESTARTING
            self.batcher.fail_waiting(self._refusal)
            self.restarts += 1
            self._restarting = asyncio.create_task(self._restart(self._reopen))

    async def _restart(self, reopen: Callable[[], Engine]) -> None:
        bound_s, started = self._bounds.restart(self._warm_up_s), monotonic()
        engine = EngineThread(None, self._image_shape, self._output)
        self._threads = [thread for thread in self._threads if not thread.closed] + [engine]
        try:
            await engine.open(reopen, bound_s)
            self.batcher.latency = await engine.warm_up(self._measure_s, bound_s)
        except Exception as error:  # noqa: BLE001  passed to `on_failure`
            self._fail(EngineError(f"the engine cannot be restarted: {error}"), error)
            return
        _log.warning("the engine is ready again after %.1f s", monotonic() - started)
        self._engine, self._failures = engine, 0
        self._described = engine.engine or self._described
        if self.state is State.RESTARTING:  # draining may have begun
            self.state = State.READY

    def _fail(self, failure: EngineError, cause: Exception | None = None) -> None:
        failure.__cause__ = cause
        if self.state is not State.DRAINING:
            self.state = State.FAILED
        self.batcher.fail_waiting(self._refusal)
        self._on_failure(failure)

    def _refusal(self) -> ServiceError:
        return NotReadyError(
            f"the model is {self.state.value}; try again in a few seconds, or elsewhere",
            self._warm_up_s,
        )
