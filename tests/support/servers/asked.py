"""Sends blocking requests to a server in another process. If the server runs in the test's own
process, tests use asyncio instead."""

import http.client
import json
import os
import socket
import subprocess
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from tests.support import PATIENCE_S
from tests.support.servers.forked import Forked

ServerProcess = subprocess.Popen[str] | Forked


class Answer(NamedTuple):
    """Holds a status, headers by their lower-case names, and a body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def content(self) -> Any:
        """Return the content of the body. It is the decoded JSON or, if the body is not JSON, the
        text."""
        is_json = self.headers.get("content-type") == "application/json"
        return json.loads(self.body) if is_json else self.body.decode()


class AskedServer:
    """Holds a server's process and its port, and sends it requests."""

    def __init__(self, process: ServerProcess, port: int) -> None:
        self.process = process
        self.port = port

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Return the answer to a request on a separate connection."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        with closing(connection):
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            named = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, named, response.read())

    def exchange(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Any]:
        """Return the status and the content of the answer to a request."""
        answer = self.ask(method, path, body, headers)
        return answer.status, answer.content()

    def raw(self, *pieces: bytes, address: str = "127.0.0.1") -> socket.socket:
        """Return a connection from this address that has sent these bytes."""
        connection = socket.create_connection(
            ("127.0.0.1", self.port), timeout=PATIENCE_S, source_address=(address, 0)
        )
        for piece in pieces:
            connection.sendall(piece)
        return connection

    def resident_bytes(self) -> int:
        """Return the current memory of the process."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
