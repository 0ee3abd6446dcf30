"""If a decoder crashes or hangs, only its own request fails, with 500."""

import asyncio
import threading

import pytest

from models import Pixels
from tests.support import PATIENCE_S
from tests.support.service.client import PATH, digits, error_of, metric, serving, until
from tests.support.service.fakes import LONG_S, decode_digit

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("threads", [0, 1])
@pytest.mark.parametrize(
    "error",
    [
        KeyError("unforeseen"),
        MemoryError(),
        RecursionError(),
        SystemExit(3),
        KeyboardInterrupt(),
        StopIteration(),
        asyncio.CancelledError(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_a_decoder_raises_is_answered_500(
    threads: int, error: BaseException
) -> None:
    def decode(data: bytes) -> Pixels:
        if data == b"x":
            raise error
        return decode_digit(data)

    async with serving(decode=decode, decode_threads=threads) as (client, _):
        assert "internal server error" in error_of(await client.post(PATH, content=b"x"), 500)
        files = [("file", ("a.png", content, "image/png")) for content in (b"1", b"x", b"2")]
        assert "internal server error" in error_of(await client.post(PATH, files=files), 500)
        assert digits(await client.post(PATH, content=b"4")) == [4]
        assert await metric(client, 'convoy_requests_total{status="500"}') == 2
        assert await metric(client, "convoy_lost_decode_threads_total") == 0


async def test_a_decoder_that_never_returns_is_answered_500_and_its_thread_replaced() -> None:
    gate, hung = threading.Event(), threading.Semaphore(0)

    def decode(data: bytes) -> Pixels:
        if data == b"x":
            hung.release()
            gate.wait(PATIENCE_S)
        return decode_digit(data)

    async with serving(decode=decode, decode_threads=1) as (client, pipeline):

        async def expire() -> None:
            """Pretend that the file on which the decoder hangs has taken more time than it may."""
            pool = pipeline.decoders._quick.pool
            await until(lambda: hung.acquire(blocking=False))
            for seconds in (0, LONG_S):
                pool.look(seconds)

        stuck = asyncio.create_task(client.post(PATH, content=b"x"))
        await until(lambda: pipeline.admission.images == 1)
        behind = asyncio.create_task(client.post(PATH, content=b"4"))
        await expire()
        assert "stuck" in error_of(await stuck, 500)
        assert digits(await behind) == [4]
        assert await metric(client, "convoy_lost_decode_threads_total") == 1
        files = [("file", ("a.png", content, "image/png")) for content in (b"1", b"x")]
        partly = asyncio.create_task(client.post(PATH, files=files))
        await expire()
        assert "image 2 of 2" in error_of(await partly, 500)
        gate.set()
        assert digits(await client.post(PATH, content=b"5")) == [5]
