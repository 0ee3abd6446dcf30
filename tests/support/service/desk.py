"""Provides a batcher in virtual time, for tests. Its items are letters."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from service.batching.batcher import Batcher
from service.batching.policy import NO_HURRY, Urgency
from service.batching.queue import BatchRecord, BatchResult, OnOutcome
from service.engine.threads import Withdrawable
from service.errors import ServiceError
from service.fair_queue import ANYONE, Client
from tests.support.service import virtual_time
from tests.support.service.virtual_time import now, turns

Run = Callable[[Sequence[str]], Awaitable[Sequence[str]]]
Outcome = BatchResult[str] | BaseException

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)
R = TypeVar("R")


class Desk:
    """A batcher of letters. The result of a letter is its capital letter, and each batch takes one
    second."""

    def __init__(self, run: Run | None = None, max_batch: int = 4) -> None:
        self.batches: list[str] = []
        self.records: list[BatchRecord] = []
        self._run = run or self._capitals
        self.batcher = Batcher[str, str](
            self._logged,
            max_batch=max_batch,
            on_batch=self.records.append,
            clock=now,
            timer_error_s=0,
        )

    async def _logged(self, items: Sequence[str]) -> Sequence[str]:
        self.batches.append("".join(items))
        return await self._run(items)

    async def _capitals(self, items: Sequence[str]) -> Sequence[str]:
        await asyncio.sleep(1)
        return [item.upper() for item in items]

    async def submit(self, letters: str) -> asyncio.Task[BatchResult[str]]:
        """Submit letters, and wait a few iterations of the event loop, so that the letters are
        queued. Return the task that waits for the result."""
        task = asyncio.create_task(self.ask(letters))
        await turns(3)
        return task

    async def ask(self, letters: Sequence[str], urgency: Urgency = NO_HURRY) -> BatchResult[str]:
        """Submit letters, and return their result."""
        return await submit(self.batcher, letters, urgency)


class Poster(Protocol[T_contra, R]):
    """An object to which items can be posted, such as a batcher or a runner."""

    def post(
        self, items: Sequence[T_contra], then: OnOutcome[R], urgency: Urgency, client: Client, /
    ) -> Withdrawable:
        """Queue items to be run."""


async def submit(
    batcher: Poster[T, R],
    items: Sequence[T],
    urgency: Urgency = NO_HURRY,
    client: Client = ANYONE,
) -> BatchResult[R]:
    """Submit items and return their result. Cancelling this coroutine withdraws the items at
    once."""
    outcome: _Outcome[BatchResult[R]] = _Outcome()

    def then(ended: BatchResult[R] | ServiceError) -> None:
        if isinstance(ended, BatchResult):
            outcome.set_result(ended)
        else:
            outcome.set_exception(ended)

    outcome.request = batcher.post(items, then, urgency, client)
    return await outcome


class _Outcome(asyncio.Future[R]):
    request: Withdrawable

    def cancel(self, msg: Any = None) -> bool:
        self.request.withdraw()
        return super().cancel(msg)


async def outcomes(*tasks: asyncio.Task[BatchResult[str]]) -> list[Outcome]:
    return await asyncio.gather(*tasks, return_exceptions=True)


def letters(outcome: Outcome) -> str:
    assert isinstance(outcome, BatchResult), outcome
    return "".join(outcome.results)


def in_virtual_time(
    test: Callable[..., Coroutine[Any, Any, None]],
) -> Callable[..., None]:
    def wrapper() -> None:
        virtual_time.run(test())

    wrapper.__name__ = test.__name__
    return wrapper
