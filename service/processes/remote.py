"""A worker's side: a runner whose engine is in another process."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count, islice
from time import perf_counter
from typing import cast

from models import OutputKind
from service.batching.latency import Latency
from service.batching.policy import NO_HURRY, Urgency
from service.batching.waiting import Answered, Then
from service.engine.ranking import ScoreRow
from service.engine.runner import Pixels, State
from service.engine.workers import call_safely
from service.errors import QueueFullError, ServiceError, ShuttingDownError
from service.processes import messages
from service.processes.board import Line
from service.processes.messages import Records, Tell
from service.processes.slots import Slots


@dataclass(eq=False, slots=True)
class _Pending:
    """A request whose slots are the engine's."""

    runner: "RemoteRunner"
    number: int
    slots: list[int]
    submitted: float
    then: Then[ScoreRow] | None  # None once it was told, or nobody wants to hear of it

    def withdraw(self) -> None:
        """Nobody wants to hear of it any longer."""
        if self.then is not None:
            self.then = None
            self.runner.channel.cancel(self)

    def tell(self, outcome: Answered[ScoreRow] | ServiceError) -> None:
        """What became of it, to who wants to know."""
        then, self.then = self.then, None
        if then is not None:
            call_safely(then, outcome)


class Channel(asyncio.Protocol):
    """What goes between this worker and the engine's process."""

    def __init__(self) -> None:
        self.on_drain: Callable[[], None] = lambda: None  # called when the service ends
        self.on_lost: Callable[[], None] = lambda: None  # called when the engine's process has
        self._records = Records.told()
        self._numbers = count()
        self._pending: dict[int, _Pending] = {}
        self._transport: asyncio.Transport | None = None
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def connection_lost(self, _: Exception | None) -> None:
        """There is no engine any longer: nothing will be answered."""
        self.lost = True
        for pending in tuple(self._pending.values()):
            pending.tell(ShuttingDownError("the engine's process ended; send the request again"))
        self.on_lost()

    def data_received(self, data: bytes) -> None:
        """The engine's side says something."""
        done: dict[RemoteRunner, list[_Pending]] = {}
        for tell, error, length, request, first, second in self._records.read(data):
            if tell == Tell.DONE:
                pending = self._pending.pop(request)
                done.setdefault(pending.runner, []).append(pending)
            elif tell == Tell.FREED:
                pending = self._pending.pop(request)
                pending.runner.take_back(pending.slots)
            elif tell == Tell.FAILED:
                pending = self._pending[request]
                text = pending.runner.slots.text(pending.slots[0], length)
                pending.tell(messages.error_of(error, text, first, second))
            elif tell == Tell.DRAIN:
                self.on_drain()
        for runner, answered in done.items():
            runner.take_answers(answered)

    def say(self, record: bytes) -> None:
        """Tell the engine's side; ShuttingDownError where there is none."""
        if self.lost or self._transport is None:
            raise ShuttingDownError("the engine's process ended; send the request again")
        self._transport.write(record)

    def submit(
        self,
        runner: "RemoteRunner",
        model: int,
        slots: list[int],
        then: Then[ScoreRow],
        urgency: Urgency,
    ) -> _Pending:
        """Have the images in these slots scored, which the engine's side has from now on."""
        number = next(self._numbers)
        pending = _Pending(runner, number, slots, perf_counter(), then)
        self._pending[number] = pending
        deadline, priority = urgency
        self.say(messages.submit(number, model, len(slots), slots[0], deadline, priority))
        return pending

    def cancel(self, pending: _Pending) -> None:
        """Tell the engine's side that nobody waits for a request any longer."""
        if pending.number in self._pending and not self.lost:
            self.say(messages.cancel(pending.number))

    def give_up(self, runner: "RemoteRunner") -> None:
        """Answer what waits for a runner with ShuttingDownError."""
        for pending in tuple(self._pending.values()):
            if pending.runner is runner and pending.then is not None:
                pending.tell(ShuttingDownError("the server shut down before this was done"))
                self.cancel(pending)


class RemoteRunner:
    """What makes images scores, in batches with those of other workers."""

    def __init__(
        self,
        channel: Channel,
        model: int,
        line: Line,
        slots: Slots,
        output: OutputKind,
        *,
        classes: int,
        max_batch: int,
        device: str,
    ) -> None:
        """`model` is its number, on the engine's side too."""
        self.classes = classes
        self.max_batch = max_batch
        self.device = device
        self.slots = slots
        self.channel = channel
        self._model = model
        self._output = output
        self._line = line
        self._free = list(range(slots.count))[::-1]  # the last one used first: its pages are there
        self._refusing = False

    @property
    def free(self) -> int:
        """How many slots nobody uses."""
        return len(self._free)

    @property
    def state(self) -> State:
        """What it can do for a new request just now."""
        return State.DRAINING if self._refusing or self.channel.lost else self._line.state

    @property
    def depth(self) -> int:
        """How many images wait for a batch, of all workers."""
        return self._line.depth

    @property
    def restarts(self) -> int:
        """How often its engine was restarted, or was tried to be."""
        return self._line.restarts

    @property
    def latency(self) -> Latency:
        """How long batches take, as far as is known."""
        return self._line.latency

    def expected_wait_s(self) -> float:
        """Seconds until all that is waiting or running now will have been run."""
        return self._line.expected_wait_s()

    def check_deadline(self, count: int, urgency: Urgency) -> None:
        """Raise DeadlineError if `count` images that came now could not be expected in time."""
        self._line.check_deadline(count, urgency)

    def post(
        self, pixels: Sequence[Pixels], then: Then[ScoreRow], urgency: Urgency = NO_HURRY
    ) -> _Pending:
        """Have images scored; raises and tells what `EngineRunner.post` does."""
        if not pixels:
            nothing = _Pending(self, -1, [], 0.0, then)
            asyncio.get_running_loop().call_soon(nothing.tell, Answered([], 0, 0.0, 0.0))
            return nothing
        slots = self._take(len(pixels))
        try:
            self.slots.put(slots, pixels)
        except ValueError:
            self.take_back(slots)
            raise
        return self.channel.submit(self, self._model, slots, then, urgency)

    async def warm_up(self) -> None:
        """Nothing: that is done where the engine is."""

    def refuse(self) -> None:
        """Take nothing new from now on."""
        self._refusing = True

    async def give_up(self) -> None:
        """Answer what waits or runs with ShuttingDownError."""
        self.refuse()
        self.channel.give_up(self)

    async def close(self, _: float) -> bool:
        """End it: what is still inside fails."""
        await self.give_up()
        return True

    def take_answers(self, answered: Sequence[_Pending]) -> None:
        """The scores of these are there. Ranked together, they take a fraction of the time."""
        slots = [slot for pending in answered for slot in pending.slots]
        rows = iter(self.slots.rows(slots, self._output))
        outcomes = []
        for pending in answered:
            own = list(islice(rows, len(pending.slots)))
            outcomes.append(self.slots.answered(pending.slots, own, pending.submitted))
        self.take_back(slots)
        for pending, outcome in zip(answered, outcomes, strict=True):
            pending.tell(outcome)

    def take_back(self, slots: Sequence[int]) -> None:
        """Nobody reads these any more."""
        self._free += slots

    def _take(self, wanted: int) -> list[int]:
        free = self._free
        if wanted > len(free):
            wait_s = self.expected_wait_s()
            raise QueueFullError(
                f"{wanted} images came, and there is room for {len(free)} more; "
                f"try again in {max(1, round(wait_s))} s",
                wait_s,
            )
        return [free.pop() for _ in range(wanted)]
