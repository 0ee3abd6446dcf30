"""deploy/healthcheck.py with a server that is ready, a server that is not, and no server."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.deploy.container_files import ROOT
from tests.support import PATIENCE_S


@contextmanager
def server(status: int) -> Iterator[int]:
    """Yield a server on a free port that answers readiness with `status`, and everything else with
    404."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/v2/health/ready" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield http.server_port
        finally:
            http.shutdown()
            thread.join()


def check(port: int, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "deploy" / "healthcheck.py"],
        env={**os.environ, "CONVOY_PORT": str(port), **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


def test_a_ready_server_is_healthy() -> None:
    with server(200) as port:
        assert check(port).returncode == 0


@pytest.mark.parametrize("status", [503, 404, 500])
def test_a_server_that_is_not_ready_is_unhealthy_and_the_log_says_why(status: int) -> None:
    with server(status) as port:
        done = check(port)
    assert done.returncode == 1
    assert f"/v2/health/ready answers {status} instead" in done.stderr


def test_no_server_is_unhealthy() -> None:
    with server(200) as port:
        pass
    done = check(port)
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"the server does not answer on port {port}: ConnectionRefusedError"
    )


def test_a_proxy_in_the_environment_is_not_asked() -> None:
    with server(503) as proxy, server(200) as port:
        assert check(port, http_proxy=f"http://127.0.0.1:{proxy}").returncode == 0
