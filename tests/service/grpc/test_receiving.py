"""Messages are received without blocking the event loop. Expensive messages are received in their
client's turn."""

import asyncio
import socket
import threading
import time
from typing import Any

import grpc
import pytest

from benchmarks.serving.attacks import http2
from service.edge.edge import Limits
from service.errors import Code, PayloadTooLargeError
from service.grpc import model_infer, receiving
from service.grpc.messages import INFERENCE
from service.grpc.receiving import Receiver
from tests.service.grpc.test_port import Status, client, digit, digits_in, refused
from tests.support.servers.served import run
from tests.support.service.client import until

LONG = 3_000_000


class Reading:
    """A context whose message is complete when the test sets `whole`. Copying the message takes
    `copied_s` seconds."""

    def __init__(self, copied_s: float = 0.0) -> None:
        self.whole: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.copied_in: int | None = None  # a thread
        self._copied_s = copied_s

    async def read(self) -> bytes:
        await self.whole
        self.copied_in = threading.get_ident()
        until_s = time.thread_time() + self._copied_s
        while time.thread_time() < until_s:
            pass
        return b"message"


def receiver(count: int | None) -> Receiver:
    """Return a receiver of messages. Each message has `count` bytes, or an unknown number if it is
    None."""
    return Receiver(lambda context: None if count is None else context.whole.done() * count, LONG)


@pytest.mark.parametrize(
    ("count", "apart"), [(1000, False), (receiving._FEW + 1, True), (None, True)]
)
@run
async def test_a_long_message_is_copied_by_a_thread(count: int | None, apart: bool) -> None:
    receives = receiver(count)
    context = Reading()
    asked = asyncio.create_task(receives.read(context, "a"))
    await asyncio.sleep(0)
    assert not asked.done()
    context.whole.set_result(None)
    assert await asked == b"message"
    assert (context.copied_in != threading.get_ident()) == apart
    receives.close()


@run
async def test_a_long_message_needs_no_new_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    receives, reading = receiver(None), Reading()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda _: pytest.fail("no thread is left"))
        asyncio.get_running_loop().call_soon(reading.whole.set_result, None)
        assert await receives.read(reading, "a") == b"message"
    assert reading.copied_in != threading.get_ident()
    receives.close()


@run
async def test_other_bytes_of_a_connection_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection may receive any number of bytes that belong to no message."""
    touched: list[int] = []
    monkeypatch.setattr(receiving, "_touch", touched.append)
    receives, context = receiver(1000 * LONG), Reading()
    asyncio.get_running_loop().call_soon(context.whole.set_result, None)
    assert await receives.read(context, "a") == b"message"
    assert (touched, receives.taken()) == ([LONG], LONG)
    receives.close()


@run
async def test_a_message_is_refused_while_it_arrives_if_it_is_clearly_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receiving, "_LOOK_S", 0.001)
    most, looks = 1000, 0
    arrived = [0, most + receiving._FEW, most + receiving._FEW, most + receiving._FEW + 1]

    def received(_: object) -> int:
        nonlocal looks
        looks += 1
        return arrived[looks - 1]

    receives = Receiver(received, LONG)
    with pytest.raises(PayloadTooLargeError, match="more than the 1000 bytes"):
        await receives.read(Reading(), "a", most)
    assert looks == len(arrived)
    receives.close()


@run
async def test_what_takes_long_to_copy_delays_the_next_of_the_same_client() -> None:
    """After a message that took 20 ms of CPU time to copy, the client's next message waits for four
    times as long."""
    receives, loop = receiver(LONG), asyncio.get_running_loop()

    async def one(who: str, copied_s: float) -> float:
        context = Reading(copied_s)
        loop.call_soon(context.whole.set_result, None)
        await receives.read(context, who)
        return loop.time()

    began = loop.time()
    await one("costly", 0.02)
    free_at = receives._turns["costly"].free_at
    assert free_at >= began + (1 + receiving._PAUSES) * 0.02 - 0.001
    other, second = await asyncio.gather(one("other", 0.0), one("costly", 0.0))
    assert second >= free_at - 0.001  # a timer may be early by the clock's resolution
    assert other < second
    assert "other" not in receives._turns or receives._turns["other"].free_at == 0.0
    receives.close()


@run
async def test_a_message_that_is_whole_is_let_go_though_its_client_leaves() -> None:
    receives, context = receiver(LONG), Reading(0.01)
    reading = asyncio.create_task(receives.read(context, "a"))
    await asyncio.sleep(0)
    context.whole.set_result(None)
    await until(lambda: bool(receives._turns))
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert context.copied_in is not None
    receives.close()


@run
async def test_a_message_that_has_not_come_is_given_up() -> None:
    receives, context = receiver(LONG), Reading()
    reading = asyncio.create_task(receives.read(context, "a"))
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert context.whole.cancelled()
    assert context.copied_in is None
    receives.close()


@run
async def test_long_messages_are_answered_alone_and_in_streams() -> None:
    async with client(max_body_bytes=2 * LONG) as asking:
        assert digits_in(await asking.ask(digit(7, size=LONG))) == [7]
        assert await asking.digits(3) == [3]
        stream = asking.call("ModelStreamInfer")()
        for each in (1, 2):
            await stream.write(digit(each, size=LONG))
            assert digits_in((await stream.read()).infer_response) == [each]
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF


@run
async def test_a_long_message_to_a_short_call_is_refused_before_all_of_it_came() -> None:
    async with client(max_body_bytes=2 * LONG, limits=Limits(body_s=1000.0)) as asking:
        async with http2.Connection(f"127.0.0.1:{asking.port.number}", "127.0.0.2") as open_:
            stream = open_.begin(f"/{INFERENCE}/ServerMetadata")
            whole = http2.message_of(bytes(LONG), compressed=False)
            await open_.send(stream, whole[: LONG // 2])
            assert await open_.status(stream) == "3"
        await until(lambda: bool(asking.ended))
        assert asking.ended[0].status == Code.TOO_LARGE


@run
async def test_short_frames_are_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2, "_FRAME", 24)
    message = digit(7, size=300_000).SerializeToString()
    async with client(max_body_bytes=LONG) as asking:
        async with http2.Connection(f"127.0.0.1:{asking.port.number}", "127.0.0.2") as open_:
            for _ in range(2):
                stream = open_.begin(f"/{INFERENCE}/ModelInfer")
                whole = http2.message_of(message, compressed=False)
                await open_.send(stream, whole, ends=True)
                assert await open_.status(stream) == "0"
        async with refused(Status.NOT_FOUND):
            await asking.ask(digit(1, size=300_000, model="none"))


@run
async def test_an_answer_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with client() as asking:
        length = len((await asking.ask(digit(7))).SerializeToString())
        monkeypatch.setattr(model_infer, "MOST_ANSWER", length)
        assert await asking.digits(7) == [7]
        monkeypatch.setattr(model_infer, "MOST_ANSWER", length - 1)
        async with refused(
            Status.INVALID_ARGUMENT, f"answers by gRPC may have at most {length - 1}"
        ):
            await asking.digits(7)


def test_the_bytes_of_a_connection_are_counted() -> None:

    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as sends,
        listener.accept()[0] as taken,
    ):
        before: Any = receiving.bytes_received(taken)
        sends.sendall(bytes(1000))
        assert len(taken.recv(1000, socket.MSG_WAITALL)) == 1000
        assert before is None or receiving.bytes_received(taken) == before + 1000
