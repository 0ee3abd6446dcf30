"""A server process into which faults are injected, and the requests that check it afterwards."""

import contextlib
import json
import os
import re
import signal
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from service.api.v1 import CLASSIFY_PATH
from tests.support.servers.asked import AskedServer
from tests.support.servers.control import Control, until
from tests.support.servers.forked import FAKE_SERVER, Forked
from tests.support.service.client import samples_in

INFER_PATH = "/v2/models/fake/infer"

_REQUESTS = "convoy_requests_total"


class Rig(AskedServer):
    """A running fake server into which faults can be injected, and its clients."""

    def __init__(
        self, process: Forked, errors: Path, control: Control, port: int | None = None
    ) -> None:
        """Take a running server. If `port` is None, the process prints its port."""
        assert process.stdout is not None
        super().__init__(process, int(process.stdout.readline()) if port is None else port)
        self.control = control
        self.errors = errors  # what the server wrote to its standard error
        self._strangers = count(1)

    # --- well-behaved clients ---

    def classify(self, picture: bytes | int, **headers: str) -> tuple[int, Any]:
        """Return the status, and the likeliest class or the error's message, for one image."""
        body = picture if isinstance(picture, bytes) else str(picture).encode()
        told = {name.replace("_", "-"): value for name, value in headers.items()}
        return read_answer(*self.exchange("POST", CLASSIFY_PATH, body, told))

    def check_serves(self) -> None:
        """Check that an image of every digit gets its own answer."""
        answers = [self.classify(digit) for digit in range(3)]
        assert answers == [(200, n) for n in range(3)], answers

    @contextmanager
    def others(self, pictures: int = 8) -> Iterator[None]:
        """Check that images of other clients, sent while the block runs, are answered with their
        own digits."""
        with ThreadPoolExecutor(pictures) as pool:
            answers = [pool.submit(self.classify, n % 10) for n in range(pictures)]
            yield
            assert [each.result() for each in answers] == [(200, n % 10) for n in range(pictures)]

    # --- the state that the server reports ---

    def metrics(self) -> dict[str, float]:
        """Return the samples of /metrics, except buckets, by name and status."""
        status, text = self.exchange("GET", "/metrics")
        assert status == 200
        return {
            f"{name} {labels['status']}" if "status" in labels else name: value
            for name, labels, value in samples_in(text)
            if "le" not in labels and "phase" not in labels and "reason" not in labels
        }

    def counted(self) -> Counter[str]:
        """Return the requests to the model by the status of their answer."""
        told = self.metrics()
        return Counter(
            {
                key.removeprefix(f"{_REQUESTS} "): int(value)
                for key, value in told.items()
                if key.startswith(f"{_REQUESTS} ")
            }
        )

    def inside(self) -> tuple[float, float]:
        """Return the numbers of accepted images and of queued images."""
        told = self.metrics()
        return told["convoy_images_inside"], told["convoy_queue_depth"]

    def threads(self) -> int:
        """Return the number of threads of the process."""
        return len(list(Path(f"/proc/{self.process.pid}/task").iterdir()))

    def descriptors(self) -> int:
        """Return the number of open files of the process."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    # --- misbehaving clients ---

    def stranger(self, *pieces: bytes) -> socket.socket:
        """Return a connection of a client that has not connected before, and so owes no turn."""
        high, low = divmod(next(self._strangers), 250)
        return self.raw(*pieces, address=f"127.1.{high}.{low + 1}")

    def answers(self, *pieces: bytes, half_close: bool = False) -> list[tuple[int, Any]]:
        """Send bytes on a connection. Return all answers until the server closes the connection."""
        with closing(self.raw(*pieces)) as connection:
            if half_close:
                connection.shutdown(socket.SHUT_WR)
            return parse_answers(read_all(connection))

    def wait_inside(self, images: int) -> None:
        """Wait until this many images are accepted."""
        until(lambda: self.inside()[0] == images)

    def wait_until_inside(self, request: "Future[Any]") -> None:
        """Wait until an image is accepted, or until its request was accepted and already
        answered."""
        until(lambda: request.done() or self.inside()[0] > 0)

    def many(
        self, pool: ThreadPoolExecutor, pictures: list[bytes]
    ) -> "list[Future[tuple[int, Any]]]":
        """Start requests for these images, each on its own connection."""
        return [pool.submit(self.classify, picture) for picture in pictures]


@contextmanager
def rigged(folder: Path, *options: str) -> Iterator[Rig]:
    """Yield a fake server with faults. At the end, the server is killed if it still runs."""
    errors = folder / "stderr"
    with errors.open("w") as opened:
        told = ("--faults", "--control", str(folder), *options)
        process = Forked(FAKE_SERVER, *told, stderr=opened)
    try:
        yield Rig(process, errors, Control(folder))
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.communicate()


def head(*lines: str, path: str = CLASSIFY_PATH, length: int | None = None) -> bytes:
    """Return the beginning of a POST, up to its body."""
    told = () if length is None else (f"Content-Length: {length}",)
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: convoy", *told, *lines, "", ""]).encode()


def post(body: bytes, *lines: str, path: str = CLASSIFY_PATH) -> bytes:
    """Return a complete POST."""
    return head(*lines, path=path, length=len(body)) + body


def reset(connection: socket.socket) -> None:
    """Close a connection like a crashed client: from now on, bytes from the server are answered
    with a reset."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def read_all(connection: socket.socket) -> bytes:
    """Return everything until the other side closes."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            received += piece
    return received


def parse_answers(received: bytes) -> list[tuple[int, Any]]:
    """Return every complete answer in the received bytes. Fail if they contain anything else."""
    answers = []
    while received:
        top, blank, rest = received.partition(b"\r\n\r\n")
        assert blank, received
        status = re.match(rb"HTTP/1\.1 (\d+) ", top)
        assert status, received
        if status[1] == b"100":
            received = rest
            continue
        length = re.search(rb"content-length: (\d+)", top.lower())
        assert length, top
        body, received = rest[: int(length[1])], rest[int(length[1]) :]
        assert len(body) == int(length[1]), "an answer was cut short"
        answers.append(read_answer(int(status[1]), json.loads(body)))
    return answers


def read_answer(status: int, content: Any) -> tuple[int, Any]:
    """Return the status and the content: the likeliest class, a list of them for several images, or
    the message of an error."""
    if status != 200:
        assert list(content) == ["error"], content
        return status, content["error"]
    if "results" not in content:
        return status, content
    digits = [result["predictions"][0]["index"] for result in content["results"]]
    return status, digits[0] if len(digits) == 1 else digits
