"""Runs a server on a loopback port, in a thread. A function answers each GET."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def answering(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    """Run the server, and yield its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_port}"
        finally:
            listening.shutdown()
            thread.join()


def send_part(handler: BaseHTTPRequestHandler, whole: bytes, begin: int, end: int) -> None:
    """Send only `whole[begin:end]`, although the headers declare everything from `begin` to the end
    of `whole`."""
    handler.send_response(206 if begin else 200)
    handler.send_header("content-length", str(len(whole) - begin))
    if begin:
        handler.send_header("content-range", f"bytes {begin}-{len(whole) - 1}/{len(whole)}")
    handler.end_headers()
    handler.wfile.write(whole[begin:end])
