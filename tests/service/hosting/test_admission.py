"""Requests are admitted, displaced or refused. Refusals state when to retry."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from service.batching.batcher import Batcher
from service.batching.latency import Latency
from service.errors import QueueFullError, ServiceError
from service.fair_queue import Client
from service.hosting.admission import Admission, ByteRoom, Held, Reservation
from service.http.responses import refusal
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
    assert refusal(refused.value).headers["retry-after"] == retry_after
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
        wait_s = int(refusal(refused.value).headers["retry-after"])
        assert (5 - later_s) * batch_s - 1e-6 <= wait_s < 5 * batch_s + 1
        await until(now() + wait_s)
        await asyncio.gather(*[ask("cd") for _ in range(4)])
        await asyncio.gather(*full)
        await batcher.close()

    run(scenario())


# --- whose request is refused --------------------------------------------------------------------

A, B, C = Client("a"), Client("b"), Client("c")


def admission_of(max_images: int, most_bytes: int = 100) -> Admission:
    return Admission(max_images, max_images, most_bytes, ByteRoom(most_bytes), lambda: 1.0)


class Asked:
    """A client's request, and the error if it was displaced."""

    def __init__(self, admission: Admission, client: Client, images: int = 0) -> None:
        self.refused: list[ServiceError] = []
        self.held = Reservation(admission, client, self.refused.append)
        self.held.admit(images)


def test_a_full_queue_refuses_the_newest_of_the_client_that_has_the_most() -> None:
    admission = admission_of(10)
    flood = [Asked(admission, A, 2) for _ in range(5)]
    other = Asked(admission, B, 2)
    assert [len(each.refused) for each in flood] == [0, 0, 0, 0, 1]
    (error,) = flood[-1].refused
    assert isinstance(error, QueueFullError)
    assert "your client holds the largest part of it" in str(error)
    assert (admission.images, admission.requests) == (10, 5)
    for each in (*flood, other):
        each.held.release()
    assert (admission.images, admission.requests) == (0, 0)
    assert admission.room.inside == {}


def test_nobody_gives_way_to_a_client_that_would_have_as_much() -> None:
    admission = admission_of(10)
    held = [Asked(admission, A, 5), Asked(admission, B, 5)]
    for client, images in ((A, 1), (B, 1), (C, 5)):
        with pytest.raises(QueueFullError, match="no room for"):
            Asked(admission, client, images)
    assert [each.refused for each in held] == [[], []]
    Asked(admission, C, 4)
    assert [len(each.refused) for each in held].count(1) == 1


def test_nobody_gives_way_in_vain() -> None:
    admission = admission_of(10)
    flood = [Asked(admission, A, 1) for _ in range(9)] + [Asked(admission, B, 1)]
    with pytest.raises(QueueFullError):
        Asked(admission, C, 6)
    assert not any(each.refused for each in flood)


def test_a_heavier_client_may_have_more() -> None:
    admission = admission_of(13)
    heavy = Client("heavy", 3.0)
    held = [Asked(admission, heavy, 3) for _ in range(3)] + [Asked(admission, A, 4)]
    with pytest.raises(QueueFullError):
        Asked(admission, B, 4)
    Asked(admission, Client("other", 3.0), 3)
    assert [len(each.refused) for each in held] == [0, 0, 0, 1]


def test_bodies_give_way_as_images_do() -> None:
    admission = admission_of(10, most_bytes=100)
    flood = [Asked(admission, A) for _ in range(5)]
    for each in flood:
        each.held.hold_bytes(20)
    other = Asked(admission, B)
    other.held.hold_bytes(30)
    assert [len(each.refused) for each in flood] == [0, 0, 0, 1, 1]
    assert admission.room.taken == 90
    with pytest.raises(QueueFullError, match="make room for another client"):
        flood[-1].held.admit(1)
    assert admission.images == 0


def test_room_is_expected_where_another_would_give_way() -> None:
    admission = admission_of(4)
    flood = [Asked(admission, A, 1) for _ in range(4)]
    Reservation(admission, B).expect_room()
    assert not any(each.refused for each in flood)
    with pytest.raises(QueueFullError):
        Reservation(admission, A).expect_room()


def test_what_a_client_holds_is_weighed_as_its_newest_requests_give_way() -> None:
    admission = Admission(
        max_images=10,
        max_images_a_request=10,
        max_body_bytes=1,
        room=ByteRoom(1),
        expected_wait_s=lambda: 1.0,
    )
    heavy, light = Client("heavy", 2.0), Client("light", 1.0)
    gone: list[int] = []

    def giving_way(number: int) -> Callable[[ServiceError], None]:
        return lambda _: gone.append(number)

    for number in range(10):
        Reservation(admission, heavy, giving_way(number)).admit(1)
    Reservation(admission, light).admit(3)
    assert gone == [9, 8, 7]
    assert admission.images == 10


def test_bytes_of_answers_give_way_as_those_of_bodies_do() -> None:
    room = ByteRoom(100)
    gone: list[str] = []
    first = Held(room, Client("greedy"), lambda _: gone.append("first"))
    newest = Held(room, Client("greedy"), lambda _: gone.append("newest"))
    first.hold_bytes(50)
    newest.hold_bytes(40)
    modest = Held(room, Client("modest"), lambda _: gone.append("modest"))
    modest.hold_bytes(30)
    assert (gone, room.taken, newest.bytes) == (["newest"], 80, 0)
    with pytest.raises(QueueFullError, match="images and answers in progress have"):
        Held(room, Client("greedy"), lambda _: None).hold_bytes(60)
    with pytest.raises(QueueFullError, match="make room for another client"):
        newest.hold_bytes(1)
    for held in (first, newest, modest, first):
        held.release()
    assert room.taken == 0
