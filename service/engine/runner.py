"""Runs a model's engines, which compute scores from images. The engines share one queue, and each
has a thread.

A batch goes to an idle engine. While one engine restarts (`service/engine/supervised_engine.py`),
the others serve. After an engine has failed, the states of all engines decide the runner's state:

    engines           one is READY   none is, one is RESTARTING   all are FAILED
    runner            READY          RESTARTING                   FAILED
    failed batch      status 500     status 500                   status 500
    waiting requests  wait           status 503                   status 503

FAILED is final. The runner reports it so that the process can end.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple

from models import Engine, EngineError, Image, Kind, OutputKind
from service.batching.batcher import Batcher
from service.batching.company import Company
from service.batching.device_turns import DeviceTurns
from service.batching.latency import Latency
from service.batching.policy import NO_HURRY, SHORT_S, SHORT_WITH_DECODING_S, Urgency
from service.batching.queue import BatchRecord, OnOutcome, Posted
from service.engine.ranking import ScoreRow
from service.engine.supervised_engine import Item, Jobs, Probe, State, SupervisedEngine
from service.engine.undecoded import Sample, Undecoded
from service.engine.watchdog import Bounds
from service.errors import NotReadyError, ServiceError, ShuttingDownError
from service.fair_queue import ANYONE, Client
from service.folders import without_folders

# When clients take turns, an image counts at least as this part of a usual image.
_LEAST_COST = 0.2

_log = logging.getLogger("convoy")


class EngineStatus(NamedTuple):
    """Describes one engine, for metrics."""

    device: str
    precision: str
    fallback_reason: str  # why it is on the CPU where `auto` looked for a GPU; else empty
    layers: str  # of a quantized model: those on integers and those in float; else empty
    ready: bool
    max_batch: int  # 1 if warming up shows that larger batches change scores
    restarts: int
    batches: int
    images: int
    busy_s: float


def layers_of(engines: Sequence[EngineStatus]) -> str:
    """Return the engines' descriptions of a quantized model's layers, without repetition."""
    return ". ".join(dict.fromkeys(engine.layers for engine in engines if engine.layers))


class Elsewhere(NamedTuple):
    """Says how to start processes that also run an engine's batches, and how many batches these
    processes take at once."""

    start: Callable[[Engine], Jobs | None]  # of a warm engine; None: it cannot
    turns: Sequence[DeviceTurns]  # for each additional batch at a time


class EngineRunner:
    """Collects the requests for one model into batches, runs them on the model's engines, and
    restarts engines that fail."""

    def __init__(
        self,
        engines: Sequence[Engine],
        image_shape: tuple[int, ...],
        output: OutputKind,
        *,
        turns: Sequence[DeviceTurns] = (),
        on_batch: Callable[[BatchRecord], None],
        company: Company | None = None,
        measure_s: float = 0.0,
        known: Latency | None = None,
        sample: Sample | None = None,
        bounds: Bounds | None = None,
        reopen: Callable[[int], Engine] | None = None,
        elsewhere: Elsewhere | None = None,
        on_failure: Callable[[EngineError], None] = lambda _: None,
    ) -> None:
        """`turns` has one object per engine. Engines on the same device have the same object, which
        lets only one of them run at a time.

        `measure_s`, `known`, `sample` and `bounds` are arguments of each SupervisedEngine. `reopen`
        takes the number of the engine to replace. If there is only one engine and it decodes
        images, the processes of `elsewhere` may also run its batches. `on_failure` is called when
        the runner becomes FAILED.
        """
        self.classes = engines[0].classes
        self.state = State.WARMING
        self.failure = ""  # why it is broken
        self.decodes = False  # once warm, whether its jobs decode the images that they run
        self._engines = [
            SupervisedEngine(
                engine,
                image_shape,
                output,
                name=f"engine {number} of {len(engines)}" if len(engines) > 1 else "the engine",
                on_change=self._follow,
                measure_s=measure_s,
                known=known,
                # Without a time limit, a job whose decoder hangs could not be abandoned, so jobs do
                # not decode.
                sample=None if bounds is not None and bounds.batch_s == 0 else sample,
                bounds=bounds,
                reopen=partial(reopen, number) if reopen else None,
            )
            for number, engine in enumerate(engines)
        ]
        self._serving = len(engines)
        self._elsewhere = elsewhere
        # For each engine, the batcher's numbers of the batches that run at the same time.
        self._numbers = [[number] for number in range(len(engines))]
        self._on_failure = on_failure
        self.batcher = Batcher(
            *(engine.run for engine in self._engines),
            max_batch=self.max_batch,
            turns=turns,
            on_batch=on_batch,
            company=company,
        )

    @property
    def max_batch(self) -> int:
        """Return the size of the largest batch that an engine takes."""
        return max(engine.engine.max_batch for engine in self._engines)

    @property
    def device(self) -> str:
        """Return the names of the engines' devices without repetition."""
        return ", ".join(dict.fromkeys(engine.device for engine in self.engines))

    @property
    def precision(self) -> str:
        """Return the engines' precisions without repetition."""
        return ", ".join(dict.fromkeys(engine.precision for engine in self.engines))

    @property
    def layers(self) -> str:
        """Return the engines' descriptions of a quantized model's layers, without repetition."""
        return layers_of(self.engines)

    @property
    def takes(self) -> Kind:
        """Return the highest `Kind` of image that every engine accepts. An engine also accepts all
        lower kinds."""
        first, *others = self._engines  # mostly one: this runs once per request
        takes = first.engine.takes
        return min(takes, *(engine.engine.takes for engine in others)) if others else takes

    @property
    def decoding_jobs(self) -> int:
        """Return how many images the engines' threads and processes may decode at the same time."""
        return sum(map(len, self._numbers)) if self.decodes else 0

    @property
    def lost_to_decoders(self) -> int:
        """Return how many of the engines' threads and processes have crashed or hung so far. A
        decoder is usually the cause."""
        jobs = (engine.jobs.lost for engine in self._engines if engine.jobs is not None)
        return sum(engine.lost_to_decoders for engine in self._engines) + sum(jobs)

    @property
    def ready_processes(self) -> int:
        """Return how many job processes are ready to run the engines' batches."""
        return sum(engine.jobs.ready for engine in self._engines if engine.jobs is not None)

    @property
    def engines(self) -> Sequence[EngineStatus]:
        """Return each engine's current status, in the order of the devices."""
        return [
            EngineStatus(
                engine.engine.device,
                engine.engine.precision.value,
                engine.engine.fallback_reason,
                engine.engine.layers,
                engine.state is State.READY,
                engine.engine.max_batch,
                engine.restarts,
                *self._ran(number),
            )
            for number, engine in enumerate(self._engines)
        ]

    def _ran(self, number: int) -> tuple[int, int, float]:
        """Return how many batches and images an engine has run, and for how many seconds it was
        busy. If the engine can run k batches at a time, the seconds are the sum over all batches,
        divided by k."""
        numbers = self._numbers[number]
        batches, images, seconds = zip(*map(self.batcher.ran, numbers), strict=True)
        return sum(batches), sum(images), sum(seconds) / len(numbers)

    def post(
        self,
        images: Sequence[Image | Undecoded],
        then: OnOutcome[ScoreRow],
        urgency: Urgency = NO_HURRY,
        client: Client = ANYONE,
        inner: Collection[str] = (),
        *,
        averaged: bool = False,
    ) -> Posted[Item, ScoreRow]:
        """Queue images for scoring like `Batcher.post`. `inner` names the tensors inside the
        network to return with the scores. If `averaged`, their averages over all positions are
        returned instead.

        If the engines also decode images, an image with a longer expected decoding time uses more
        of its client's fair share. Raises NotReadyError if no engine is READY.
        """
        if not self._serving:  # refuses requests that were admitted earlier, too
            self.check_ready()
        items = [Probe(image, inner, averaged) for image in images] if inner else images
        cost = self._cost(images) if self.decodes else 1.0
        return self.batcher.post(items, then, urgency, client, cost)

    def _cost(self, images: Sequence[Image | Undecoded]) -> float:
        seconds = [image.expected_s for image in images if isinstance(image, Undecoded)]
        usual_s = self._engines[0].decode_s * len(seconds)
        return max(sum(seconds) / usual_s, _LEAST_COST) if usual_s else 1.0

    def check_ready(self) -> None:
        """Raise NotReadyError or ShuttingDownError if new requests are not accepted."""
        if self.state is State.READY:
            return
        if self.state is State.DRAINING:
            raise ShuttingDownError("the server is shutting down; try again on another server")
        advice = "see the server's log" if self.state is State.BROKEN else "try again in a second"
        raise NotReadyError(f"the model is {self.state.value}; {advice}")

    async def try_out(self, image: Image) -> ScoreRow:
        """Run one image on the first engine, and return its scores. The image skips the queue, and
        runs even if no engine is READY."""
        (row,) = await self._engines[0].run([image])
        return row

    async def warm_up(self) -> None:
        """Warm up the engines and measure them, one after another. Raises the engines' errors."""
        for engine in self._engines:
            try:
                await engine.warm_up()
            except Exception:
                self.state = State.FAILED
                raise
        # Otherwise it is better to decode the next batch while one runs.
        self.decodes = all(engine.decode_s >= engine.run_s > 0 for engine in self._engines)
        if self.decodes and len(self._engines) == 1:
            self._spread(self._engines[0])
        for number in range(len(self._engines)):
            self._learn(number)
        if self.state is State.WARMING:  # draining may have begun
            self.state = State.READY

    def _spread(self, engine: SupervisedEngine) -> None:
        """Start job processes that also run the engine's batches."""
        where = self._elsewhere
        if where is None or not where.turns or (jobs := where.start(engine.engine)) is None:
            return
        engine.jobs = jobs
        self.batcher.spread(where.turns)
        self._numbers = [[*range(1 + len(where.turns))]]

    def refuse(self) -> None:
        """Refuse all new requests from now on."""
        self.state = State.DRAINING
        for engine in self._engines:
            engine.given_up = True

    async def give_up(self) -> None:
        """Fail all waiting and running requests with ShuttingDownError."""
        self.refuse()
        await self.batcher.close(timeout_s=0)

    async def close(self, timeout_s: float) -> bool:
        """Fail all requests and close the engines. Return False if a call of an engine does not
        return in time.

        The thread of such a call cannot be ended, so the process has to exit without waiting for
        the thread.
        """
        await self.give_up()
        closings = [closing for engine in self._engines for closing in engine.close()]
        # A timeout cancels nothing: an engine that is free again is still closed.
        _, stuck = await asyncio.wait(closings, timeout=timeout_s)
        if not stuck:
            for engine in self._engines:
                engine.forget()
            self.batcher.forget()
        return not stuck

    def _learn(self, number: int) -> None:
        """Give the batcher the batch times that an engine's warm-up measured."""
        engine = self._engines[number]
        latency, short_s = engine.measured, SHORT_S
        if self.decodes:
            latency, short_s = latency.after(engine.decode_s), SHORT_WITH_DECODING_S
        for each in self._numbers[number]:
            self.batcher.learn(latency, each, short_s)

    def _follow(self, engine: SupervisedEngine) -> None:
        """Update the runner's state after an engine has begun or ceased to take batches.

        If no engine takes batches, waiting requests fail at once. A restart may take long, and the
        clients can use another server meanwhile.
        """
        ready = engine.state is State.READY
        number = self._engines.index(engine)
        if ready:
            self._learn(number)
        for each in self._numbers[number]:
            self.batcher.serve(each, serves=ready)
        states = [member.state for member in self._engines]
        self._serving = states.count(State.READY)
        final = all(state is State.FAILED for state in states)
        if self.state is not State.DRAINING:
            best = State.READY if self._serving else State.RESTARTING
            self.state = State.FAILED if final else best
        if not self._serving:
            self.batcher.fail_waiting(self._refusal)
        if engine.failure:
            self.failure = without_folders(str(engine.failure)) if final else ""
            if final and self.state is not State.DRAINING:
                self._on_failure(engine.failure)
            else:
                _log.error("%s; %d of %d engines serve", engine.failure, self._serving, len(states))

    def _refusal(self) -> ServiceError:
        if self.state is State.DRAINING:
            return ShuttingDownError("the engine failed while the server was shutting down")
        return NotReadyError(
            f"the model is {self.state.value}; try again in a few seconds, or on another server",
            max(engine.warm_up_s for engine in self._engines),
        )
