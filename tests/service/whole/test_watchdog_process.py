"""A real server whose engine hangs. It answers 5xx, is not ready, and is ready again. After too
many hangs, it exits."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.service.whole.test_server_process import Server
from tests.support import PATIENCE_S
from tests.support.servers.control import until
from tests.support.servers.forked import HANGING_SERVER, Forked
from tests.support.servers.hanging_server import BOUND_S


@contextmanager
def hanging(allowed: Path) -> Iterator[Server]:
    process = Forked(HANGING_SERVER, allowed)
    try:
        yield Server(process)
    finally:
        process.kill()
        process.communicate()


def hang(server: Server) -> None:
    status, body = server.classify(9)  # type: ignore[misc]
    assert (status, list(body)) == (500, ["error"])


def restart(server: Server, allowed: Path) -> None:
    allowed.touch()
    until(lambda: ready(server) == 200)


def ready(server: Server) -> int:
    return server.exchange("GET", "/v2/health/ready")[0]


def test_a_server_outlives_two_hangs_of_its_engine_and_leaves_at_the_third(tmp_path: Path) -> None:
    allowed = tmp_path / "allowed"
    with hanging(allowed) as server:
        for restarts in (1, 2):
            assert server.classify(3) == 3
            hang(server)
            assert ready(server) == 503
            assert server.exchange("GET", "/v2/health/live")[0] == 200
            status, body = server.classify(3)  # type: ignore[misc]
            assert status == 503
            assert "restarting" in body["error"]
            assert server.metric("convoy_engine_restarts_total") == restarts
            restart(server, allowed)
        assert server.classify(4) == 4
        hang(server)
        assert server.process.wait(PATIENCE_S) == 1
        assert server.process.stderr is not None
        log = server.process.stderr.read()
        late = f"it did not end a batch of size 1 within {BOUND_S} s"
        assert log.count(f"the engine is restarted: {late}") == 2
        assert f"the engine is given up for good: {late}" in log
        assert "Traceback" not in log


def test_a_signal_after_a_hang_still_ends_it_with_status_0(tmp_path: Path) -> None:
    allowed = tmp_path / "allowed"
    with hanging(allowed) as server:
        hang(server)
        restart(server, allowed)
        assert server.classify(4) == 4
        server.process.terminate()
        # The engine that hangs, hangs still; no request waits for it.
        assert server.process.wait(PATIENCE_S) == 0
