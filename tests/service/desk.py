"""A batcher of letters to try things on, in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from service.batcher import Answer, Batcher, BatchRecord
from tests.service import virtual_time
from tests.service.virtual_time import now, turns

Run = Callable[[Sequence[str]], Awaitable[Sequence[str]]]
Outcome = list[Answer[str]] | BaseException


class Desk:
    """A batcher of letters (their results are capitals), each batch taking one second."""

    def __init__(self, run: Run | None = None, max_batch: int = 4, max_queue: int = 8) -> None:
        self.batches: list[str] = []
        self.records: list[BatchRecord] = []
        self._run = run or self._capitals
        self.batcher = Batcher[str, str](
            self._logged,
            max_batch=max_batch,
            max_queue=max_queue,
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

    async def submit(self, letters: str) -> asyncio.Task[list[Answer[str]]]:
        """A submit that has got as far as it can at this moment."""
        task = asyncio.create_task(self.batcher.submit(letters))
        await turns(3)
        return task


async def outcomes(*tasks: asyncio.Task[list[Answer[str]]]) -> list[Outcome]:
    return await asyncio.gather(*tasks, return_exceptions=True)


def letters(outcome: Outcome) -> str:
    assert isinstance(outcome, list), outcome
    return "".join(answer.result for answer in outcome)


def in_virtual_time(
    test: Callable[..., Coroutine[Any, Any, None]],
) -> Callable[..., None]:
    def wrapper() -> None:
        virtual_time.run(test())

    wrapper.__name__ = test.__name__
    return wrapper
