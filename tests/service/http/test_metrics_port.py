"""The separate port for metrics: a slow client delays other clients and the end of the server for a
bounded time."""

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from urllib.request import urlopen

import pytest

from service.http import metrics_port as module
from service.http.metrics_port import metrics_port
from tests.support import PATIENCE_S

SLOW_S = 0.3


@contextmanager
def dripping(port: int) -> Iterator[threading.Event]:
    """Send a request that never ends, byte by byte. Yield an event that is set once the server has
    closed the connection."""
    closed, stop = threading.Event(), threading.Event()

    def drip(connection: socket.socket) -> None:
        with connection:
            while not stop.wait(SLOW_S / 10):
                try:
                    connection.sendall(b"a")
                except ConnectionError:
                    closed.set()
                    return

    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(b"GET /metr")
    thread = threading.Thread(target=drip, args=(connection,))
    thread.start()
    try:
        yield closed
    finally:
        stop.set()
        thread.join()


def test_who_sends_byte_by_byte_delays_others_no_longer_than_who_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_SLOW_S", SLOW_S)
    with metrics_port("127.0.0.1", 0, lambda: b"up 1\n") as port, dripping(port) as closed:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as answer:
            assert answer.read() == b"up 1\n"
        assert closed.wait(PATIENCE_S)


def test_the_port_closes_while_a_client_sends_byte_by_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SLOW_S", SLOW_S)
    with ExitStack() as opened:
        port = opened.enter_context(metrics_port("127.0.0.1", 0, bytes))
        with dripping(port):
            closing_port = threading.Thread(target=opened.close, daemon=True)
            closing_port.start()
            closing_port.join(PATIENCE_S)
            assert not closing_port.is_alive()


def test_a_request_cannot_forge_or_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "convoy")
    with (
        metrics_port("127.0.0.1", 0, bytes) as port,
        closing(socket.create_connection(("127.0.0.1", port))) as connection,
    ):
        connection.sendall(b"GET /\x1b[2J" + b"a" * 5000 + b" HTTP/1.0\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.0 404"
    (line,) = (record.getMessage() for record in caplog.records if "[2J" in record.getMessage())
    assert line.isprintable()
    assert len(line) < 500
