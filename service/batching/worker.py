"""One engine's worker, and the batch that it runs."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from service.batching.device_turns import Turn
from service.batching.queue import Part

T = TypeVar("T")
R = TypeVar("R")


class BatchRecord(NamedTuple):
    """One batch that ended, for metrics."""

    size: int
    compute_s: float
    failed: bool
    engine: int = 0


@dataclass(eq=False, slots=True)
class Batch(Generic[T, R]):
    """A running batch."""

    dispatched: float  # clock seconds
    items: list[T]
    parts: list[Part[T, R]]


Run = Callable[[Sequence[T]], Awaitable[Sequence[R]]]


@dataclass(eq=False, slots=True)
class Worker(Generic[T, R]):
    """One engine's worker."""

    number: int
    run: Run[T, R]
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # wakes it while it is idle
    turn: Turn | None = None
    task: asyncio.Task[None] | None = None
    batch: Batch[T, R] | None = None  # the running one
    serves: bool = True

    @property
    def alone(self) -> bool:
        """Whether no other model uses the device."""
        return self.turn is None or self.turn.alone

    @property
    def free(self) -> bool:
        """Whether it serves, runs nothing, and does not wait for its device."""
        return self.serves and not self.batch and not (self.turn and self.turn.waits)

    @property
    def cancelled(self) -> bool:
        """Whether `close` or the event loop has cancelled the task."""
        return self.task is not None and self.task.cancelling() > 0

    def ends_by(self, error: BaseException) -> bool:
        """Whether an error from `run` is meant for the worker or the process, not the batch."""
        if isinstance(error, asyncio.CancelledError):
            return self.cancelled
        return isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit)
