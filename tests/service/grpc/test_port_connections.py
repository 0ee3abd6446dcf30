"""Connections of the gRPC port have the same limits as HTTP connections. Silent connections are
closed first."""

import asyncio
import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import grpc
import pytest

from service.edge.connections import GRACE_S
from service.edge.edge import Limits
from service.grpc.messages import INFERENCE
from service.grpc.port_connections import peer_of
from tests.service.grpc.test_port import client, digit, digits_in, refused
from tests.support import PATIENCE_S
from tests.support.servers.served import run
from tests.support.service.client import until

FEW = Limits(connections=12, per_address=6, sweep_s=0.05)


@contextmanager
def silent(port: int, count: int, address: str = "127.0.0.2") -> Iterator[list[socket.socket]]:
    """Yield connections from one address, on which nothing is sent."""
    opened: list[socket.socket] = []
    try:
        for _ in range(count):
            opened.append(
                socket.create_connection(("127.0.0.1", port), source_address=(address, 0))
            )
        yield opened
    finally:
        for one in opened:
            one.close()


def is_closed(one: socket.socket) -> bool:
    one.setblocking(False)
    try:
        while data := one.recv(1000):  # the settings that grpcio sends first
            assert data
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


async def closing(opened: list[socket.socket], count: int) -> None:
    """Wait until at least this many connections are closed."""
    await until(lambda: sum(map(is_closed, opened)) >= count)


def alone(asking: Any) -> Any:
    """Return a channel with a separate connection."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
    return grpc.aio.insecure_channel(f"127.0.0.1:{asking.port.number}", options=options)


async def live(asking: Any) -> bool:
    async with alone(asking) as channel:
        method = channel.unary_unary(f"/{INFERENCE}/ServerLive")
        await method(b"", timeout=PATIENCE_S)
    return True


@run
async def test_one_address_leaves_connections_to_others() -> None:
    async with client(limits=FEW) as asking:
        assert await asking.digits(3) == [3]
        for _ in range(3):  # opened anew, too
            with silent(asking.port.number, 20) as opened:
                await closing(opened, 14)
                assert await live(asking)
                assert await asking.digits(4) == [4]


@run
async def test_the_longest_silent_connection_gives_way_to_a_new_one() -> None:
    async with client(limits=FEW) as asking:
        with silent(asking.port.number, 6) as opened:
            counted = asking.port._connections
            assert counted is not None
            await until(lambda: len(counted._open) == 6)
            await asyncio.sleep(2 * GRACE_S)
            with silent(asking.port.number, 1) as newest:
                await until(lambda: sum(map(is_closed, opened)) == 1)
                assert not is_closed(newest[0])


@run
async def test_a_connection_with_a_request_does_not_give_way() -> None:
    async with client(limits=FEW) as asking:
        stream = asking.call("ModelStreamInfer")()
        await stream.write(digit(5))
        assert digits_in((await stream.read()).infer_response) == [5]
        await asyncio.sleep(2 * GRACE_S)
        with silent(asking.port.number, 12, "127.0.0.1") as opened:
            await until(lambda: sum(map(is_closed, opened)) >= 5)
            await stream.write(digit(6))
            assert digits_in((await stream.read()).infer_response) == [6]
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF


@run
async def test_beyond_the_limit_of_all_only_health_is_answered() -> None:
    async with client(limits=Limits(connections=1, sweep_s=0.05)) as asking:
        stream = asking.call("ModelStreamInfer")()
        await stream.write(digit(5))
        assert digits_in((await stream.read()).infer_response) == [5]
        async with alone(asking) as channel:
            assert await channel.unary_unary(f"/{INFERENCE}/ServerLive")(b"", timeout=PATIENCE_S)
            counted = asking.port._connections
            assert counted is not None
            await until(lambda: len(counted._open) == 2)
            async with refused(grpc.StatusCode.UNAVAILABLE, "connections of the server are in use"):
                await channel.unary_unary(f"/{INFERENCE}/ServerMetadata")(b"", timeout=PATIENCE_S)
            assert await channel.unary_unary(f"/{INFERENCE}/ServerLive")(b"", timeout=PATIENCE_S)
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF


def no_descriptor(_: int) -> NoReturn:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@run
async def test_connections_are_counted_again_once_descriptors_are_free(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with client(limits=FEW) as asking:
        with silent(asking.port.number, 6, "127.0.0.3") as early:
            counted = asking.port._connections
            assert counted is not None
            await until(lambda: len(counted._open) == 6)
            with monkeypatch.context() as patch:
                patch.setattr(os, "dup", no_descriptor)
                with silent(asking.port.number, 14) as opened:
                    await until(lambda: "cannot be counted" in caplog.text)
                    await counted.hang_up_on(early[0].getsockname())
                    await asyncio.sleep(2 * FEW.sweep_s)
                    assert not any(map(is_closed, (*early, *opened)))
                    patch.undo()
                    await until(lambda: is_closed(early[0]))
                    await closing(opened, 8)
            assert len(caplog.records) == 1
        assert await asking.digits(4) == [4]


@pytest.mark.parametrize(
    ("text", "peer"),
    [
        ("ipv4:1.2.3.4:5", ("1.2.3.4", 5)),
        ("ipv6:%5B::1%5D:50", ("::1", 50)),
        ("ipv6:[::ffff:1.2.3.4]:7", ("1.2.3.4", 7)),
        ("unix:/tmp/x", ("", 0)),
    ],
)
def test_peers_are_read_in_every_form(text: str, peer: tuple[str, int]) -> None:
    assert peer_of(text) == peer
