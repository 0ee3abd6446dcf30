"""Runs an asyncio event loop with a virtual clock. Sleeping takes no real time, and a hang is
reported as an error."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class HangError(Exception):
    """Reports that every task waits for an event that will never happen."""


class _Jump(selectors.SelectSelector):
    """Advances the clock to the next timer whenever the loop would have to wait for this timer."""

    def __init__(self, jump: Callable[[float], None]) -> None:
        super().__init__()
        self._jump = jump

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise HangError
        if timeout > 0:
            self._jump(timeout)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop that starts at second 0. Before its clock advances, it calls `before_jump`."""

    def __init__(self, before_jump: Callable[[], None] = lambda: None) -> None:
        self._now = 0.0
        self._before_jump = before_jump
        super().__init__(_Jump(self._jump))

    def time(self) -> float:
        return self._now

    def _jump(self, seconds: float) -> None:
        self._before_jump()
        self._now += seconds


def now() -> float:
    """Return the virtual time in seconds. Works only within `run`."""
    return asyncio.get_running_loop().time()


async def turns(count: int) -> None:
    """Wait for `count` iterations of the event loop."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(moment: float, then_turns: int = 0) -> None:
    """Sleep until an absolute time, and then wait for `then_turns` iterations of the loop."""
    if moment > now():
        await asyncio.sleep(moment - now())
    await turns(then_turns)


def run(main: Coroutine[Any, Any, T], before_jump: Callable[[], None] = lambda: None) -> T:
    """Run `main` in virtual time, and raise errors that the loop would only have logged."""
    logged: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(before_jump)) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: logged.append(context))
        result = runner.run(main)
    assert not logged, logged
    return result
