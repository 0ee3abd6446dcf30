"""The clocks that real load tests run by."""

import asyncio
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import uvloop

from loadtest.clock import LoopClock, TimerFdClock, precise_clock

OnLinux = pytest.mark.skipif(sys.platform != "linux", reason="timer file descriptors are Linux'")
Runner = Callable[..., list[float]]


def lateness_s(
    make: Callable[[], AbstractContextManager[LoopClock | TimerFdClock]],
    run: Runner,
    waits_s: list[float],
) -> list[float]:
    """How much later than asked each wait returned."""

    async def main() -> list[float]:
        late = []
        with make() as clock:
            for wait_s in waits_s:
                moment = clock.now() + wait_s
                await clock.until(moment)
                late.append(clock.now() - moment)
        return late

    return run(main())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("make", [LoopClock, pytest.param(TimerFdClock, marks=OnLinux)])
def test_no_clock_is_early(make: type[LoopClock | TimerFdClock], run: Runner) -> None:
    late = lateness_s(make, run, [0.0023] * 20 + [0.0001] * 20)
    assert min(late) >= 0


@OnLinux
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_on_linux_it_is_less_than_half_a_millisecond_late(run: Runner) -> None:
    # The best of many, since machines that run tests have other things to do; a loop's own timer
    # of 2.3 ms never rings before 3 ms.
    assert min(lateness_s(precise_clock, run, [0.0023] * 60)) < 0.0005


@pytest.mark.parametrize("make", [LoopClock, pytest.param(TimerFdClock, marks=OnLinux)])
def test_a_moment_that_is_past_lets_others_run_first(
    make: type[LoopClock | TimerFdClock],
) -> None:
    async def main() -> list[str]:
        order = []

        async def other() -> None:
            order.append("other")

        with make() as clock:
            task = asyncio.create_task(other())
            await clock.until(clock.now() - 1)
            order.append("back")
            await task
        return order

    assert asyncio.run(main()) == ["other", "back"]


@OnLinux
def test_a_wait_that_is_cancelled_leaves_the_clock_usable() -> None:
    async def main() -> None:
        with TimerFdClock() as clock:
            waiting = asyncio.create_task(clock.until(clock.now() + 0.02))
            await asyncio.sleep(0.01)
            waiting.cancel()
            await asyncio.sleep(0.02)  # its timer fires meanwhile, for nobody
            moment = clock.now() + 0.05
            await clock.until(moment)
            assert clock.now() >= moment

    asyncio.run(main())
