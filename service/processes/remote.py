"""A worker's side of models whose queue and engine are in the main process."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from time import perf_counter
from typing import Any

import numpy as np

from models import Image, Results
from service import errors
from service.batching.policy import NO_HURRY, Urgency
from service.batching.queue import BatchResult, OnOutcome
from service.callbacks import call_safely
from service.engine.ranking import ScoreRow, rank
from service.engine.runner import EngineRunner, EngineStatus
from service.engine.supervised_engine import State
from service.errors import DeadlineError, ServiceError, ShuttingDownError
from service.fair_queue import ANYONE, Client
from service.processes.shared import ModelFacts, SharedModel
from service.processes.wire import Wire

_LOST = "the engine's process ended; send the request again"


@dataclass(eq=False, slots=True)
class RemoteRequest:
    """A request that the main process has."""

    runner: "RemoteRunner"
    number: int
    slots: list[int]
    then: OnOutcome[ScoreRow]

    def withdraw(self) -> None:
        """Discard its result; what is not dispatched yet never is."""
        link = self.runner.link
        if link.pending.pop(self.number, None) is not None:
            self.runner.free += self.slots
            link.wire.say("withdraw", self.number)


class Link:
    """All that a worker has asked of the main process; used from its event loop."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.lost = False  # the main process has ended
        self.runners: list[RemoteRunner] = []
        self.pending: dict[int, RemoteRequest] = {}
        self.numbers = count()

    async def follow(self, commands: Mapping[str, Callable[[], None]]) -> None:
        """Hear the main process until it ends; commands are called when it says them."""
        async for what, *about in self.wire.messages():
            if what in ("done", "failed"):
                if pending := self.pending.pop(about[0], None):
                    pending.runner.end(pending, what, *about[1:])
                continue
            if what == "status":
                self.wire.say("known")
                for runner, status in zip(self.runners, about[0], strict=True):
                    runner.update(*status)
            commands[what]()
        self.lost = True
        self.fail(self.pending.values(), _LOST)

    def fail(self, pending: Iterable[RemoteRequest], why: str) -> None:
        """End requests with ShuttingDownError."""
        for request in tuple(pending):
            request.withdraw()
            call_safely(request.then, ShuttingDownError(why))


class RemoteRunner:
    """Stands in for an `EngineRunner` and its batcher in a `Pipeline`; a test compares them."""

    def __init__(self, link: Link, model: ModelFacts, shared: SharedModel, worker: int) -> None:
        self.classes = model.classes
        self._before = model  # as it was before its engines were warm
        self.batcher = self
        self.link, self._place = link, len(link.runners)
        link.runners.append(self)
        self._output = model.info.output
        self._pixels, self._tensors = shared.pixels[worker], shared.tensors[worker]
        self._scores = shared.scores[worker]
        self.free = list(range(model.max_images))  # slots; the last is taken: it is in a cache
        self._refusing = False
        self.update("WARMING", "", [], 0, 0.0, 0.0, 0.0)

    def update(
        self,
        state: str,
        failure: str,
        engines: Sequence[Sequence[Any]],
        depth: int,
        wait_s: float,
        busy_until: float,
        run_s: float,
    ) -> None:
        """Take what `status_of` the runner in the main process was."""
        self._state, self.failure, self.depth = State[state], failure, depth
        self.engines = [EngineStatus(*engine) for engine in engines]
        self._wait_s, self._busy_until, self._run_s = wait_s, busy_until, run_s

    @property
    def max_batch(self) -> int:
        """Return the most images that an engine takes at once."""
        return max((engine.max_batch for engine in self.engines), default=self._before.max_batch)

    @property
    def device(self) -> str:
        """Return the devices' names, each once."""
        of_engines = dict.fromkeys(engine.device for engine in self.engines)
        return ", ".join(of_engines) or self._before.device

    @property
    def precision(self) -> str:
        """Return the engines' precisions, each once."""
        of_engines = dict.fromkeys(engine.precision for engine in self.engines)
        return ", ".join(of_engines) or self._before.precision

    @property
    def state(self) -> State:
        """Return whether it takes requests, and why not."""
        return State.DRAINING if self._refusing or self.link.lost else self._state

    def expected_wait_s(self) -> float:
        """Return seconds until all that is waiting or running now will have been run."""
        return self._wait_s

    def check_deadline(self, count: int, urgency: Urgency, _client: Client = ANYONE) -> None:
        """Raise DeadlineError if `count` images would be late even ahead of all that waits."""
        now = perf_counter()
        done = max(now, self._busy_until) + (self._run_s if count else 0.0)
        if done > urgency.deadline:
            raise DeadlineError(done - now, urgency.deadline - now)

    def post(
        self,
        images: Sequence[Image],
        then: OnOutcome[ScoreRow],
        urgency: Urgency = NO_HURRY,
        client: Client = ANYONE,
    ) -> RemoteRequest:
        """Have images scored; raises and tells what `EngineRunner.post` does."""
        link = self.link
        if link.lost:
            raise ShuttingDownError(_LOST)
        pending = RemoteRequest(self, next(link.numbers), [self.free.pop() for _ in images], then)
        tensors = any(image.dtype == np.float32 for image in images)  # all, or none
        places = self._tensors if tensors else self._pixels
        for slot, image in zip(pending.slots, images, strict=True):
            places[slot] = image
        link.pending[pending.number] = pending
        where = self._place, pending.slots, tensors
        link.wire.say("submit", pending.number, *where, urgency, client)
        return pending

    def end(self, pending: RemoteRequest, what: str, *about: Any) -> None:
        """A request is done, and its scores are in its slots; or it failed."""
        self.free += pending.slots
        if what == "done":
            rows = rank(Results(self._scores[pending.slots]), self._output)  # of a copy
            call_safely(pending.then, BatchResult(rows, *about))
        else:
            call_safely(pending.then, _error(*about))

    async def warm_up(self) -> None:
        """Nothing: the main process does."""

    def refuse(self) -> None:
        """Take nothing new from now on."""
        self._refusing = True

    async def give_up(self) -> None:
        """Answer what waits or runs with ShuttingDownError."""
        self.refuse()
        own = [pending for pending in self.link.pending.values() if pending.runner is self]
        self.link.fail(own, "the server shut down before this was done")

    async def close(self, _timeout_s: float) -> bool:
        """End it: what is still inside fails."""
        await self.give_up()
        return True


def status_of(runner: EngineRunner) -> Sequence[Any]:
    """Return how it is now, as `RemoteRunner.update` takes it."""
    queue = runner.batcher
    load = queue.depth, queue.expected_wait_s(), queue.busy_until, queue.latency().of(1)
    return runner.state.name, runner.failure, runner.engines, *load


def _error(kind: str, text: str, attributes: Mapping[str, float]) -> ServiceError:
    found: type[ServiceError] = getattr(errors, kind)
    error = found.__new__(found, text)  # not called: classes take other arguments than the text
    vars(error).update(attributes)
    return error
