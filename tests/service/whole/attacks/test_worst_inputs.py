"""A server under the worst known inputs. One honest client is served next to eight clients that
send only these inputs.

The same test also runs over gRPC, with the messages of tests/fuzz/lock.py and with compressed
messages.
"""

import http.client
import itertools
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from math import inf
from pathlib import Path
from statistics import quantiles

import grpc
import pytest

from models import BUILT_IN_MODEL
from service.grpc.messages import INFERENCE
from tests.fuzz import lock
from tests.service.whole.test_edge_process import Serving, serving
from tests.support import PATIENCE_S
from tests.support.images import worst_inputs as worst

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")

CLIENTS = 8
DECODE_MB = 600
INFER = "/v2/models/digits/infer"
CLASSIFY = "/v1/classify"

# What may wait in memory beside what is decoded: bodies (20 MB, and 1 MiB for each of 128 images),
# of which one is inflated or made a tensor, twice its size; and the buffers of eight connections.
MOST_BESIDE = 300 * worst.MB

# By gRPC nothing is decoded. Eight messages of 8 MB in pieces as they arrive, as many in one piece,
# and up to three times as much that glibc keeps, in an arena for each of grpcio's threads: 345 to
# 430 MB were seen in a minute.
MOST_BY_GRPC = 500 * worst.MB

# A request as `http.client` wants it.
Asked = tuple[str, bytes, Mapping[str, str]]

_SAMPLES = {
    str(digit): next((BUILT_IN_MODEL.parent / "samples").glob(f"{digit}_*")).read_bytes()
    for digit in range(10)
}


def hostile(times: int) -> list[Asked]:
    """Return a request for each of the worst inputs, and `times` requests for inputs that take long
    to read."""
    form = {"Content-Type": f"multipart/form-data; boundary={worst.BOUNDARY.decode()}"}
    gzip = {"Content-Encoding": "gzip"}
    asked: list[Asked] = []
    for data in worst.JSON.values():
        asked.append((INFER, data.replace(b"[1,224,224,3]", b"[1,32,32,1]"), {}))
    asked += [(CLASSIFY, data, form) for data in worst.FORMS.values()]
    asked += [(CLASSIFY, data, {}) for data in worst.HEADERS.values()]
    asked += [(INFER, make(), gzip) for make in worst.COMPRESSED.values()] * times
    asked += [(CLASSIFY, make(), {}) for make in worst.IMAGES.values()] * times
    asked += [(f"{CLASSIFY}?{query.decode()}", b"7", {}) for query in worst.QUERIES.values()]
    for text in worst.ACCEPTED.values():
        asked.append((CLASSIFY, b"7", {"Accept-Encoding": text.decode()}))
    for text in worst.CONTENT_TYPES.values():
        asked.append((CLASSIFY, b"7", {"Content-Type": text.decode()}))
    return asked


class Attack:
    """Clients that send the worst inputs, once or repeatedly, and wait for each answer."""

    def __init__(self, port: int, *, again: bool) -> None:
        self.port, self._again = port, again
        # 0 means that the server closed the connection without an answer.
        self.statuses: Counter[int | grpc.StatusCode] = Counter()
        self.stopped = threading.Event()
        self._asked: list[Asked] = []

    def start(self) -> tuple[list[threading.Thread], list[threading.Thread]]:
        """Start the threads: first the clients, then others. The clients end when everything is
        sent. All threads end soon after `stopped` is set."""
        self._asked = hostile(4 if self._again else 1)
        clients = [threading.Thread(target=self._ask, args=(n,)) for n in range(CLIENTS)]
        others = [threading.Thread(target=self._send_heads), threading.Thread(target=self._open)]
        for thread in (*clients, *others):
            thread.start()
        return clients, others

    def _ask(self, number: int) -> None:
        start = number * len(self._asked) // CLIENTS
        asked = itertools.cycle(self._asked[start:] + self._asked[:start])
        most = None if self._again else -(-len(self._asked) // CLIENTS)
        for path, body, headers in itertools.islice(asked, most):
            if self.stopped.is_set():
                return
            with closing(
                http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
            ) as client:
                try:
                    client.request("POST", path, body, headers)
                    status = client.getresponse().status
                except OSError:  # it was told No and cut off while it was still sending
                    status = 0
            self.statuses[status] += 1

    def _send_heads(self) -> None:
        for head in itertools.cycle(worst.HEADS.values()):
            if self.stopped.wait(0.05):
                return
            with (
                suppress(OSError),
                closing(socket.create_connection(("127.0.0.1", self.port))) as s,
            ):
                s.sendall(head + b"\r\n\r\n")
                s.settimeout(1)
                s.recv(100)

    def _open(self) -> None:
        """Open connections on which nothing is sent."""
        silent = []
        while not self.stopped.wait(0.02):
            with suppress(OSError):
                silent.append(socket.create_connection(("127.0.0.1", self.port)))
        for each in silent:
            each.close()


class GrpcAttack(Attack):
    """Clients that send the worst messages over gRPC."""

    def start(self) -> tuple[list[threading.Thread], list[threading.Thread]]:
        """Start the threads of the clients."""
        named = b"\x0a\x06digits"  # the field that names the model
        worst_known = (long for kind, long in lock.KNOWN.values() if kind == b"protobuf")
        bodies = [named + long.body() for long in worst_known]
        clients = [threading.Thread(target=self._call, args=(n, bodies)) for n in range(CLIENTS)]
        for thread in clients:
            thread.start()
        return clients, []

    def _call(self, number: int, bodies: Sequence[bytes]) -> None:
        bomb = bytes(30 * worst.MB)
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        with grpc.insecure_channel(f"127.0.0.1:{self.port}", options) as channel:
            infer = channel.unary_unary(f"/{INFERENCE}/ModelInfer")
            for place in itertools.islice(itertools.count(number), None if self._again else 4):
                if self.stopped.is_set():
                    return
                packed = grpc.Compression.Gzip if place % 4 == 0 else None
                body = bodies[place % len(bodies)] if packed is None else bomb
                try:
                    infer(body, compression=packed, timeout=PATIENCE_S)
                    self.statuses[200] += 1
                except grpc.RpcError as error:
                    self.statuses[error.code()] += 1


def peak_bytes(process: int) -> int:
    """Return the peak memory of a process."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


# A message that is too long, or none at all, and what there is no room for.
_REFUSED = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED}


def check(server: Serving, seconds: float | None = None, grpc_port: int | None = None) -> None:
    """Attack for `seconds`, or until each input was sent once.

    Every honest request must be answered with its own result. If `seconds` is given, the answers
    must also come soon.
    """
    before = peak_bytes(server.process.pid)
    kind, port = (Attack, server.port) if grpc_port is None else (GrpcAttack, grpc_port)
    attack = kind(port, again=seconds is not None)
    clients, others = attack.start()
    latencies = []
    end = time.monotonic() + (seconds or inf)
    try:
        for digit in itertools.cycle(_SAMPLES):
            started = time.monotonic()
            if started > end or not any(client.is_alive() for client in clients):
                break
            status, answer = server.classify(_SAMPLES[digit])
            assert (status, answer) == (200, digit)
            latencies.append(time.monotonic() - started)
            time.sleep(max(0.0, 0.2 - latencies[-1]))
    finally:
        attack.stopped.set()
        for thread in (*clients, *others):
            thread.join(2 * PATIENCE_S)
    assert latencies
    if seconds is not None:
        assert quantiles(latencies, n=100)[98] < 1.0, sorted(latencies)[-5:]
    most = MOST_BY_GRPC if grpc_port else DECODE_MB * worst.MB + MOST_BESIDE
    assert peak_bytes(server.process.pid) - before < most
    assert attack.statuses.total() > 2 * (seconds or 15)
    # What is wrong is said; what there is no room for is told when to come back.
    statuses = {0, 200, 400, 408, 413, 414, 415, 422, 429, 431, 503, *_REFUSED}
    assert attack.statuses.keys() <= statuses, attack.statuses
    assert attack.statuses[0] < attack.statuses.total() / 10, attack.statuses
    server.stop()


def test_an_honest_client_is_answered_among_hostile_ones() -> None:
    with serving("--decode-mb", DECODE_MB, "--threads", 2) as server:
        check(server)


@pytest.mark.slow
def test_an_honest_client_is_answered_soon_among_hostile_ones() -> None:
    with serving("--decode-mb", DECODE_MB, "--threads", 2) as server:
        check(server, 60)


def test_an_honest_client_is_answered_among_hostile_ones_by_grpc() -> None:
    with serving("--decode-mb", DECODE_MB, "--threads", 2, "--grpc-port", 0) as server:
        check(server, grpc_port=server.grpc_port)


@pytest.mark.slow
def test_an_honest_client_is_answered_soon_among_hostile_ones_by_grpc() -> None:
    with serving("--decode-mb", DECODE_MB, "--threads", 2, "--grpc-port", 0) as server:
        check(server, 60, server.grpc_port)
