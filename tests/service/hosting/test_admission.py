"""What is refused says when to come back."""

import asyncio
from collections.abc import Sequence

import pytest

from service.batching.batcher import Batcher
from service.batching.latency import Latency
from service.errors import QueueFullError
from service.hosting.admission import Admission, ByteRoom, Reservation
from tests.support.service.desk import submit
from tests.support.service.virtual_time import now, run, turns, until


@pytest.mark.parametrize(
    ("wait_s", "retry_after"), [(0.0, "1"), (0.2, "1"), (16.4, "17"), (17.0, "17")]
)
def test_retry_after_is_what_the_images_inside_will_take_and_never_zero(
    wait_s: float, retry_after: str
) -> None:
    admission = Admission(
        max_images=2,
        max_images_a_request=2,
        max_body_bytes=1,
        room=ByteRoom(1),
        expected_wait_s=lambda: wait_s,
    )
    first, second = Reservation(admission), Reservation(admission)
    first.admit(2)
    with pytest.raises(QueueFullError, match=f"try again in {retry_after} s") as refused:
        second.expect_room()
    assert refused.value.headers() == {"Retry-After": retry_after}
    for each in (first, second, first):  # the third time nothing happens
        each.release()
    assert (admission.requests, admission.images) == (0, 0)


@pytest.mark.parametrize("batch_s", [0.2, 0.7, 1.0, 2.3])
@pytest.mark.parametrize("later_s", [0.0, 0.1, 0.6])
def test_who_comes_back_after_that_long_is_let_in(batch_s: float, later_s: float) -> None:
    async def capitals(items: Sequence[str]) -> Sequence[str]:
        await asyncio.sleep(batch_s)
        return [item.upper() for item in items]

    async def scenario() -> None:
        batcher = Batcher(
            capitals,
            max_batch=2,
            latency=Latency.measured({1: batch_s, 2: batch_s}, 2),
            clock=now,
            timer_error_s=0,
        )
        admission = Admission(
            max_images=10,
            max_images_a_request=8,
            max_body_bytes=1,
            room=ByteRoom(1),
            expected_wait_s=batcher.expected_wait_s,
        )

        async def ask(letters: str) -> None:
            reservation = Reservation(admission)
            try:
                reservation.admit(len(letters))
                await submit(batcher, letters)
            finally:
                reservation.release()

        full = [asyncio.create_task(ask("ab"))]
        await turns(3)  # it runs, and the others wait
        full += [asyncio.create_task(ask("ab")) for _ in range(4)]
        await until(later_s * batch_s, 3)
        with pytest.raises(QueueFullError) as refused:
            await ask("yz")
        wait_s = int(refused.value.headers()["Retry-After"])
        assert (5 - later_s) * batch_s - 1e-6 <= wait_s < 5 * batch_s + 1
        await until(now() + wait_s)
        await asyncio.gather(*[ask("cd") for _ in range(4)])
        await asyncio.gather(*full)
        await batcher.close()

    run(scenario())
