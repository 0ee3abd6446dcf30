"""The engine's side of one worker: what it submits is posted to the runners, and answered."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

from service.batching.policy import Urgency
from service.batching.waiting import Answered, Request
from service.engine.ranking import ScoreRow
from service.engine.runner import EngineRunner, Pixels
from service.errors import ServiceError
from service.processes import messages
from service.processes.board import Line
from service.processes.messages import Ask, Records
from service.processes.slots import Slots


class Model:
    """A runner that several workers use, and its line on the board."""

    def __init__(self, runner: EngineRunner, line: Line) -> None:
        self.runner = runner
        self._line = line
        self._afterwards: list[Callable[[], None]] = []
        runner.on_change = self._on_change

    def publish(self) -> None:
        """Say on the board how it is."""
        runner = self.runner
        self._line.write(runner.state, runner.load, runner.latency, runner.restarts)

    def after_batch(self, call: Callable[[], None]) -> None:
        """Call when the batch that runs now, if one does, has ended."""
        if self.runner.load.running:
            self._afterwards.append(call)
        else:
            call()

    def _on_change(self) -> None:
        """A batch began, or has ended."""
        self.publish()
        if self._afterwards and not self.runner.load.running:
            calls, self._afterwards = self._afterwards, []
            for call in calls:
                call()


@dataclass(eq=False, slots=True)
class _Open:
    """A request that has no end yet."""

    model: Model
    slots: Slots
    places: list[int]
    posted: Request[Pixels, ScoreRow]


class Session(asyncio.Protocol):
    """A worker, from its start to its end."""

    def __init__(
        self,
        models: Sequence[tuple[Model, Slots]],
        on_listening: Callable[[], None],
    ) -> None:
        """`models` in the order of their numbers, each with the worker's slots for it."""
        self._models = models
        self._on_listening = on_listening
        self._records = Records.asked()
        self._open: dict[int, _Open] = {}
        self._unsaid: list[bytes] = []
        self._transport: asyncio.Transport | None = None

    @property
    def unended(self) -> int:
        """How many requests have no outcome yet."""
        return len(self._open)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def connection_lost(self, _: Exception | None) -> None:
        """The worker is gone: nobody waits for its requests."""
        self._transport = None
        for number in tuple(self._open):
            self._cancel(number)

    def data_received(self, data: bytes) -> None:
        """The worker says something."""
        touched: set[Model] = set()
        for ask, priority, model, count, request, slot, deadline in self._records.read(data):
            if ask == Ask.SUBMIT:
                touched.add(self._submit(request, model, slot, count, Urgency(deadline, priority)))
            elif ask == Ask.CANCEL:
                if request in self._open:  # not where its end is on the way
                    self._cancel(request)
            elif ask == Ask.LISTENING:
                self._on_listening()
        for each in touched:
            each.publish()

    def drain(self) -> None:
        """Have the worker finish what is inside, and leave; said again: not wait for it."""
        self._say(messages.drain())

    def _submit(self, request: int, number: int, first: int, count: int, urgency: Urgency) -> Model:
        model, slots = self._models[number]
        places = slots.chain(first, count)
        images = [slots.image(place) for place in places]
        try:
            posted = model.runner.post(images, partial(self._ended, request), urgency)
        except ServiceError as error:
            self._fail(request, slots, first, error)
            self._say(messages.freed(request))
            return model
        self._open[request] = _Open(model, slots, places, posted)
        return model

    def _ended(self, number: int, outcome: Answered[ScoreRow] | ServiceError) -> None:
        """A request has its outcome."""
        request = self._open.pop(number)
        if isinstance(outcome, Answered):
            dispatched = request.posted.submitted + outcome.queue_s
            request.slots.answer(request.places, outcome, dispatched)
            self._say(messages.done(number))
        else:
            self._fail(number, request.slots, request.places[0], outcome)
            self._free(number, request)

    def _cancel(self, number: int) -> None:
        """Nobody waits for a request any longer."""
        request = self._open.pop(number)
        request.posted.withdraw()
        request.model.publish()
        self._free(number, request)

    def _free(self, number: int, request: _Open) -> None:
        """Say that its slots may be used again, once they may."""
        free = partial(self._say, messages.freed(number))
        if request.posted.left < len(request.places):
            request.model.after_batch(free)  # some of its images may be in it
        else:
            free()

    def _fail(self, request: int, slots: Slots, first: int, error: ServiceError) -> None:
        self._say(messages.failed(request, error, slots.write_text(first, str(error))))

    def _say(self, record: bytes) -> None:
        if not self._unsaid:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsaid.append(record)

    def _flush(self) -> None:
        """Write all that a turn of the event loop had to say, as a batch's answers, at once."""
        records, self._unsaid = self._unsaid, []
        if self._transport is not None:
            self._transport.write(b"".join(records))
