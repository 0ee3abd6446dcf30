"""One model's engine, from decoded images to rows of scores: in batches, in a thread of its own.

A watchdog restarts an engine that hangs, or fails again and again:

    READY -> RESTARTING (503; the batch failed, and with it what waited) -> READY, or FAILED

An engine that is stuck is left behind with its thread. Where another in its place is no use
either, the runner is FAILED and says so, so that the process ends. A lost device is not healed
within a process: then no other engine is tried.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from enum import Enum, unique
from time import monotonic

from models import DeviceLostError, Engine, EngineError, OutputKind, Pixels
from service.batching.batcher import Batcher, BatchRecord
from service.batching.policy import NO_HURRY, Urgency
from service.batching.turns import Turns
from service.batching.waiting import Request, Then
from service.engine.ranking import ScoreRow
from service.engine.thread import EngineThread
from service.engine.watchdog import Bounds, Restarts
from service.errors import NotReadyError, ServiceError, ShuttingDownError, ThreadLostError

# So many batches that failed in a row are no accident any longer.
_FAILURES = 5

_log = logging.getLogger("convoy")


@unique
class State(Enum):
    """What a runner can do for a new request."""

    WARMING = "warming up"
    READY = "ready"
    RESTARTING = "restarting: its engine hung or failed"
    FAILED = "broken: its engine failed"
    DRAINING = "shutting down"


class EngineRunner:
    """A runner whose engine is in this process."""

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
        """`turns` are the device's, where other models run on it.

        Warming up measures L(n) for about `measure_s` seconds.

        `reopen` opens another engine of the same, in place of one that exceeds the `bounds`, or
        fails again and again; without it such an engine is FAILED, and one that fails is kept.
        `on_failure` is told when that is no use, or cannot be done.
        """
        self.classes = engine.classes
        self.max_batch = engine.max_batch
        self._described = engine
        self._image_shape = image_shape
        self._output = output
        self._measure_s = measure_s
        self._bounds = bounds or Bounds()
        self._reopen = reopen
        self._on_failure = on_failure
        self._engine: EngineThread | None = EngineThread(engine, image_shape, output)
        self._threads = [self._engine]  # all that were not closed, or are stuck
        self._restarting: asyncio.Task[None] | None = None
        self._recent = Restarts()
        self.restarts = 0  # tried so far
        self._warm_up_s = 0.0
        self._failures = 0  # in a row
        self.batcher = Batcher(
            self._run,
            max_batch=engine.max_batch,
            turns=turns,
            on_batch=on_batch,
        )
        self._state = State.WARMING

    @property
    def device(self) -> str:
        """Where it runs, for people."""
        return self._described.device

    @property
    def fallback_reason(self) -> str:
        """Why it runs on the CPU though `auto` looked for a GPU; empty where it was asked to."""
        return self._described.fallback_reason

    @property
    def state(self) -> State:
        """What it can do for a new request just now."""
        return self._state

    def check_ready(self) -> None:
        """Raise NotReadyError or ShuttingDownError unless new requests are taken."""
        state = self._state
        if state is State.READY:
            return
        if state is State.DRAINING:
            raise ShuttingDownError("the server is shutting down; send the request again elsewhere")
        raise NotReadyError(f"the model is {state.value}; try again in a second")

    def post(
        self, pixels: Sequence[Pixels], then: Then[ScoreRow], urgency: Urgency = NO_HURRY
    ) -> Request[Pixels, ScoreRow]:
        """Have images scored; as `Batcher.post`, or NotReadyError."""
        if self._engine is None:  # nothing to wait for, even for what was let in before
            self.check_ready()
        return self.batcher.post(pixels, then, urgency)

    async def warm_up(self) -> None:
        """Make the engine ready, in its thread, and measure it; raises what the engine raises."""
        (engine,) = self._threads
        bound_s, started = self._bounds.warm_up, monotonic()
        try:
            self.batcher.latency = await engine.warm_up(self._measure_s, bound_s)
        except ThreadLostError as error:
            self._state = State.FAILED
            raise EngineError(f"the engine is not warm within {bound_s:g} s") from error
        except Exception:
            self._state = State.FAILED
            raise
        self._warm_up_s = monotonic() - started
        if self._state is State.WARMING:  # not where draining began meanwhile
            self._state = State.READY

    def refuse(self) -> None:
        """Take nothing new from now on."""
        self._state = State.DRAINING

    async def give_up(self) -> None:
        """Answer what waits or runs with ShuttingDownError."""
        self.refuse()
        await self.batcher.close(timeout_s=0)

    async def close(self, timeout_s: float) -> bool:
        """End it: what is still inside fails. False if an engine is stuck in a call.

        A thread cannot be ended from outside, so then the process has to leave without it.
        """
        await self.give_up()
        if self._restarting:
            self._restarting.cancel()
        closings = [thread.close() for thread in self._threads]
        # Not cancelled where it takes too long: it is still called once an engine is free.
        _, stuck = await asyncio.wait(closings, timeout=timeout_s)
        return not stuck

    async def _run(self, images: Sequence[Pixels]) -> Sequence[ScoreRow]:
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
        """Leave an engine behind, which closes if it ever ends what it is at, and start another.

        Who waited is told at once, to go elsewhere: how long this takes nobody knows. Where the
        device is lost, no other is started.
        """
        engine.close()
        self._engine = None
        if self._state is State.DRAINING:
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
            self._state = State.RESTARTING
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
        except Exception as error:  # noqa: BLE001  whatever it is, `on_failure` hears of it
            self._fail(EngineError(f"the engine cannot be restarted: {error}"), error)
            return
        _log.warning("the engine is ready again after %.1f s", monotonic() - started)
        self._engine, self._failures = engine, 0
        self._described = engine.engine or self._described
        if self._state is State.RESTARTING:  # not where draining began meanwhile
            self._state = State.READY

    def _fail(self, failure: EngineError, cause: Exception | None = None) -> None:
        failure.__cause__ = cause
        if self._state is not State.DRAINING:
            self._state = State.FAILED
        self.batcher.fail_waiting(self._refusal)
        self._on_failure(failure)

    def _refusal(self) -> ServiceError:
        return NotReadyError(
            f"the model is {self._state.value}; try again in a few seconds, or elsewhere",
            self._warm_up_s,
        )
