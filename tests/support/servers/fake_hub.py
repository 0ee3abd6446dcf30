"""Imitates a hub of models on a loopback port. The hub has one repository with files, and lists
these files."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.support.servers.answering import answering, send_part

COMMIT = "c0ffee" + "0" * 34
REPOSITORY = "maker/flowers"

Answer = Callable[[BaseHTTPRequestHandler, bytes, int], None]
"""A function that answers with a file, or a part of it, from the beginning of a range."""


def send(handler: BaseHTTPRequestHandler, data: bytes, begin: int) -> None:
    """Answer correctly."""
    send_part(handler, data, begin, len(data))


@dataclass
class FakeHub:
    """Holds the repository, the requests so far, and the answers that the next requests will
    get."""

    files: dict[str, bytes]
    url: str = ""
    commit: str = COMMIT
    token: str = ""  # that requests must have
    # By the last part of a path: answers, each for one request. Later requests are answered
    # correctly.
    faults: defaultdict[str, list[Answer]] = field(default_factory=lambda: defaultdict(list))
    asked: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)

    @property
    def paths(self) -> list[str]:
        """Return the paths of the requests so far. The path of a file is its path in the
        repository."""
        paths = [unquote(path.partition("?")[0]) for path, _ in self.asked]
        return [path.rpartition(f"/resolve/{self.commit}/")[2] for path in paths]

    def listing(self) -> dict[str, Any]:
        """Return the hub's description of the repository. Models are stored as large files, for
        which git has pointers."""
        return {
            "id": REPOSITORY,
            "sha": self.commit,
            "private": False,
            "siblings": [self._sibling(name, data) for name, data in self.files.items()],
        }

    def _sibling(self, name: str, data: bytes) -> dict[str, Any]:
        blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        entry: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": blob}
        if ".onnx" in name:
            sha256 = hashlib.sha256(data).hexdigest()
            entry |= {"blobId": "f" * 40, "lfs": {"sha256": sha256, "size": len(data)}}
        return entry

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer a request, and record it."""
        headers = {name.lower(): value for name, value in handler.headers.items()}
        self.asked.append((handler.path, headers))
        path = unquote(urlsplit(handler.path).path)
        fault = self.faults[path.rpartition("/")[2]]
        answer = fault.pop(0) if fault else send
        if self.token and headers.get("authorization") != f"Bearer {self.token}":
            handler.send_error(401)
        elif path.startswith(f"/api/models/{REPOSITORY}/revision/"):
            answer(handler, json.dumps(self.listing()).encode(), 0)
        else:
            name = path.removeprefix(f"/{REPOSITORY}/resolve/{self.commit}/")
            if name not in self.files:
                handler.send_error(404)
                return
            begin = int(headers.get("range", "bytes=0-")[6:-1])
            answer(handler, self.files[name], begin)


@contextmanager
def fake_hub(files: Mapping[str, bytes]) -> Iterator[FakeHub]:
    """Run a hub with these files."""
    hub = FakeHub(dict(files))
    with answering(hub.answer) as hub.url:
        yield hub
