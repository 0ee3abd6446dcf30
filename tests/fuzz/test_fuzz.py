"""Every input in the corpus is accepted or refused in time; the longer run searches for others."""

import itertools
import re
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest

from tests.fuzz import lock
from tests.fuzz.targets import CORPUS, TARGETS, TooSlowError, try_input
from tests.support.service.heartbeat import hold_s

# Of ten minutes in all.
SECONDS = 120


def corpus() -> list[Path]:
    return sorted(path for path in CORPUS.glob("*/*") if path.is_file())


@pytest.mark.parametrize("path", corpus(), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_an_input_that_was_found_is_taken_or_refused_in_time(path: Path) -> None:
    try_input(path.parent.name, path.read_bytes())


def test_every_target_has_inputs_to_begin_with() -> None:
    assert {path.parent.name for path in corpus()} == set(TARGETS)


def test_an_input_that_takes_too_long_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def quadratic(data: bytes) -> None:
        sum(one ^ other for one in data for other in data)

    monkeypatch.setattr("tests.fuzz.targets.TARGETS", {"json": quadratic})
    with pytest.raises(TooSlowError):
        try_input("json", bytes(2000))


def _in_one_go(body: bytes) -> object:
    return msgspec.json.decode(body, type=list[dict[str, str]])


def _searching(body: bytes) -> object:
    return re.search(rb"a$", body)


def _in_pieces(body: bytes) -> object:
    return [body[start : start + 1000].count(b"a") for start in range(0, len(body), 1000)]


def _waiting(body: bytes) -> object:
    """A reader that lets other threads run: it waits, and compresses.

    It does not wait all the time: the more two threads compute, the more often a busy machine
    delays the heartbeat in each of the tries.
    """
    time.sleep(0.1)
    return zlib.compress(body[:1_000_000], 1)


def _in_threads(read: Callable[[bytes], object], count: int = 1) -> Callable[[bytes], object]:
    """A reader that hands the body to other threads, as the server does with a long one."""

    def call(body: bytes) -> None:
        threads = [threading.Thread(target=read, args=(body,)) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return call


@pytest.mark.parametrize(
    "slow",
    [_in_one_go, _searching, _in_threads(_in_one_go), _in_threads(_searching, 2)],
    ids=["parsing", "searching", "parsing in a thread", "searching in two"],
)
def test_a_reader_that_keeps_other_threads_from_running_is_found(
    slow: Callable[[bytes], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "READERS", {b"json": slow})
    monkeypatch.setattr(lock, "TRIES", 2)
    with pytest.raises(lock.HeldTooLongError, match="json: held the lock for"):
        lock.check(lock.written(b"json", lock.Long(b"[", b'{"a":"a"},', b"{}]")))


@pytest.mark.parametrize(
    "slow",
    [_in_pieces, _waiting, _in_threads(_in_pieces), _in_threads(_waiting, 2)],
    ids=["in pieces", "waiting", "in pieces in a thread", "waiting in two"],
)
def test_a_reader_that_lets_other_threads_run_is_not(
    slow: Callable[[bytes], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "READERS", {b"json": slow})
    lock.check(lock.written(b"json", lock.Long(b"[", b'{"a":"a"},', b"{}]")))


def test_a_busy_machine_hides_no_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program delays two in three measurements of the core's slowness."""
    measured = itertools.cycle([1.0, 1000.0, 1000.0])
    monkeypatch.setattr("tests.support.service.heartbeat.slowness", lambda: next(measured))
    monkeypatch.setattr(lock, "READERS", {b"json": _in_one_go})
    monkeypatch.setattr(lock, "TRIES", 2)
    with pytest.raises(lock.HeldTooLongError):
        lock.check(lock.written(b"json", lock.Long(b"[", b'{"a":"a"},', b"{}]")))


def test_waits_for_a_core_shorten_a_hold_only_where_they_are_outside_it() -> None:
    # A hold of 0.1 s, during which the heartbeat wakes 20 times and waits for 5 ms each time.
    assert hold_s(0.1, 0.11, 20 * 0.005, 20) == pytest.approx(0.085)
    # Threads that compute without the GIL, while the heartbeat waits before its next beat.
    assert hold_s(0.015, 0.02, 0.015, 3) == pytest.approx(0)
    assert hold_s(0.005, 0.01, 0.005, 1) == pytest.approx(0)


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("atheris") is None, reason="needs atheris, of the extra `long`, where it has a wheel"
)
@pytest.mark.parametrize("target", TARGETS)
def test_no_input_is_found_that_breaks_a_parser(target: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.fuzz", target),
            *("--seconds", str(SECONDS), "--keep", str(tmp_path)),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS + 120,
    )
    found = [path.read_bytes() for path in tmp_path.iterdir()]
    assert (done.returncode, found) == (0, []), done.stderr[-3000:]
