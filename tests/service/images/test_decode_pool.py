"""Threads that decode images. Small images overtake large images, which wait for memory or are
refused."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import numpy as np
import pytest

from models import Kind, Pixels
from service.engine.lane import Cost
from service.errors import DecodersBusyError, PayloadTooLargeError, ThreadLostError
from service.fair_queue import ANYONE, Client
from service.images.decode_pool import DecodePool, Decoding
from tests.support import PATIENCE_S
from tests.support.service.client import until

MB = 2**20
BUDGET = 300 * MB


class Table:
    """Images. Each image is decoded when its gate opens."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[tuple[str, Exception | None]] = []
        self.gates: dict[str, threading.Event] = {}

    def decoding(self, name: str, cost: Cost, error: Exception | None = None) -> Decoding:
        """Return an image that is decoded when `gates[name]` opens."""
        gate = self.gates[name] = threading.Event()

        def run() -> Pixels:
            self.begun.append(name)
            gate.wait(PATIENCE_S)
            if error is not None:
                raise error
            return np.zeros((1, 1, 1), np.uint8)

        return Decoding(cost, run)

    def note(self, name: str) -> Callable[[Pixels, Exception | None], None]:
        """Return a function that an image calls when it has ended, and that records the image's
        name and error."""
        return lambda _, error: self.ended.append((name, error))

    def post(
        self,
        pool: DecodePool,
        name: str,
        cost: Cost,
        error: Exception | None = None,
        client: Client = ANYONE,
    ) -> Any:
        """Admit an image and let it be decoded."""
        decoding = self.decoding(name, cost, error)
        pool.admit(decoding, client=client)
        return pool.post(decoding, self.note(name), client)

    @property
    def names(self) -> list[str]:
        """Return the images that ended, in order."""
        return [name for name, _ in self.ended]


LARGE = Cost(150 * MB, 1.0)
HOSTILE, HONEST = Client("hostile"), Client("honest")


def with_pool(
    threads: int = 4, budget: int = BUDGET, bound_s: float = 10 * PATIENCE_S
) -> Callable[[Callable[[DecodePool, Table], Coroutine[Any, Any, None]]], Callable[[], None]]:
    def decorate(
        test: Callable[[DecodePool, Table], Coroutine[Any, Any, None]],
    ) -> Callable[[], None]:
        async def run() -> None:
            pool, table = DecodePool(threads, budget, bound_s=bound_s), Table()
            try:
                await test(pool, table)
            finally:
                for gate in table.gates.values():
                    gate.set()
                pool.close()

        def wrapper() -> None:
            asyncio.run(run())

        wrapper.__name__ = test.__name__
        return wrapper

    return decorate


@with_pool(threads=2)
async def test_small_images_pass_large_ones(pool: DecodePool, table: Table) -> None:
    for name in ("large", "waits"):
        table.post(pool, name, LARGE)
    await until(lambda: table.begun == ["large"])  # of two threads one is for them
    for number in range(20):
        table.post(pool, f"small {number}", Cost())
        table.gates[f"small {number}"].set()
    await until(lambda: len(table.ended) == 20)
    assert len(pool._large.waiting.next()[0].entries) == 1
    table.gates["large"].set()
    await until(lambda: table.begun[-1] == "waits")
    table.gates["waits"].set()
    await until(lambda: table.names[-2:] == ["large", "waits"])
    assert (bool(pool._large.waiting), pool._large.bytes) == (False, 0)


@with_pool(threads=8)
async def test_large_images_wait_for_memory_in_order(pool: DecodePool, table: Table) -> None:
    assert pool.large_bytes == BUDGET - 8 * pool.quick_bytes
    for name in "abc":
        table.post(pool, name, LARGE)
    table.post(pool, "d", Cost(60 * MB, 0.1))  # there would be room, but it is not its turn
    await asyncio.sleep(0.05)
    assert sorted(table.begun) == ["a"]
    assert pool._large.bytes == LARGE.bytes
    table.gates["a"].set()
    await until(lambda: table.begun == ["a", "b"])
    table.gates["b"].set()
    await until(lambda: len(table.begun) == 4)
    assert pool._large.bytes == LARGE.bytes + 60 * MB


@with_pool(threads=8, budget=10 * BUDGET)
async def test_half_of_the_threads_may_decode_large_images(pool: DecodePool, table: Table) -> None:
    for number in range(6):
        table.post(pool, str(number), LARGE)
    await until(lambda: len(table.begun) == 4)
    await asyncio.sleep(0.05)
    assert len(table.begun) == 4


@with_pool(threads=2)
async def test_what_is_withdrawn_is_not_decoded_and_holds_no_memory(
    pool: DecodePool, table: Table
) -> None:
    first, second = (table.post(pool, name, LARGE) for name in ("first", "second"))
    await until(lambda: table.begun == ["first"])
    second.withdraw()
    first.withdraw()  # which runs: its memory is free when it ends
    assert pool._large.bytes == LARGE.bytes
    table.post(pool, "third", LARGE)
    table.gates["first"].set()
    table.gates["third"].set()
    await until(lambda: table.names == ["third"])
    assert table.begun == ["first", "third"]
    assert pool._large.bytes == 0


@with_pool(threads=2)
async def test_an_error_is_told_and_gives_memory_back(pool: DecodePool, table: Table) -> None:
    table.post(pool, "bad", LARGE, ValueError("no image"))
    table.gates["bad"].set()
    await until(lambda: bool(table.ended))
    ((_, error),) = table.ended
    assert isinstance(error, ValueError)
    assert pool._large.bytes == 0


@with_pool(threads=2)
async def test_a_large_image_that_hangs_is_given_up(pool: DecodePool, table: Table) -> None:
    table.post(pool, "hangs", LARGE)
    table.post(pool, "next", LARGE)
    await until(lambda: table.begun == ["hangs"])
    for seconds in (0, 10 * PATIENCE_S):  # which pass
        pool._large.pool.look(seconds)
    await until(lambda: bool(table.ended))
    assert isinstance(table.ended[0][1], ThreadLostError)
    table.gates["next"].set()
    await until(lambda: table.names == ["hangs", "next"])
    assert pool.lost == 1


@with_pool(threads=2)
async def test_an_image_that_never_fits_is_refused(pool: DecodePool, table: Table) -> None:
    most = pool.large_bytes
    table.post(pool, "fits", Cost(most, 1))
    with pytest.raises(PayloadTooLargeError, match=r"takes \d+ MB of memory, but at most 281 MB"):
        table.post(pool, "never", Cost(most + 1, 1))
    assert list(table.gates) == ["fits", "never"]
    await until(lambda: table.begun == ["fits"])


@with_pool(threads=2)
async def test_too_long_a_wait_is_refused_with_how_long_it_is(
    pool: DecodePool, table: Table
) -> None:
    for number in range(6):
        table.post(pool, str(number), LARGE)
    with pytest.raises(DecodersBusyError, match="take about 6 s to decode") as busy:
        table.post(pool, "6", LARGE)
    assert busy.value.code == 503
    assert busy.value.retry_after_s == 1
    table.post(pool, "small", Cost())
    table.gates["small"].set()
    await until(lambda: table.names == ["small"])


LONG = Cost(60 * MB, 4.0)


@with_pool(threads=2)
async def test_long_ones_keep_neither_large_nor_other_clients_long_ones_from_a_thread(
    pool: DecodePool, table: Table
) -> None:
    for number in range(4):
        table.post(pool, f"hostile {number}", LONG, client=HOSTILE)
    table.post(pool, "large", Cost(60 * MB, 1.0), client=HONEST)
    await until(lambda: sorted(table.begun) == ["hostile 0", "large"])
    table.post(pool, "long", LONG, client=HONEST)  # the second thread is another client's
    await until(lambda: sorted(table.begun) == ["hostile 0", "large", "long"])
    with pytest.raises(DecodersBusyError):
        pool.admit(*[table.decoding("no", LONG)] * 12, client=HOSTILE)
    for gate in table.gates.values():
        gate.set()
    await until(lambda: len(table.ended) == len(table.gates) - 1)
    assert not pool._long.clients


@with_pool(threads=8)
async def test_long_ones_leave_half_of_the_memory_to_large_images(
    pool: DecodePool, table: Table
) -> None:
    for number in range(3):
        table.post(pool, f"long {number}", LONG)
    await until(lambda: len(table.begun) == 1)  # 60 of 86 MB
    table.post(pool, "large", Cost(100 * MB, 1.0))
    await until(lambda: table.begun == ["long 0", "large"])
    table.post(pool, "larger", Cost(150 * MB, 1.0))  # waits for both, and then goes first
    table.gates["long 0"].set()
    await asyncio.sleep(0.05)
    assert table.begun == ["long 0", "large"]
    table.gates["large"].set()
    await until(lambda: "larger" in table.begun)
    assert "long 1" not in table.begun
    table.gates["larger"].set()
    await until(lambda: "long 1" in table.begun)


@with_pool(threads=2)
async def test_images_of_one_request_are_admitted_all_or_none(
    pool: DecodePool, table: Table
) -> None:
    images = [table.decoding(str(number), LARGE) for number in range(9)]
    pool.admit(*images[:6])
    with pytest.raises(DecodersBusyError):
        pool.admit(*images)
    assert table.begun == []


@with_pool(threads=0)
async def test_without_threads_every_image_is_decoded_at_once(
    pool: DecodePool, table: Table
) -> None:
    for name, cost in {"small": Cost(), "large": LARGE}.items():
        decoding = table.decoding(name, cost)
        table.gates[name].set()
        pool.admit(decoding)
        assert pool.post(decoding, table.note(name)) is None
    assert table.names == ["small", "large"]


@pytest.mark.parametrize("threads", [0, 2])
def test_resizing_is_left_to_the_engine_where_asked_but_for_large_images(threads: int) -> None:
    whole, left = np.zeros((1, 1, 1), np.uint8), np.ones((1, 1, 1), np.uint8)
    small, large = (
        Decoding(cost, lambda: whole, lambda: left) for cost in (Cost(), Cost(150 * MB, 1.0))
    )
    only_whole = Decoding(Cost(), lambda: whole)

    async def run() -> None:
        pool, images = DecodePool(threads, BUDGET, bound_s=PATIENCE_S), list[Pixels]()

        def take(image: Pixels, _: Exception | None) -> None:
            images.append(image)

        def has(number: int) -> bool:
            return len(images) == number

        posts = [(small, True), (small, False), (large, True), (only_whole, True)]
        for number, (decoding, leave) in enumerate(posts, 1):
            pool.post(decoding, take, left=[Kind.DECODED] if leave else ())
            await until(partial(has, number))
        assert [image is left for image in images] == [True, False, False, False]
        pool.close()

    asyncio.run(run())


def test_what_is_decoded_apart_is_with_the_large_ones_however_small() -> None:
    taken: list[int] = []

    def apart(decode: Callable[[], Any], most_bytes: int) -> Any:
        taken.append(most_bytes)
        return decode()

    async def run() -> None:
        pool, images = DecodePool(1, BUDGET, bound_s=PATIENCE_S, apart=apart), list[Pixels]()
        pixels = np.zeros((1, 1, 1), np.uint8)

        def has(number: int) -> bool:
            return len(images) == number

        for number, (cost, is_apart) in enumerate(
            ((Cost(5), False), (Cost(6), True), (LARGE, False)), 1
        ):
            decoding = Decoding(cost, lambda: pixels, apart=is_apart)
            pool.admit(decoding)
            pool.post(decoding, lambda image, _: images.append(image))
            await until(partial(has, number))
        assert taken == [6, LARGE.bytes]
        pool.close()

    asyncio.run(run())


def test_small_decodes_have_their_share_however_small_the_budget() -> None:
    for budget in (MB, 64 * MB, 2**40):
        pool = DecodePool(4, budget, bound_s=1)
        assert 0 < 4 * pool.quick_bytes <= budget / 4
        assert pool.large_bytes + 4 * pool.quick_bytes == budget
        pool.close()


@with_pool(threads=2)
async def test_large_images_of_clients_take_turns(pool: DecodePool, table: Table) -> None:
    for number in range(6):
        table.post(pool, f"hostile {number}", LARGE, client=HOSTILE)
    with pytest.raises(DecodersBusyError):
        table.post(pool, "one too many", LARGE, client=HOSTILE)
    for number in range(3):
        table.post(pool, f"honest {number}", Cost(30 * MB, 0.5), client=HONEST)
    for gate in table.gates.values():
        gate.set()
    await until(lambda: len(table.ended) == 9)
    order = ["hostile 0", "hostile 1", "honest 0", "honest 1", "hostile 2", "honest 2"]
    assert table.names[:6] == order, "by seconds: two of its images for one of theirs"


@with_pool(threads=2)
async def test_small_images_of_clients_take_turns(pool: DecodePool, table: Table) -> None:
    small = Cost(MB, 0.03)
    for number in range(40):
        table.post(pool, f"hostile {number}", small, client=HOSTILE)
    table.post(pool, "honest", small, client=HONEST)
    await until(lambda: len(table.begun) == 2)
    for gate in table.gates.values():
        gate.set()
    await until(lambda: len(table.ended) == 41)
    assert table.names.index("honest") <= 3


@with_pool(threads=1)
async def test_short_decodes_are_handed_over_ahead_of_their_turn(
    pool: DecodePool, table: Table
) -> None:
    """Otherwise, a thread would be idle after each image until the event loop notices."""
    for number in range(8):
        table.post(pool, str(number), Cost(MB, 0.0004))
    assert pool._quick.running == 5
    for gate in table.gates.values():
        gate.set()
    await until(lambda: len(table.ended) == 8)
    assert table.names == list("01234567")
    assert (pool._quick.running, pool._quick.seconds) == (0, 0.0)


@with_pool(threads=1)
async def test_what_is_withdrawn_gives_its_turn_away(pool: DecodePool, table: Table) -> None:
    posted = [table.post(pool, str(number), LARGE, client=HOSTILE) for number in range(4)]
    for work in posted[1:]:
        work.withdraw()
        work.withdraw()  # nothing happens
    assert pool._large.waiting.size(HOSTILE) == 0
    table.post(pool, "next", LARGE, client=HONEST)
    for gate in table.gates.values():
        gate.set()
    await until(lambda: table.names == ["0", "next"])
    assert table.begun == ["0", "next"]
