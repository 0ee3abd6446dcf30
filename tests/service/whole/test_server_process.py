"""A real server process on a loopback port: batching, clients that leave, large bodies, signals."""

import contextlib
import json
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from service.api.v1 import CLASSIFY_PATH
from service.edge.connections import KEPT_S
from service.http.server import ListenError, bind
from tests.support import PATIENCE_S
from tests.support.servers.asked import AskedServer, ServerProcess
from tests.support.servers.control import Control, until
from tests.support.servers.forked import FAKE_SERVER, Forked
from tests.support.service.client import metric_in


class Server(AskedServer):
    """A running fake server, and requests to it."""

    def __init__(self, process: ServerProcess) -> None:
        assert process.stdout is not None
        super().__init__(process, int(process.stdout.readline()))

    def classify(self, digit: int) -> int | tuple[int, Any]:
        """Return the likeliest class of an image of `digit`, or the status and the body if the
        request failed."""
        status, body = self.exchange("POST", CLASSIFY_PATH, str(digit).encode())
        if status != 200:
            return status, body
        index: int = body["results"][0]["predictions"][0]["index"]
        return index

    def metric(self, sample: str) -> float:
        """Return the value of a sample of /metrics, or 0 if it does not exist yet."""
        _, text = self.exchange("GET", "/metrics")
        try:
            return metric_in(text, sample)
        except AssertionError:
            return 0.0


@contextmanager
def running(*options: object) -> Iterator[Server]:
    """Yield a fake server that is ready. If it still runs at the end, it is killed."""
    process = start(*options)
    try:
        yield Server(process)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One server for all the tests that do not change it."""
    with running() as shared:
        yield shared


def start(*options: object) -> Forked:
    """Return the process of a fake server."""
    return Forked(FAKE_SERVER, *options)


def head(*lines: str) -> bytes:
    """Return the beginning of a POST, up to its body."""
    start_line = f"POST {CLASSIFY_PATH} HTTP/1.1"
    return "\r\n".join([start_line, "Host: convoy", *lines, "", ""]).encode()


def read_all(connection: socket.socket) -> bytes:
    """Return everything until the other side closes."""
    received = b""
    while piece := connection.recv(65536):
        received += piece
    return received


def read_until(connection: socket.socket, end: bytes) -> bytes:
    """Return the bytes up to `end`. The other side keeps the connection open."""
    received = b""
    while end not in received:
        piece = connection.recv(65536)
        assert piece, received
        received += piece
    return received


def in_flight(server: Server, pool: ThreadPoolExecutor, digits: range) -> list[Future[Any]]:
    """Request an image of each digit. Return the requests as soon as the server has accepted all of
    them."""
    requests = [pool.submit(server.classify, digit) for digit in digits]
    until(lambda: server.metric("convoy_images_inside") == len(digits))
    return requests


def test_clients_in_parallel_are_batched_and_each_gets_its_own_answer(tmp_path: Path) -> None:
    control, clients = Control(tmp_path), 24
    with running("--control", tmp_path) as server, ThreadPoolExecutor(clients) as pool:
        with control.holding():
            sent = [n % 10 for n in range(clients)]
            asked = [pool.submit(server.classify, digit) for digit in sent]
            until(lambda: server.metric("convoy_images_inside") == clients)
        assert [each.result() for each in asked] == sent
        batches = server.metric("convoy_batch_size_count")
        assert batches < clients / 2
        assert server.metric('convoy_batch_size_bucket{le="8.0"}') == batches
        # Some were as large as they may be.
        assert server.metric('convoy_batch_size_bucket{le="7.0"}') < batches
        assert server.metric("convoy_images_total") == clients


def test_a_client_that_hangs_up_is_dropped_before_it_is_computed(tmp_path: Path) -> None:
    control = Control(tmp_path)
    with running("--control", tmp_path) as server, ThreadPoolExecutor(1) as pool:
        with control.holding():
            first = pool.submit(server.classify, 1)
            control.until_held()
            leaving = server.raw(head("Content-Length: 1") + b"2")
            until(lambda: server.metric("convoy_images_inside") == 2)
            leaving.close()
            until(lambda: server.metric('convoy_requests_total{status="499"}') == 1)
        assert first.result() == 1
        assert server.classify(3) == 3
        assert server.metric("convoy_batch_size_sum") == 2


def test_a_client_that_announces_too_much_is_told_before_it_sends(server: Server) -> None:
    with server.raw(head("Content-Length: 100000000")) as connection:
        received = read_until(connection, b'"}')
        assert received.startswith(b"HTTP/1.1 413 ")
        assert b"at most 100000" in received
        assert b"connection: close" in received
    assert server.classify(1) == 1


def test_a_client_that_asks_first_is_told_not_to_send(server: Server) -> None:
    with server.raw(head("Content-Length: 100000000", "Expect: 100-continue")) as connection:
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")
    # Such a client may or may not send the body, so the connection cannot go on.
    lines = ("Content-Length: 5", "Expect: 100-continue", "Content-Type: text/plain")
    with server.raw(head(*lines)) as connection:
        received = read_until(connection, b'"}')
        assert received.startswith(b"HTTP/1.1 415 ")
        assert b"connection: close" in received


@pytest.mark.parametrize("chunked", [False, True])
def test_a_client_that_sends_it_all_regardless_reads_the_refusal(
    server: Server, chunked: bool
) -> None:
    size = 8_000_000  # in a moment, as the server gives it three seconds
    server.classify(1)
    before = server.resident_bytes()
    length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {size}"
    with server.raw(head(length)) as connection:
        piece = b"x" * 1_000_000
        for _ in range(size // len(piece)):
            connection.sendall(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
        if chunked:
            connection.sendall(b"0\r\n\r\n")
        assert read_all(connection).startswith(b"HTTP/1.1 413 ")
    assert server.resident_bytes() - before < 4_000_000
    assert server.classify(1) == 1


def test_a_connection_survives_a_refusal_of_a_body_of_allowed_size(server: Server) -> None:
    refused = head("Content-Type: text/plain", "Content-Length: 50000") + b"x" * 50_000
    good = head("Content-Length: 1", "Connection: close") + b"7"
    with server.raw(refused + good) as connection:
        first, _, second = read_all(connection).partition(b'"}HTTP/1.1 ')
        assert first.startswith(b"HTTP/1.1 415 ")
        assert second.startswith(b"200 ")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_what_is_in_flight_finish_and_the_exit_status_is_0(
    number: signal.Signals, tmp_path: Path
) -> None:
    with running("--control", tmp_path) as server, ThreadPoolExecutor(20) as pool:
        with Control(tmp_path).holding():
            requests = in_flight(server, pool, range(10))
            server.process.send_signal(number)
            # It says that it is leaving, and takes nothing new.
            until(lambda: server.exchange("GET", "/v2/health/ready")[0] == 503)
            assert server.exchange("GET", "/v2/health/live") == (200, {"live": True})
            status, body = server.exchange("POST", CLASSIFY_PATH, b"1")
            assert (status, list(body)) == (503, ["error"])
        assert [request.result() for request in requests] == list(range(10))
        assert server.process.wait(PATIENCE_S) == 0
        with pytest.raises(ConnectionRefusedError):
            server.classify(1)


def test_readiness_fails_before_requests_are_refused() -> None:
    with running("--notice-s", "600") as server:
        server.process.terminate()
        until(lambda: server.exchange("GET", "/v2/health/ready")[0] == 503)
        assert server.exchange("GET", "/v2/health/live")[0] == 200
        assert [server.classify(digit) for digit in range(10)] == list(range(10))
        server.process.terminate()  # which ends the notice
        server.process.wait(PATIENCE_S)


def test_the_server_ends_after_the_notice() -> None:
    with running("--notice-s", "1") as server:
        began = time.monotonic()
        server.process.terminate()
        assert server.process.wait(PATIENCE_S) == 0
        assert time.monotonic() - began >= 1


def test_a_signal_when_nothing_is_in_flight_ends_it_at_once() -> None:
    with running("--drain-s", "600") as server, server.raw(b"") as unused:
        server.process.terminate()
        assert server.process.wait(PATIENCE_S) == 0
        assert unused.recv(1) == b""


def test_a_client_that_keeps_its_connection_is_answered_once_more_as_the_server_ends() -> None:
    asks = head("Content-Length: 1") + b"7"
    kept_s = ("--kept-s", PATIENCE_S)
    with running("--drain-s", "600", *kept_s) as server, server.raw(asks) as kept:
        assert b"connection:" not in read_until(kept, b'"batch_size":1,"version":"1"}')
        server.process.terminate()
        until(lambda: server.exchange("GET", "/v2/health/ready")[0] == 503)
        kept.sendall(asks)
        answer = read_all(kept)  # it is the last
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"connection: close" in answer
        assert server.process.wait(PATIENCE_S) == 0


def test_a_connection_that_is_only_kept_open_delays_the_end_by_a_moment() -> None:
    asks = head("Content-Length: 1") + b"7"
    with running("--drain-s", "600") as server, server.raw(asks) as silent:
        read_until(silent, b'"batch_size":1,"version":"1"}')
        server.process.terminate()
        assert server.process.wait(PATIENCE_S) == 0
        assert read_all(silent) == b""


def test_connections_are_kept_for_as_long_as_something_is_in_flight(tmp_path: Path) -> None:
    with running("--control", tmp_path) as server, ThreadPoolExecutor(1) as pool:
        with server.raw(head("Content-Length: 1") + b"1") as kept:
            read_until(kept, b'"batch_size":1,"version":"1"}')
            with Control(tmp_path).holding():
                (request,) = in_flight(server, pool, range(1))
                time.sleep(1.1 * KEPT_S)
                server.process.terminate()
                until(lambda: server.exchange("GET", "/v2/health/ready")[0] == 503)
                status, _ = server.exchange("POST", CLASSIFY_PATH, b"1")
                assert status == 503  # it drains
                kept.sendall(head("Content-Length: 1") + b"1")
                answer = read_all(kept)
                assert answer.startswith(b"HTTP/1.1 503 ")
                assert b"connection: close" in answer
            assert request.result() == 0
        assert server.process.wait(PATIENCE_S) == 0


def test_what_takes_longer_than_the_drain_is_answered_503_and_the_exit_status_is_1(
    tmp_path: Path,
) -> None:
    options = "--control", tmp_path, "--drain-s", "0.2"
    with running(*options) as server, Control(tmp_path).holding(), ThreadPoolExecutor(1) as pool:
        (request,) = in_flight(server, pool, range(1))
        server.process.terminate()
        status, body = request.result()
        assert (status, list(body)) == (503, ["error"])
        # The engine is stuck; the process does not wait for it.
        assert server.process.wait(PATIENCE_S) == 1


def test_a_second_signal_gives_up_what_is_in_flight(tmp_path: Path) -> None:
    options = "--control", tmp_path, "--drain-s", "600"
    with running(*options) as server, Control(tmp_path).holding(), ThreadPoolExecutor(1) as pool:
        (request,) = in_flight(server, pool, range(1))
        server.process.terminate()
        until(lambda: server.exchange("GET", "/v2/health/ready")[0] == 503)
        server.process.terminate()
        assert request.result()[0] == 503
        assert server.process.wait(PATIENCE_S) == 1


def test_an_engine_that_cannot_be_warmed_up_ends_the_process_with_its_reason() -> None:
    process = start("--cannot-warm-up")
    out, error = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert out == ""
    assert error.rstrip().endswith("EngineError: no memory")


def test_an_address_that_is_taken_or_unknown_is_one_clear_error() -> None:
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=f"127.0.0.1 port {port}: Address already in use"):
            bind("127.0.0.1", port)
    with pytest.raises(ListenError, match="--host"):
        bind("no.such.host.invalid", 0)


def test_an_address_that_another_server_has_is_not_shared(server: Server) -> None:
    with pytest.raises(ListenError):
        bind("127.0.0.1", server.port)


@pytest.mark.parametrize(
    "request_head",
    [
        b"GET /" + b"a" * 2_000_000,
        b"GET / HTTP/1.1\r\nX-Long: " + b"a" * 2_000_000,
        b"GET / HTTP/1.1\r\n" + b"X-Many: a\r\n" * 200_000,
    ],
    ids=["a url", "one header", "many headers"],
)
def test_a_head_without_end_is_refused_in_bounded_memory(
    server: Server, request_head: bytes
) -> None:
    before = server.resident_bytes()
    with closing(
        socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S)
    ) as connection:
        with contextlib.suppress(ConnectionError):  # closed while this still sends
            connection.sendall(request_head)
        received = b""
        with contextlib.suppress(ConnectionError):
            received = read_all(connection)
    if received:  # a reset may overtake it
        assert received.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 414 "))
        assert list(json.loads(received.partition(b"\r\n\r\n")[2])) == ["error"]
    assert server.resident_bytes() - before < 10_000_000
    assert server.classify(4) == 4


def test_a_head_just_too_long_is_told_so(server: Server) -> None:
    with closing(server.raw(b"GET / HTTP/1.1\r\nX-Long: " + b"a" * 66_000)) as connection:
        received = read_all(connection)
    assert received.startswith(b"HTTP/1.1 431 ")
    assert b"the request line and headers exceed 65536 bytes or 100 headers" in received


def test_trailers_without_end_close_the_connection(server: Server) -> None:
    before = server.resident_bytes()
    start = (
        head("Content-Type: image/png", "Transfer-Encoding: chunked") + b"1\r\n4\r\n0\r\nX-Long: "
    )
    with closing(server.raw(start)) as connection:
        with contextlib.suppress(ConnectionError):
            for _ in range(40):
                connection.sendall(b"a" * 100_000)
        with contextlib.suppress(ConnectionError):
            read_all(connection)
    assert server.resident_bytes() - before < 10_000_000
    assert server.classify(4) == 4


def test_what_is_no_http_is_refused_in_the_one_error_shape(server: Server) -> None:
    with closing(server.raw(b"this is no http\r\n\r\n")) as connection:
        received = read_all(connection)
    assert received.startswith(b"HTTP/1.1 400 ")
    assert list(json.loads(received.partition(b"\r\n\r\n")[2])) == ["error"]
