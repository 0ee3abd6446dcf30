"""A real `convoy serve` whose processes are killed while they run batches."""

import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from models import BUILT_IN_MODEL
from tests.service.whole.faults.rig import Rig, parse_answers, post, read_all
from tests.support import PATIENCE_S
from tests.support.servers.control import Control, until
from tests.support.servers.forked import JOBS_SERVER, Forked
from tests.support.servers.jobs_server import CONTROL

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="no other system runs batches in processes"
)

FORM = "Content-Type: multipart/form-data; boundary=cut"
# A process that is stopped is not to count as stuck.
BOUND = ("--engine-timeout-s", "600")

# Linux kills the processes as soon as their parent has ended.
KILLED_WITHIN_S = 5.0

LOST = 500, "the process that ran this batch ended; try again"


@contextmanager
def serving(folder: Path) -> Iterator[Rig]:
    """Yield a server of the built-in model with two job processes in addition to a thread."""
    options = "serve", "--port", "0", "--threads", "3", *BOUND
    process = Forked(JOBS_SERVER, *options, environ={CONTROL: str(folder)})
    try:
        assert process.stdout is not None
        port = re.search(r"http://\S+?:(\d+)", process.stdout.readline())
        assert port is not None
        yield Rig(process, folder / "stderr", Control(folder), int(port[1]))
    finally:
        process.kill()
        process.communicate()


def image(digit: int) -> bytes:
    (file,) = (BUILT_IN_MODEL.parent / "samples").glob(f"{digit}_*")
    return file.read_bytes()


def single(digit: int) -> bytes:
    return post(image(digit), "Connection: close")


def form(*digits: int) -> bytes:
    head = b'--cut\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
    parts = b"".join(head + image(digit) + b"\r\n" for digit in digits)
    return post(parts + b"--cut--\r\n", FORM, "Connection: close")


def children(process: int) -> list[int]:
    found = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [int(child) for child in found]


def job_processes(rig: Rig) -> list[int]:
    """Return the job processes. Their parent is the only child of the server that has two
    children."""
    (found,) = [jobs for child in children(rig.process.pid) if len(jobs := children(child)) == 2]
    return found


def ready(rig: Rig) -> None:
    """Wait until both job processes are ready. A process starts when a batch finds no idle
    process."""

    def both() -> bool:
        if rig.metrics()["convoy_job_processes"] == 2:
            return True
        with ThreadPoolExecutor(2) as pool:
            asked = [pool.submit(rig.answers, form(n, n + 1)) for n in (1, 3)]
            assert [each.result() for each in asked] == [[(200, [1, 2])], [(200, [3, 4])]]
        return False

    until(both)


def test_requests_of_killed_processes_are_answered_once_each_and_the_next_are_served(
    tmp_path: Path,
) -> None:
    with serving(tmp_path) as rig:
        ready(rig)
        before, killed = rig.counted(), job_processes(rig)
        with rig.control.holding():
            # A process begins the first batch. Of the next images the other one begins some, some
            # are next in a process, and the rest waits for them.
            first = rig.raw(form(0, 1))
            rig.control.until_held()
            others = {digit: rig.raw(single(digit)) for digit in range(2, 10)}
            until(lambda: rig.inside()[0] == 10)
            for process in killed:
                os.kill(process, signal.SIGKILL)
        assert parse_answers(read_all(first)) == [LOST]
        answers = {
            digit: parse_answers(read_all(connection)) for digit, connection in others.items()
        }
        for connection in (first, *others.values()):
            connection.close()
        for digit, answered in answers.items():
            assert answered in ([(200, digit)], [LOST])
        statuses = Counter(str(status) for ((status, _),) in answers.values())
        assert rig.counted() - before == statuses + Counter({"500": 1})
        # A process that had no batch may be missed only after all answers.
        until(lambda: rig.metrics()["convoy_lost_decode_threads_total"] == 2)
        assert rig.inside() == (0, 0)
        ready(rig)
        assert not set(job_processes(rig)) & set(killed)
        assert [rig.classify(image(digit)) for digit in range(10)] == [(200, n) for n in range(10)]
        rig.process.terminate()
        assert rig.process.wait(PATIENCE_S) == 0


def test_stopped_processes_end_with_a_killed_server(tmp_path: Path) -> None:
    """One of them was running a batch. The parent that forked them is stopped, too."""
    with serving(tmp_path) as rig:
        ready(rig)
        jobs = job_processes(rig)
        (parent,) = [child for child in children(rig.process.pid) if jobs == children(child)]
        try:
            with rig.control.holding(), rig.raw(form(0, 1)):
                rig.control.until_held()
                for process in (parent, *jobs):
                    os.kill(process, signal.SIGSTOP)
                rig.process.kill()
                assert rig.process.wait(PATIENCE_S) == -signal.SIGKILL
                until(lambda: not any(map(is_running, (parent, *jobs))), KILLED_WITHIN_S)
        finally:
            for process in (parent, *jobs):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)


def is_running(process: int) -> bool:
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"
