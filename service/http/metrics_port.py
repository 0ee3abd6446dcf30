"""Serves metrics on a separate port, which can be hidden from clients.

Only a few trusted programs read metrics, so a single thread answers one request at a time.
"""

import contextlib
import io
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from time import monotonic
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from typing_extensions import override

from service.http.server import bind

_PATH = "/metrics"

# Seconds in which a client must send its request, and then read the answer: meanwhile, the others
# wait, and the server cannot end.
_SLOW_S = 2.0

# The most characters of a request that the log repeats.
_MOST_CHARACTERS = 200

_log = logging.getLogger("convoy")


class _Received(io.RawIOBase):
    """Reads a connection, for at most `_SLOW_S` seconds in total. A socket's own time limit would
    start again with each byte."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._until = monotonic() + _SLOW_S

    @override
    def readable(self) -> bool:
        return True

    @override
    def readinto(self, buffer: Any) -> int:
        if (left_s := self._until - monotonic()) <= 0:
            raise TimeoutError("the request did not arrive in time")
        self._connection.settimeout(left_s)
        return self._connection.recv_into(buffer)


@contextlib.contextmanager
def metrics_port(host: str, port: int, exposition: Callable[[], bytes]) -> Iterator[int]:
    """Within the `with` block, answer GET /metrics with the result of `exposition()`, in a thread.
    Yield the port's number. Raises ListenError if the address is in use, forbidden or unknown."""

    class Handler(BaseHTTPRequestHandler):
        @override
        def setup(self) -> None:
            super().setup()
            self.rfile.close()
            self.rfile = io.BufferedReader(_Received(self.connection))

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != _PATH:
                self.send_error(404, explain=f"metrics are at {_PATH}")
                return
            body = exposition()
            self.connection.settimeout(_SLOW_S)
            self.send_response(200)
            self.send_header("content-type", CONTENT_TYPE_LATEST)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        @override
        def log_message(self, format: str, *args: object) -> None:
            _log.debug("metrics: %s", ascii(format % args)[:_MOST_CHARACTERS])

    class Server(HTTPServer):
        @override
        def handle_error(self, *_: object) -> None:
            _log.debug("a scrape of the metrics failed", exc_info=True)  # its client has left

    listener = bind(host, port, "--metrics-port")
    server = Server(listener.getsockname()[:2], Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    server.server_activate()
    thread = threading.Thread(target=server.serve_forever, name="metrics-port", daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
