"""The end of listening, and the interval after which threads release the GIL while a server
runs."""

import asyncio
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from service.edge.edge import Limits
from service.fair_queue import ANYONE
from service.hosting.admission import ByteRoom, Held
from service.hosting.regions import MOST_REGIONS
from service.http.acceptor import MOST_WAITING
from service.http.server import SWITCH_S, Server, http_settings, turn_away
from service.settings import Settings
from tests.support import PATIENCE_S


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux filters the packets of a socket")
def test_who_connects_as_listening_ends_is_refused_and_who_was_before_is_served() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        listener.setblocking(False)
        address = listener.getsockname()
        early = socket.create_connection(address)
        turn_away(listener)
        late = pool.submit(socket.create_connection, address, PATIENCE_S)
        time.sleep(0.2)
        accepted, _ = listener.accept()
        with pytest.raises(BlockingIOError):  # its handshake did not begin
            listener.accept()
        listener.close()
        with pytest.raises(ConnectionRefusedError):
            late.result()
        with early, accepted:
            accepted.settimeout(PATIENCE_S)
            early.sendall(b"more")
            assert accepted.recv(10) == b"more"


def test_threads_give_up_the_interpreters_lock_sooner_while_a_server_runs() -> None:
    before = sys.getswitchinterval()
    found: list[float] = []

    async def run(server: Server) -> None:
        with server.capture_signals():
            found.append(sys.getswitchinterval())

    asyncio.run(run(Server.__new__(Server)))
    assert found == [pytest.approx(SWITCH_S, abs=1e-6)]
    assert sys.getswitchinterval() == before > SWITCH_S


def test_files_of_regions_and_processes_are_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def noted(limits: Limits, more_files: int, spare_files: int) -> Limits:
        asked.append((more_files, spare_files))
        return limits

    monkeypatch.setattr("service.http.server.allowed", noted)
    for shared, threads in ((False, 1), (True, 4)):
        http_settings(_nothing, Settings(shared_memory=shared, threads=threads))
    assert asked == [(2, MOST_WAITING), (4 + 8, MOST_REGIONS + MOST_WAITING)]


@pytest.mark.parametrize("direct", [True, False])
def test_calls_pause_while_models_have_requests_unless_those_take_turns_too(direct: bool) -> None:
    room, settings = ByteRoom(1000), Settings(direct_path=direct)
    turns = http_settings(_nothing, settings, room=room).edge.turns
    assert not turns.is_busy()
    held = Held(room, ANYONE, lambda _: None)
    assert turns.is_busy() == direct
    held.release()
    assert not turns.is_busy()


async def _nothing(*_: Any) -> None:
    """An ASGI application that does nothing."""
