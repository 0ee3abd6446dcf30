"""Runs a server's processes from its start until the last of them ends."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.rows import ROOT
from benchmarks.serving.http_client import Address, answers

# Ray takes some ten seconds on a quiet machine; on a busy one a minute.
START_S = 120.0
STOP_S = 20.0
_POLL_S = 0.1


class StartError(Exception):
    """Says that a server does not begin to answer."""


@contextmanager
def running(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    port: int,
    request: bytes,
    start_s: float = START_S,
) -> Iterator[Address]:
    """Yield the address of a server that answers `request`; end it and its children afterwards.

    Its output and its home directory are below `folder`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log"
    all_variables = {
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        **environment,
    }
    settings = [f"{name}={value}" for name, value in all_variables.items()]
    address: Address = ("127.0.0.1", port)
    with log.open("wb") as output:
        # A session of its own is how those that it starts are found again.
        process = subprocess.Popen(
            ["env", *settings, *command],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        _wait_until(lambda: answers(address, request), process, log, start_s)
        yield address
    finally:
        _end(process)


def _wait_until(
    ready: Callable[[], bool], process: "subprocess.Popen[bytes]", log: Path, start_s: float
) -> None:
    deadline = time.monotonic() + start_s
    while not ready():
        ended = process.poll()
        if ended is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            continue
        why = f"no answer in {start_s:g} s" if ended is None else f"it ended with {ended}"
        last = [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-3:]
        raise StartError("; ".join([why, *last]))


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Terminate the process, and then kill the rest of its session."""
    session = process.pid
    with suppress(ProcessLookupError):
        process.terminate()
    deadline = time.monotonic() + STOP_S
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    # Its children should be ending too. Until they have, they would take time from the next.
    while left := members(session):
        late = time.monotonic() > deadline
        for child in left:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL if late else signal.SIGTERM)
        process.poll()
        time.sleep(_POLL_S)
    process.wait()


def members(session: int) -> list[int]:
    """Return the live processes of a session."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            text = (folder / "stat").read_text()
        except OSError:
            continue  # it ended meanwhile
        # pid (name, which may hold anything) state ppid group session ...
        state, _, _, its_session = text.rpartition(")")[2].split()[:4]
        if int(its_session) == session and state not in "ZX":
            found.append(int(folder.name))
    return found
