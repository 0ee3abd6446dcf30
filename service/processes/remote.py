"""Represents in a worker the models whose queue and engines are in the main process."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from time import perf_counter
from typing import Any

from models import Image, Kind, Results, kind_of, write_image
from service import errors
from service.batching.policy import NO_HURRY, Urgency
from service.batching.queue import BatchResult, OnOutcome
from service.callbacks import call_safely
from service.engine.ranking import ScoreRow, rank
from service.engine.runner import EngineRunner, EngineStatus, layers_of
from service.engine.supervised_engine import State
from service.errors import DeadlineError, QueueFullError, ServiceError, ShuttingDownError
from service.fair_queue import ANYONE, Client
from service.processes.shared import ModelFacts, SharedModel
from service.processes.wire import Wire

_LOST = "the engine's process ended; send the request again"


def _of_turns(client: Client) -> tuple[str, float, int]:
    """Return the facts of a client that the queue needs, as JSON can hold them."""
    return client.name, client.weight, client.highest_priority


@dataclass(eq=False, slots=True)
class RemoteRequest:
    """Holds a request passed on to the main process, with its slots and its callback.

    The slots are free once the main process has answered: until then a batch may read them.
    """

    runner: "RemoteRunner"
    number: int
    slots: list[int]
    then: OnOutcome[ScoreRow] | None  # None once it is withdrawn
    inner: Collection[str]

    def withdraw(self) -> None:
        """Discard the result, and do not dispatch the images unless one of them is dispatched
        already."""
        link = self.runner.link
        if self.then is not None and self.number in link.pending:
            self.then = None
            link.wire.say("withdraw", self.number)


class Link:
    """Holds all requests that a worker sent to the main process; used from its event loop."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.lost = False  # the main process has ended
        self.runners: list[RemoteRunner] = []
        self.pending: dict[int, RemoteRequest] = {}
        self.numbers = count()

    async def follow(self, commands: Mapping[str, Callable[[], None]]) -> None:
        """Handle the main process's messages until it ends; commands run as they are received."""
        async for what, *about in self.wire.messages():
            if what in ("done", "failed", "withdrawn"):
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
        """End the given requests with ShuttingDownError."""
        for request in tuple(pending):
            then = request.then
            request.withdraw()
            if then is not None:
                call_safely(then, ShuttingDownError(why))


class RemoteRunner:
    """Takes the place of an `EngineRunner` and its batcher in a `Pipeline`; a test compares their
    interfaces."""

    def __init__(self, link: Link, model: ModelFacts, shared: SharedModel, worker: int) -> None:
        self.classes = model.classes
        # Workers' own threads decode.
        self.decodes, self.decoding_jobs, self.lost_to_decoders = False, 0, 0
        self._before = model  # as it was before its engines were warm
        self.batcher = self
        self.link, self._place = link, len(link.runners)
        link.runners.append(self)
        self._output = model.info.output
        self._shared = shared.slots(worker)
        self._scores, self._flags = shared.scores[worker], shared.flags[worker]
        self._inner = {name: values[worker] for name, values in shared.inner.items()}
        self.free = list(range(model.max_images))  # slots; the last is taken: it is in a cache
        self._refusing = False
        self.update("WARMING", "", [], 0, 0.0, 0.0, 0.0, Kind.TENSOR)

    def update(
        self,
        state: str,
        failure: str,
        engines: Sequence[Sequence[Any]],
        depth: int,
        wait_s: float,
        busy_until: float,
        run_s: float,
        takes: int,
    ) -> None:
        """Store the main process's runner's state, as `status_of` gives it."""
        self.takes = Kind(takes)
        self._state, self.failure, self.depth = State[state], failure, depth
        self.engines = [EngineStatus(*engine) for engine in engines]
        self._wait_s, self._busy_until, self._run_s = wait_s, busy_until, run_s

    @property
    def max_batch(self) -> int:
        """Return the size of the largest batch that an engine takes."""
        return max((engine.max_batch for engine in self.engines), default=self._before.max_batch)

    @property
    def device(self) -> str:
        """Return the names of the engines' devices without repetition."""
        of_engines = dict.fromkeys(engine.device for engine in self.engines)
        return ", ".join(of_engines) or self._before.device

    @property
    def precision(self) -> str:
        """Return the engines' precisions without repetition."""
        of_engines = dict.fromkeys(engine.precision for engine in self.engines)
        return ", ".join(of_engines) or self._before.precision

    @property
    def layers(self) -> str:
        """Return the engines' sentences about a quantized model's layers, without repetition."""
        return layers_of(self.engines)

    @property
    def state(self) -> State:
        """Return whether the runner takes requests, or why not."""
        return State.DRAINING if self._refusing or self.link.lost else self._state

    def expected_wait_s(self) -> float:
        """Return the estimated seconds until all waiting and running images are done."""
        return self._wait_s

    def check_deadline(self, count: int, urgency: Urgency, _client: Client = ANYONE) -> None:
        """Raise DeadlineError if `count` images would be late even if they went before all that
        wait."""
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
        inner: Collection[str] = (),
    ) -> RemoteRequest:
        """Submit images for scoring; errors and callbacks are like those of `EngineRunner.post`."""
        link = self.link
        if link.lost:
            raise ShuttingDownError(_LOST)
        if len(self.free) < len(images):
            raise QueueFullError("images of withdrawn requests still run; try again in a second")
        slots = [self.free.pop() for _ in images]
        pending = RemoteRequest(self, next(link.numbers), slots, then, inner)
        kinds = [kind_of(image) for image in images]
        for slot, image, kind in zip(slots, images, kinds, strict=True):
            if kind >= Kind.DECODED:
                write_image(self._shared[kind][slot], image)
            else:
                self._shared[kind][slot] = image
        link.pending[pending.number] = pending
        where = self._place, slots, "".join(map(str, kinds))
        link.wire.say("submit", pending.number, *where, urgency, _of_turns(client), list(inner))
        return pending

    def end(self, pending: RemoteRequest, what: str, *about: Any) -> None:
        """End a request as "done", with its scores in its slots, as "failed", or as "withdrawn"."""
        self.free += pending.slots
        if pending.then is None:
            return
        if what == "done":
            slots = pending.slots  # a list of them copies
            inner = {name: self._inner[name][slots] for name in pending.inner}
            results = Results(self._scores[slots], inner=inner, flags=self._flags[slots])
            rows = rank(results, self._output)
            call_safely(pending.then, BatchResult(rows, *about))
        else:
            call_safely(pending.then, _error(*about))

    async def warm_up(self) -> None:
        """Do nothing, because the main process warms up."""

    def refuse(self) -> None:
        """Refuse new requests from now on."""
        self._refusing = True

    async def give_up(self) -> None:
        """End all requests that wait or run with ShuttingDownError."""
        self.refuse()
        own = [pending for pending in self.link.pending.values() if pending.runner is self]
        self.link.fail(own, "the server shut down before this was done")

    async def close(self, _timeout_s: float) -> bool:
        """End all requests like `give_up`, and return True."""
        await self.give_up()
        return True


def status_of(runner: EngineRunner) -> Sequence[Any]:
    """Return a runner's current state for `RemoteRunner.update`."""
    queue = runner.batcher
    load = queue.depth, queue.expected_wait_s(), queue.busy_until, queue.latency().of(1)
    return runner.state.name, runner.failure, runner.engines, *load, runner.takes


def _error(kind: str, text: str, attributes: Mapping[str, float]) -> ServiceError:
    found: type[ServiceError] = getattr(errors, kind)
    error = found.__new__(found, text)  # not called: classes take other arguments than the text
    vars(error).update(attributes)
    return error
