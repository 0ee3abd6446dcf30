"""Faults of the process: signals, a full log, too few file descriptors, and a clock that jumps."""

import resource
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

from tests.service.whole.faults.fault import Counted, Faults, collector
from tests.service.whole.faults.rig import Rig, parse_answers, post, read_all
from tests.support import PATIENCE_S
from tests.support.servers.control import until

PROCESSES: Faults = {}
fault = collector(PROCESSES)


@fault(
    "SIGTERM under load",
    "the answer to each accepted request; 503 for later requests; in the end, no connection",
    "--drain-s",
    "600",
    ends=True,
)
def _(rig: Rig) -> Counted:
    with ThreadPoolExecutor(16) as pool:
        with rig.control.holding():
            requests = rig.many(pool, [b"%d" % (n % 10) for n in range(16)])
            rig.wait_inside(16)
            rig.process.terminate()
            until(lambda: rig.exchange("GET", "/v2/health/ready")[0] == 503)
        assert [request.result() for request in requests] == [(200, n % 10) for n in range(16)]
    assert rig.process.wait(PATIENCE_S) == 0
    return {}


@fault("a second SIGTERM", "503, also for accepted requests", "--drain-s", "600", ends=True)
def _(rig: Rig) -> Counted:
    with ThreadPoolExecutor(1) as pool, rig.control.holding():
        request = pool.submit(rig.classify, 7)
        rig.wait_inside(1)
        rig.process.terminate()
        until(lambda: rig.exchange("GET", "/v2/health/ready")[0] == 503)
        rig.process.terminate()
        assert request.result()[0] == 503
        assert rig.process.wait(PATIENCE_S) == 1
    return {}


@fault("SIGSTOP under load, and SIGCONT later", "a late answer")
def _(rig: Rig) -> Counted:
    with ThreadPoolExecutor(6) as pool, ExitStack() as stack:
        with rig.control.holding():
            before = rig.many(pool, [b"0"])
            rig.control.until_held()
            before += rig.many(pool, [b"%d" % n for n in range(5)])
            rig.wait_inside(6)
            rig.process.send_signal(signal.SIGSTOP)
            until(lambda: " T " in Path(f"/proc/{rig.process.pid}/stat").read_text())
            during = [
                stack.enter_context(closing(rig.raw(post(b"%d" % n, "Connection: close"))))
                for n in range(6)
            ]
            rig.process.send_signal(signal.SIGCONT)
        assert [request.result() for request in before] == [(200, n) for n in (0, *range(5))]
        assert [parse_answers(read_all(each)) for each in during] == [[(200, n)] for n in range(6)]
    return {"200": 12}


@fault(
    "no file descriptors are left", "the connection waits until descriptors are free, or is closed"
)
def _(rig: Rig) -> Counted:
    before = resource.prlimit(rig.process.pid, resource.RLIMIT_NOFILE)
    kept = rig.raw()
    most = rig.descriptors() + 3
    resource.prlimit(rig.process.pid, resource.RLIMIT_NOFILE, (most, before[1]))
    crowd = [rig.raw() for _ in range(20)]
    # Who is connected already is answered all the while.
    kept.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: convoy\r\nConnection: close\r\n\r\n")
    assert kept.recv(15) == b"HTTP/1.1 200 OK"
    for connection in (kept, *crowd):
        connection.close()
    resource.prlimit(rig.process.pid, resource.RLIMIT_NOFILE, before)
    return {}


@fault("the clock jumps by days", "the answer", "--unsteady-clock")
def _(rig: Rig) -> Counted:
    with rig.others(), rig.others():
        assert rig.classify(7, X_Timeout_Ms=f"{PATIENCE_S}000") == (200, 7)
    return {"200": 17}


def _fails_and_serves(rig: Rig) -> Counted:
    """Let the server log many tracebacks, and check that it still answers requests."""
    for _ in range(40):
        assert rig.classify(b"decoder raises")[0] == 500
    with rig.others():
        assert rig.classify(7) == (200, 7)
    return {"200": 9, "500": 40}


fault("the pipe to which Convoy writes its log is full", "the answer", "--log", "full")(
    _fails_and_serves
)
fault("the process that reads the log has exited", "the answer", "--log", "closed")(
    _fails_and_serves
)
