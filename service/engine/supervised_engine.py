"""One engine with its thread and its watchdog.

    WARMING ── READY ── RESTARTING ── READY, or FAILED

A model whose engine did not warm up is BROKEN where others are served without it.

An engine that hangs is abandoned with its thread, and one that keeps failing is closed; another
takes its place. FAILED is final. After a lost device no other engine is tried: only a new process
helps.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from enum import Enum, unique
from math import inf
from time import monotonic

from models import DeviceLostError, Engine, EngineError, Image, OutputKind
from service.batching.latency import Latency
from service.engine.engine_thread import EngineThread
from service.engine.ranking import ScoreRow
from service.engine.watchdog import Bounds, Restarts
from service.errors import NotReadyError, ShuttingDownError, ThreadLostError

# Batches that fail in a row before the engine is restarted.
_FAILURES = 5

_log = logging.getLogger("convoy")


@unique
class State(Enum):
    """Whether a model or an engine takes requests, and why not; used in error messages."""

    WARMING = "warming up"
    READY = "ready"
    RESTARTING = "restarting: its engine hung or failed"
    FAILED = "broken: its engine failed"
    BROKEN = "broken: its engine did not warm up"
    DRAINING = "shutting down"

    def check_ready(self) -> None:
        """Raise NotReadyError or ShuttingDownError unless new requests are taken."""
        if self is State.READY:
            return
        if self is State.DRAINING:
            raise ShuttingDownError("the server is shutting down; send the request again elsewhere")
        advice = "the log says why" if self is State.BROKEN else "try again in a second"
        raise NotReadyError(f"the model is {self.value}; {advice}")


class SupervisedEngine:
    """An engine that is restarted where it hangs or keeps failing; used from one event loop."""

    def __init__(
        self,
        engine: Engine,
        image_shape: tuple[int, ...],
        output: OutputKind,
        *,
        name: str,
        latency: Callable[[], Latency],
        on_change: Callable[["SupervisedEngine"], None],
        measure_s: float = 0.0,
        bounds: Bounds | None = None,
        reopen: Callable[[], Engine] | None = None,
    ) -> None:
        """`name` is for the log; `latency` is how long batches take now.

        Warming up measures L(n) for about `measure_s` seconds. `reopen` opens a new engine after
        one that exceeds the `bounds` or fails repeatedly; without it the former is FAILED, and the
        latter is kept. `on_change` is called when the state changes after the first warm-up.
        """
        self.described = engine  # the last that was open
        self.state = State.WARMING
        self.restarts = 0  # tried so far
        self.failure: EngineError | None = None  # why it is FAILED
        self.warm_up_s = 0.0
        self.given_up = False  # set where a failure is not to be followed by a restart
        self._image_shape = image_shape
        self._output = output
        self._name = name
        self._latency = latency
        self._on_change = on_change
        self._measure_s = measure_s
        self._bounds = bounds or Bounds()
        self._reopen = reopen
        self._engine = EngineThread(engine, image_shape, output)
        self._threads = [self._engine]  # those not yet closed, stuck ones included
        self._restarting: asyncio.Task[None] | None = None
        self._recent = Restarts()
        self._failures = 0  # in a row
        self.measured = Latency.unknown(engine.max_batch)  # by the last warm-up

    async def warm_up(self) -> None:
        """Warm the engine up and measure it; raises what the engine raises."""
        bound_s, started = self._bounds.warm_up_s or inf, monotonic()
        try:
            self.measured = await self._engine.warm_up(self._measure_s, bound_s)
        except Exception as error:
            self.state = State.FAILED
            if isinstance(error, ThreadLostError):
                raise EngineError(f"{self._name} is not warm within {bound_s:g} s") from error
            raise
        self.warm_up_s = monotonic() - started
        self.state = State.READY

    async def run(self, images: Sequence[Image]) -> Sequence[ScoreRow]:
        """The scores of a batch."""
        if self.state in (State.RESTARTING, State.FAILED):
            raise EngineError(f"{self._name} is {self.state.value}")
        engine, size = self._engine, len(images)
        bound_s = self._bounds.batch(self._latency(), size)
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

    def close(self) -> "list[asyncio.Future[None]]":
        """Close the engine, and those that were abandoned, each once it is free."""
        if self._restarting:
            self._restarting.cancel()
        return [thread.close() for thread in self._threads]

    def _replace(self, engine: EngineThread, why: str, *, lost: bool = False) -> None:
        """Abandon an engine, which closes once it is free, and start another if not `lost`."""
        engine.close()
        if self.given_up:
            self._fail(EngineError(f"{self._name} is given up: {why}"))
        elif lost:
            self._fail(DeviceLostError(f"the device is lost: {why}"))
        elif self._reopen is None or not self._recent.another(monotonic()):
            self._fail(EngineError(f"{self._name} is given up for good: {why}"))
        else:
            _log.error("%s is restarted: %s", self._name, why)
            self.restarts += 1
            self._restarting = asyncio.create_task(self._restart(self._reopen))
            self._become(State.RESTARTING)

    async def _restart(self, reopen: Callable[[], Engine]) -> None:
        bound_s, started = self._bounds.restart(self.warm_up_s), monotonic()
        engine = EngineThread(None, self._image_shape, self._output)
        self._threads = [thread for thread in self._threads if not thread.closed] + [engine]
        try:
            await engine.open(reopen, bound_s)
            self.measured = await engine.warm_up(self._measure_s, bound_s)
        except Exception as error:  # noqa: BLE001  the cause of `failure`
            self._fail(EngineError(f"{self._name} cannot be restarted: {error}"), error)
            return
        _log.warning("%s is ready again after %.1f s", self._name, monotonic() - started)
        self._engine, self._failures = engine, 0
        self.described = engine.engine or self.described
        self._become(State.READY)

    def _fail(self, failure: EngineError, cause: Exception | None = None) -> None:
        failure.__cause__ = cause
        self.failure = failure
        self._become(State.FAILED)

    def _become(self, state: State) -> None:
        self.state = state
        self._on_change(self)
