"""Restarts two servers alternately while clients that follow HTTP send requests.

A client may repeat a POST only if the server certainly did not compute it. This is so if the
connection was refused or the answer is 503. After `connection: close`, the client sends its next
request to the other server.
"""

import http.client
import itertools
import json
import random
import select
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from service.http.server import ListenError, bind
from tests.support import PATIENCE_S
from tests.support.servers.forked import FAKE_SERVER, Forked

PATH = "/v1/classify"


class RestartableServer:
    """Runs a fake server that can be stopped and started again on its port."""

    def __init__(self, port: int, *options: str) -> None:
        self.port = port
        self._arguments = ["--port", str(port), *options]
        self._process: Forked | None = None

    def start(self) -> None:
        """Start the server, and wait until it is ready."""
        self._process = Forked(FAKE_SERVER, *self._arguments, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + PATIENCE_S
        while not self._is_ready():
            assert self._process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def stop(self) -> None:
        """Stop the server as a process manager does. The server must exit with status 0."""
        assert self._process is not None
        self._process.terminate()
        assert self._process.wait(PATIENCE_S) == 0

    def kill(self) -> None:
        """Kill the server, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()


@contextmanager
def pair(*options: str) -> Iterator[list[RestartableServer]]:
    """Yield two servers that are ready."""
    servers = [RestartableServer(port, *options) for port in _ports_to_keep(2)]
    try:
        for server in servers:
            server.start()
        yield servers
    finally:
        for server in servers:
            server.kill()


def _ports_to_keep(count: int) -> list[int]:
    """Return free ports below the range from which the system assigns ports. A port in that range
    might be assigned to another test while the server is stopped."""
    free: list[int] = []
    for port in random.sample(range(10_000, 30_000), 100):
        with suppress(ListenError), bind("127.0.0.1", port):
            free.append(port)
        if len(free) == count:
            return free
    raise OSError("no two of 100 ports from 10,000 to 30,000 are free")


class Client:
    """Sends requests until it is stopped, and counts their outcomes: "right", or an error."""

    def __init__(self, ports: Sequence[int], pause_s: float, *, keep: bool) -> None:
        """Prepare the client. If `keep`, it uses a connection as long as the server keeps it.
        Otherwise, it opens one connection per request."""
        self._ports = itertools.cycle(ports)
        self._pause_s = pause_s
        self._keep = keep
        self._connection: http.client.HTTPConnection | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.ended: Counter[str] = Counter()
        self.closed = 0  # connections that a server closed after an answer
        self.refused = 0  # requests that were answered with 503

    def __enter__(self) -> "Client":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        digits = itertools.cycle(range(10))
        while not self._stop.wait(self._pause_s):
            try:
                self.ended[self._ask(next(digits))] += 1
            except (OSError, http.client.HTTPException) as error:
                self.ended[repr(error)] += 1
                self._close()
        self._close()

    def _ask(self, digit: int) -> str:
        status, body = self._post(digit)
        if status == 503:
            self.refused += 1
            status, body = self._post(digit)
        if status != 200:
            return f"{status} {body!r}"
        label = json.loads(body)["results"][0]["predictions"][0]["index"]
        return "right" if label == digit else f"{label} for {digit}"

    def _post(self, digit: int) -> tuple[int, bytes]:
        connection = self._connect()
        connection.request("POST", PATH, str(digit).encode())
        answer = connection.getresponse()
        body = answer.read()
        if answer.getheader("connection") == "close":
            self.closed += 1
            self._close()
        elif not self._keep:
            self._close()
        return answer.status, body

    def _connect(self) -> http.client.HTTPConnection:
        """Return the open connection. If the server has closed it, return a new one."""
        if self._connection is not None:
            ended = select.poll()  # select would need file numbers below 1024
            ended.register(self._connection.sock, select.POLLIN)
            if not ended.poll(0):
                return self._connection
            self._close()
        for port in itertools.islice(self._ports, 4):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
            try:
                connection.connect()
            except ConnectionRefusedError:
                continue
            self._connection = connection
            return connection
        raise ConnectionRefusedError("both servers refuse")

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
