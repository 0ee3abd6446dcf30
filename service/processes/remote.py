"""A worker's side of models whose queue and engine are in the main process."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from time import perf_counter

from models import Pixels
from service.batching.policy import NO_HURRY, Urgency
from service.batching.waiting import Answered, Then
from service.callbacks import call_safely
from service.engine.ranking import ScoreRow, rank
from service.engine.runner import State
from service.errors import DeadlineError, ServiceError, ShuttingDownError
from service.processes.shared import (
    BUSY_UNTIL, DEPTH, QUICKEST_S, RESTARTS, STATE, WAIT_S, RemoteModel, Shared,
)  # fmt: skip
from service.processes.wire import Wire, error_of

_STATES = tuple(State)
_LOST = "the engine's process ended; send the request again"


@dataclass(eq=False, slots=True)
class Pending:
    """A request that the main process has."""

    runner: "RemoteRunner"
    number: int
    slots: list[int]
    then: Then[ScoreRow]

    def withdraw(self) -> None:
        """Its result is no longer wanted: what of it is not dispatched yet never is."""
        link = self.runner.link
        if link.pending.pop(self.number, None) is not None:
            self.runner.free += self.slots
            link.wire.say("withdraw", self.number)

    def end(self, outcome: Answered[ScoreRow] | ServiceError) -> None:
        """Tell its outcome, and have its slots used again."""
        self.runner.free += self.slots
        call_safely(self.then, outcome)


class Link:
    """All that a worker has asked of the main process; used from its event loop."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.lost = False  # the main process has ended
        self.pending: dict[int, Pending] = {}
        self.numbers = count()

    async def follow(self, on_drain: Callable[[], None]) -> None:
        """Hear the main process until it ends; `on_drain` is called whenever it says so."""
        async for what, *about in self.wire.messages("listening"):
            if what == "drain":
                on_drain()
            elif pending := self.pending.pop(about[0], None):
                told = pending.runner.answer if what == "done" else _failure
                pending.end(told(pending, *about[1:]))
        self.lost = True
        self.fail(self.pending.values(), _LOST)

    def fail(self, pending: Iterable[Pending], why: str) -> None:
        """End requests with ShuttingDownError."""
        for each in tuple(pending):
            each.withdraw()
            call_safely(each.then, ShuttingDownError(why))


def _failure(_: Pending, kind: str, text: str, attributes: dict[str, float]) -> ServiceError:
    return error_of(kind, text, attributes)


class RemoteRunner:
    """What a `Pipeline` uses of an `EngineRunner` and its batcher, for a model of another process.

    A test compares the two.
    """

    def __init__(self, link: Link, place: int, model: RemoteModel, shared: Shared, own: int) -> None:
        """`place` is the model's among all, `own` the worker's number."""
        self.classes, self.max_batch, self.device = model.classes, model.max_batch, model.device
        self.batcher = self
        self.link = link
        self._place = place
        self._output = model.info.output
        self._status = shared.status
        self._images, self._scores = shared.images[own], shared.scores[own]
        self.free = list(range(model.max_images))  # slots; the last is taken: it is in a cache
        self._refusing = False

    @property
    def state(self) -> State:
        """What it can do for a new request just now."""
        if self._refusing or self.link.lost:
            return State.DRAINING
        return _STATES[int(self._status[STATE])]

    @property
    def restarts(self) -> int:
        """How often its engine was restarted, or was tried to be."""
        return int(self._status[RESTARTS])

    @property
    def depth(self) -> int:
        """How many images wait for a batch, those of other workers too."""
        return int(self._status[DEPTH])

    def check_ready(self) -> None:
        """Raise NotReadyError or ShuttingDownError unless new requests are taken."""
        self.state.check_ready()

    def expected_wait_s(self) -> float:
        """Seconds until all that is waiting or running now will have been run."""
        return float(self._status[WAIT_S])

    def check_deadline(self, count: int, urgency: Urgency) -> None:
        """Raise DeadlineError if `count` images would be late even ahead of all that waits.

        The queue is the main process's, which refuses whatever else cannot be done in time.
        """
        now = perf_counter()
        done = max(now, self._status[BUSY_UNTIL]) + (self._status[QUICKEST_S] if count else 0.0)
        if done > urgency.deadline:
            raise DeadlineError(done - now, urgency.deadline - now)

    def post(
        self, pixels: Sequence[Pixels], then: Then[ScoreRow], urgency: Urgency = NO_HURRY
    ) -> Pending:
        """Have images scored; raises and tells what `EngineRunner.post` does."""
        link = self.link
        if link.lost:
            raise ShuttingDownError(_LOST)
        pending = Pending(self, next(link.numbers), [self.free.pop() for _ in pixels], then)
        for slot, image in zip(pending.slots, pixels, strict=True):
            self._images[slot] = image
        link.pending[pending.number] = pending
        link.wire.say("submit", pending.number, self._place, pending.slots, *urgency)
        return pending

    def answer(
        self, pending: Pending, size: int, queue_s: float, compute_s: float
    ) -> Answered[ScoreRow]:
        """The scores that are in a request's slots."""
        return Answered(rank(self._scores[pending.slots], self._output), size, queue_s, compute_s)

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
