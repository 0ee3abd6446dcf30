"""Functions run in processes with the same results as in a thread. A crash makes only one call
fail."""

import errno
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from models import PRESETS
from service.engine import process_pool
from service.engine.process_pool import ProcessPool
from service.errors import DecoderLostError, ImageError, NoProcessError
from service.images.prepare import ImageLimits, prepare_image
from tests.support import PATIENCE_S
from tests.support.images.files import encode, scene
from tests.support.servers.control import until
from tests.support.service.heartbeat import longest_hold_s

BGR = PRESETS["caffe"].at(224, 224)
LIMITS = ImageLimits()


@pytest.fixture
def processes() -> Iterator[ProcessPool]:
    made = ProcessPool(DecoderLostError, bound_s=PATIENCE_S)
    yield made
    made.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[ProcessPool]:
    """Yield processes for all tests for which a process may be new or not."""
    made = ProcessPool(DecoderLostError, bound_s=PATIENCE_S)
    yield made
    made.close()


def test_pixels_and_errors_are_those_of_a_thread(shared: ProcessPool) -> None:
    for form in ("JPEG", "PNG", "WEBP"):
        drawing = prepare_image(encode(scene(300, 200), form), BGR, LIMITS).run
        assert np.array_equal(shared.run(drawing), drawing())
    data = bytearray(encode(scene(300, 200), "PNG"))
    data[len(data) // 2] ^= 255
    broken = prepare_image(bytes(data), BGR, LIMITS).run
    with pytest.raises(ImageError) as here:
        broken()
    with pytest.raises(ImageError) as there:
        shared.run(broken)
    assert str(there.value) == str(here.value)


def test_an_error_keeps_nothing_of_the_function_until_the_garbage_collector_runs(
    shared: ProcessPool,
) -> None:
    function = partial(bytes.fromhex, "no number")
    left = weakref.ref(function)
    gc.disable()
    try:
        with pytest.raises(ValueError, match="hexadecimal"):
            shared.run(function)
        del function
        assert left() is None
    finally:
        gc.enable()


def test_a_process_has_one_thread(shared: ProcessPool) -> None:
    drawing = prepare_image(encode(scene(300, 200), "JPEG"), BGR, LIMITS).run
    shared.run(drawing)
    assert len(shared.run(partial(os.listdir, "/proc/self/task"))) == 1


def test_a_process_is_used_again(shared: ProcessPool) -> None:
    assert len({shared.run(os.getpid) for _ in range(3)} | {os.getpid()}) == 2


def test_a_call_without_a_process_may_be_repeated(
    processes: ProcessPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", fail)
        with pytest.raises(NoProcessError, match=r"Too many open files.*; try again in a second"):
            processes.run(os.getpid)
    assert processes.run(os.getpid) != os.getpid()


def wait_for(file: Path) -> None:
    while not file.exists():
        time.sleep(0.01)


def test_threads_at_once_have_a_process_each(processes: ProcessPool, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as threads:
        calls = [
            threads.submit(processes.run, partial(wait_for, tmp_path / "go")) for _ in range(2)
        ]
        until(lambda: len(processes._busy) == 2)
        (tmp_path / "go").touch()
        for call in calls:
            call.result()
    assert len(processes._idle) == 2


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
def test_a_crash_fails_one_call(shared: ProcessPool, number: signal.Signals) -> None:
    with pytest.raises(DecoderLostError, match=f"was ended by signal {number.value};"):
        shared.run(partial(signal.raise_signal, number))
    assert shared.run(os.getpid) != os.getpid()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone limits all of a process's memory")
def test_a_function_gets_no_more_memory_than_it_may_and_the_next_one_its_own(
    processes: ProcessPool,
) -> None:
    long = 120 * 2**20  # more than is allowed below, and what a process needs for itself
    assert len(processes.run(partial(bytes, long), long)) == long
    for _ in range(2):
        with pytest.raises(MemoryError):
            processes.run(partial(bytes, long), 20_000_000)
    assert len(processes.run(partial(bytes, long), long)) == long
    assert len(processes.run(partial(bytes, long))) == long


def test_a_stuck_process_is_killed() -> None:
    processes = ProcessPool(DecoderLostError, bound_s=PATIENCE_S)
    before = processes.run(os.getpid)
    processes._bound_s = 1
    with pytest.raises(DecoderLostError, match="was stuck for 1 s"):
        processes.run(partial(time.sleep, 10 * PATIENCE_S))
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)
    processes.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_to_the_group_end_no_decode(shared: ProcessPool, number: signal.Signals) -> None:
    shared.run(partial(signal.raise_signal, number))


def logs() -> None:
    logging.getLogger("convoy").info("%d were read", 3)
    logging.getLogger("models").info("this is left out")
    logging.getLogger("models").warning("this is not")


def test_what_is_logged_there_is_logged_here(
    shared: ProcessPool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        shared.run(logs)
        shared.run(os.getpid)
    assert caplog.record_tuples == [
        ("convoy", logging.INFO, "3 were read"),
        ("models", logging.WARNING, "this is not"),
    ]


def standing(processes: ProcessPool) -> tuple[int, int, int]:
    """Return the scheduling policy, the nice value and the session of a process."""
    asked = (
        partial(os.sched_getscheduler, 0),
        partial(os.getpriority, os.PRIO_PROCESS, 0),
        partial(os.getsid, 0),
    )
    policy, nice, session = (processes.run(each) for each in asked)
    processes.close()
    return policy, nice, session


def test_an_idle_process_leaves_the_cores_to_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_pool, "_STARVED", 0.0)  # other work on this machine starves it
    policy, nice, session = standing(ProcessPool(DecoderLostError, idle=True))
    assert (policy, nice) == (os.SCHED_IDLE, 19)
    assert session != os.getsid(0)


def test_an_idle_process_that_gets_no_core_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_pool, "_LOOK_S", 0.01)
    monkeypatch.setattr(process_pool, "_STARVED", 1000.0)
    processes = ProcessPool(DecoderLostError, idle=True)
    processes.run(partial(time.sleep, 1))
    policy, nice, session = standing(processes)
    assert policy == os.SCHED_OTHER
    assert session != os.getsid(0)
    assert nice == min(19, os.getpriority(os.PRIO_PROCESS, 0) + process_pool._LOW)


def test_killing_fails_the_call_that_is_made(processes: ProcessPool) -> None:
    processes.run(os.getpid)
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(processes.run, partial(time.sleep, 10 * PATIENCE_S))
        until(lambda: bool(processes._busy))
        processes.kill()
        with pytest.raises(DecoderLostError, match="was ended by signal 9"):
            call.result(timeout=PATIENCE_S)


def test_killing_fails_the_call_whose_process_starts_meanwhile(
    processes: ProcessPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = process_pool._started

    def started_late() -> process_pool._Process:
        process = started()
        processes.kill()
        return process

    monkeypatch.setattr(process_pool, "_started", lambda **_: started_late())
    with pytest.raises(DecoderLostError, match="was ended"):
        processes.run(os.getpid)


def test_a_process_outlives_the_thread_that_first_called_it(processes: ProcessPool) -> None:
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(processes.run, os.getpid).result()
    assert processes.run(os.getpid) == first


def test_a_process_is_as_nice_as_its_caller(processes: ProcessPool) -> None:
    with ThreadPoolExecutor(1, initializer=os.nice, initargs=(3,)) as threads:
        nice = threads.submit(processes.run, partial(os.getpriority, os.PRIO_PROCESS, 0)).result()
    assert nice == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 3)


PARENT = """\
import os, sys, time
from functools import partial
from service.engine.process_pool import ProcessPool
processes = ProcessPool(RuntimeError)
print(processes.run(os.getpid), flush=True)
if sys.argv[1] == "busy":
    processes.run(partial(exec, f"import time; open({sys.argv[2]!r}, 'w'); time.sleep(600)"))
time.sleep(600)
"""


def runs(process: Path) -> bool:
    """Return whether a process runs. One that has ended is listed until init takes note of it."""
    try:
        state = (process / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "XZ"


@pytest.mark.parametrize("state", ["idle", "busy"])
def test_no_process_outlives_its_parent_that_is_killed(state: str, tmp_path: Path) -> None:
    began = tmp_path / "began"
    program = [sys.executable, "-c", PARENT, state, str(began)]
    with subprocess.Popen(program, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = Path("/proc", parent.stdout.readline().decode().strip())
        assert runs(child)
        if state == "busy":
            until(began.exists)
        parent.kill()
    until(lambda: not runs(child))  # long before the sleep ends


def test_closing_ends_also_what_is_busy(processes: ProcessPool, tmp_path: Path) -> None:
    gate = tmp_path / "go"
    busy = threading.Thread(target=processes.run, args=(partial(wait_for, gate),))
    busy.start()
    until(lambda: bool(processes._busy))
    processes.close()
    gate.touch()
    busy.join()
    assert not processes._idle


def test_the_largest_webp_does_not_hold_the_interpreters_lock(shared: ProcessPool) -> None:
    data = encode(Image.new("RGB", (5000, 5000), "red"), "WEBP", lossless=True)
    drawing = prepare_image(data, BGR, LIMITS).run
    shared.run(os.getpid)  # which has started it
    # Of a thread here, which holds the lock while it copies 100 MB, and of the process.
    assert longest_hold_s(drawing, tries=1, enough_s=0) > 0.01
    assert longest_hold_s(partial(shared.run, drawing), tries=40, enough_s=0.005) < 0.01
