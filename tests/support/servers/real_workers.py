"""Runs a service with workers, over fake engines, and asks it what its tests need."""

import http.client
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.support.servers.control import Control
from tests.support.servers.forked import FAKE_WORKERS, Forked
from tests.support.service.client import metric_in

WORKERS = 2


class Connection(http.client.HTTPConnection):
    """Keeps a connection open between requests."""

    def __init__(self, port: int) -> None:
        super().__init__("127.0.0.1", port, timeout=60)
        self.connect()

    def exchange(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, Any]:
        self.request(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
        response = self.getresponse()
        text = response.read().decode()
        is_json = response.headers["content-type"] == "application/json"
        return response.status, json.loads(text) if is_json else text

    def classify(self, digit: int, model: str = "fake", **headers: str) -> int | tuple[int, str]:
        """Return the class of an image of `digit`, or the status and error."""
        path = f"/v1/models/{model}/classify"
        headers["Content-Type"] = "image/png"
        status, body = self.exchange("POST", path, str(digit).encode(), **headers)
        if status != 200:
            return status, body["error"]
        index: int = body["results"][0]["predictions"][0]["index"]
        return index


class Service(Control):
    """Holds a running service: the engine's process, and its workers."""

    def __init__(self, control: Path, *options: str) -> None:
        super().__init__(control)
        asked = ("--workers", WORKERS, "--control", control, *options)
        self.process = Forked(FAKE_WORKERS, *asked)

    def wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def connect(self) -> Connection:
        return Connection(self.port)

    def metric(self, sample: str) -> float:
        with closing(self.connect()) as connection:
            return metric_in(connection.exchange("GET", "/metrics")[1], sample)

    @property
    def workers(self) -> set[int]:
        """Return the processes of the workers."""
        return {w for forker in children(self.process.pid) for w in children(forker)}

    def worker_of(self, connection: Connection) -> int:
        """Return the worker that has accepted a connection."""
        assert isinstance(connection.sock, socket.socket)
        client, server = f":{connection.sock.getsockname()[1]:04X}", f":{self.port:04X}"
        for line in Path("/proc/net/tcp").read_text().splitlines():
            _, local, remote, *rest = line.split()
            if local.endswith(server) and remote.endswith(client):
                (worker,) = (w for w in self.workers if f"socket:[{rest[6]}]" in open_files(w))
                return worker
        raise AssertionError(f"no worker has {client}")

    @contextmanager
    def one_each(self) -> Iterator[dict[int, Connection]]:
        """Yield a connection to each worker."""
        with self.some_each(1) as found:
            yield {worker: connections[0] for worker, connections in found.items()}

    @contextmanager
    def some_each(self, count: int) -> Iterator[dict[int, list[Connection]]]:
        """Yield at least `count` connections to each worker, whichever worker accepts how many."""
        opened: list[Connection] = []
        found: dict[int, list[Connection]] = {}
        try:
            while len(found) < WORKERS or any(len(have) < count for have in found.values()):
                assert len(opened) < 100 + WORKERS * count
                opened.append(self.connect())
                assert opened[-1].exchange("GET", "/v2/health/live")[0] == 200  # so it is accepted
                found.setdefault(self.worker_of(opened[-1]), []).append(opened[-1])
            yield {worker: connections[:count] for worker, connections in found.items()}
        finally:
            for connection in opened:
                connection.close()


def children(process: int) -> set[int]:
    found = set()
    with suppress(FileNotFoundError):
        for thread in Path(f"/proc/{process}/task").iterdir():
            with suppress(FileNotFoundError):
                found |= {int(child) for child in (thread / "children").read_text().split()}
    return found


def open_files(process: int) -> set[str]:
    found = set()
    with suppress(FileNotFoundError):
        for file in Path(f"/proc/{process}/fd").iterdir():
            with suppress(FileNotFoundError):
                found.add(os.readlink(file))
    return found


def is_there(process: int) -> bool:
    with suppress(FileNotFoundError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def until_gone(process: int, timeout_s: float = 10) -> None:
    """Wait until a process has ended, and kill it if it does not end."""
    deadline = time.monotonic() + timeout_s
    while is_there(process) and time.monotonic() < deadline:
        time.sleep(0.01)
    if is_there(process):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


@contextmanager
def running(control: Path, *options: str) -> Iterator[Service]:
    """Yield a service that is ready; kill it if it still runs at the end."""
    service = Service(control, *options)
    try:
        service.wait_until_ready()
        yield service
    finally:
        left = service.workers
        service.process.kill()
        for worker in left:  # which leave by themselves, if all is well
            until_gone(worker)
        print(service.process.communicate()[1])  # its log, where the test failed
