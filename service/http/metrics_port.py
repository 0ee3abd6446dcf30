"""Serves metrics on a separate port, for a network that clients cannot reach.

Only a few trusted programs read metrics, so a single thread answers one request at a time.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

from prometheus_client import CONTENT_TYPE_LATEST
from typing_extensions import override

from service.http.server import bind

_PATH = "/metrics"

# Seconds for which a silent connection delays the others.
_SLOW_S = 2.0

_log = logging.getLogger("convoy")


@contextlib.contextmanager
def metrics_port(host: str, port: int, exposition: Callable[[], bytes]) -> Iterator[int]:
    """Within the `with` block, answer GET /metrics with `exposition()` in a thread. Yield the
    port's number. Raises ListenError if the address is in use, forbidden or unknown.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = _SLOW_S

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != _PATH:
                self.send_error(404, explain=f"metrics are at {_PATH}")
                return
            body = exposition()
            self.send_response(200)
            self.send_header("content-type", CONTENT_TYPE_LATEST)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        @override
        def log_message(self, format: str, *args: object) -> None:
            _log.debug(format, *args)

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
