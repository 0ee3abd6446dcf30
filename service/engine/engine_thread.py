"""An engine and the one thread that calls it."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from math import inf
from time import perf_counter

import numpy as np

from models import Batch, Engine, EngineError, OutputKind
from service.batching.latency import Latency, measure
from service.engine.ranking import ScoreRow, rank
from service.engine.threads import Workers

# How often a long warm-up is logged.
_REMIND_S = 60.0

# After a batch shorter than _QUICK_S the event loop blocks on the next one, at most _PATIENCE_S:
# a handover and a wake-up take longer.
_QUICK_S = 0.0001
_PATIENCE_S = 0.0005

_log = logging.getLogger("convoy")


class EngineThread:
    """An engine from opening to closing.

    A call that exceeds its bound, or whose thread dies, raises ThreadLostError. Later calls wait
    until the thread is free, which may be never.
    """

    def __init__(
        self, engine: Engine | None, image_shape: tuple[int, ...], output: OutputKind
    ) -> None:
        """With no engine, `open` comes first."""
        self._engine = engine
        self._image_shape = image_shape
        self._output = output
        self._workers = Workers("engine", 1, replaced=False)
        self._closing: asyncio.Future[None] | None = None
        self._took_s = inf  # the last batch

    async def open(self, open_engine: Callable[[], Engine], bound_s: float) -> None:
        """Open an engine; raises what `open_engine` raises."""
        await self._workers.run(self._open, open_engine, bound_s)

    async def warm_up(self, measure_s: float, bound_s: float = inf) -> Latency:
        """Warm up, then measure L(n) for about `measure_s`; raises what the engine raises."""
        warming = self._workers.run(self._warm_up, measure_s, bound_s)
        started = perf_counter()
        while not (await asyncio.wait([warming], timeout=_REMIND_S))[0]:
            _log.warning("the engine has been warming up for %d s", perf_counter() - started)
        return warming.result()

    def run(self, images: Batch, bound_s: float) -> "asyncio.Future[Sequence[ScoreRow]]":
        """The scores of a batch."""
        patience_s = _PATIENCE_S if self._took_s < _QUICK_S else 0.0
        return self._workers.run(self._run, images, bound_s, patience_s)

    def close(self) -> "asyncio.Future[None]":
        """Close the engine and end the thread, once it is free."""
        if self._closing is None:
            self._closing = self._workers.run(self._close, None)
            self._workers.close()
        return self._closing

    @property
    def engine(self) -> Engine | None:
        """The engine that it runs; None until `open` has opened it."""
        return self._engine

    @property
    def closed(self) -> bool:
        """Whether the engine is closed."""
        return self._closing is not None and self._closing.done()

    def _open(self, open_engine: Callable[[], Engine]) -> None:
        self._engine = open_engine()

    def _warm_up(self, measure_s: float) -> Latency:
        engine = self._opened()
        engine.warm_up()
        blank = np.zeros(self._image_shape, np.uint8)

        def run(n: int) -> float:
            started = perf_counter()
            self._run([blank] * n)
            return perf_counter() - started

        # Without the event loop's own time, which is learned while serving.
        return measure(run, engine.max_batch, budget_s=measure_s)

    def _run(self, images: Batch) -> Sequence[ScoreRow]:
        engine = self._opened()
        started = perf_counter()
        try:
            scores = engine.run(images)
            if scores.shape != (len(images), engine.classes):
                raise EngineError(
                    f"scores of shape {scores.shape} for {len(images)} images "
                    f"of {engine.classes} classes"
                )
        except Exception:
            self._took_s = inf
            _log.exception("the engine failed on a batch of %d", len(images))
            raise
        self._took_s = perf_counter() - started
        return rank(scores, self._output, engine.ranked)

    def _opened(self) -> Engine:
        if self._engine is None:
            raise EngineError("the engine is not open")
        return self._engine

    def _close(self, _: None) -> None:
        try:
            if self._engine is not None:
                self._engine.close()
        except Exception:  # noqa: BLE001  an engine that failed may fail to close, too
            _log.exception("the engine could not be closed")
