"""Defines consumers, each of which takes batches from the queue and runs them on one engine."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from service.batching.device_turns import DeviceTurn
from service.batching.queue import BatchResult, Part, Posted

T = TypeVar("T")
R = TypeVar("R")


class BatchRecord(NamedTuple):
    """Records one batch that ended, for metrics."""

    size: int
    compute_s: float
    failed: bool


@dataclass(eq=False, slots=True)
class Batch(Generic[T, R]):
    """Holds the items of a running batch and the requests that they belong to."""

    dispatched: float  # clock seconds
    items: list[T]
    parts: list[Part[T, R]]

    def answers(
        self, results: list[R], compute_s: float
    ) -> list[tuple[Posted[T, R], BatchResult[R]]]:
        """Return the requests that are complete with this batch's results, each with its answer."""
        answers: list[tuple[Posted[T, R], BatchResult[R]]] = []
        begins, size = 0, len(self.items)
        for request, first, count in self.parts:
            own = results[begins : begins + count]
            begins += count
            if count == len(request.items) or (own := request.gather(first, own)):
                queue_s = self.dispatched - request.submitted
                answers += ((request, BatchResult(own, size, queue_s, compute_s)),)
        return answers


Run = Callable[[Sequence[T]], Awaitable[Sequence[R]]]


@dataclass(eq=False, slots=True)
class Consumer(Generic[T, R]):
    """Takes batches from the queue and runs them on one engine, in a task of its own."""

    number: int
    run: Run[T, R]
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # wakes it while it is idle
    turn: DeviceTurn | None = None
    task: asyncio.Task[None] | None = None
    batch: Batch[T, R] | None = None  # the running one
    serves: bool = True
    ran: tuple[int, int, float] = (0, 0, 0.0)  # batches, their items and seconds

    @property
    def alone(self) -> bool:
        """Return whether no other model uses the device."""
        return self.turn is None or self.turn.alone

    @property
    def free(self) -> bool:
        """Return whether it serves, runs nothing, and is not waiting for its device."""
        return self.serves and not self.batch and not (self.turn and self.turn.waits)

    @property
    def cancelled(self) -> bool:
        """Return whether `close` or the event loop has cancelled the task."""
        return self.task is not None and self.task.cancelling() > 0

    def ends_by(self, error: BaseException) -> bool:
        """Return whether an error from `run` should end the consumer or the process, not only the
        batch."""
        if isinstance(error, asyncio.CancelledError):
            return self.cancelled
        return isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit)
