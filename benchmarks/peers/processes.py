"""Starts a server, ends all its processes, and counts the processor time, memory and threads that
they use. The counts are read from Linux's /proc."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.rows import ROOT
from benchmarks.serving.http_client import Address

# Ray takes some ten seconds on a quiet machine.
START_S = 60.0
STOP_S = 20.0
_POLL_S = 0.05

_PROC = Path("/proc")


class StartError(Exception):
    """Raised when a server does not answer in time after its start. The message says why."""


@dataclass(frozen=True)
class Usage:
    """Holds the processor time, memory and threads that processes have used so far."""

    cpu_ns: Mapping[int, int]  # by process, including ended threads
    switches: Mapping[int, int]  # by thread: a process's counter has one thread
    memory_mb: float  # a page that n processes share counts 1/n for each

    @property
    def threads(self) -> int:
        """Return the number of threads."""
        return len(self.switches)

    def cpu_s_since(self, before: "Usage") -> float:
        """Return the processor time since an earlier Usage, in seconds."""
        return _sum(self.cpu_ns, before.cpu_ns) / 1e9

    def switches_since(self, before: "Usage") -> int:
        """Return the number of context switches since an earlier Usage."""
        return _sum(self.switches, before.switches)


def _sum(now: Mapping[int, int], before: Mapping[int, int]) -> int:
    return sum(count - before.get(number, 0) for number, count in now.items())


def _clock(pid: int) -> int:
    """Return the ID of a process's CPU clock, like clock_getcpuclockid(3).

    The ID consists of the complement of the PID and three bits. The bits select the clock that
    counts the time of all threads.
    """
    return ~pid << 3 | 2


@dataclass(frozen=True)
class Running:
    """A server that has been started and answers requests."""

    address: Address
    session: int  # of its processes
    start_s: float  # from the command to the first right answer
    facts: Path  # the folder in which its processes report their conditions

    def pids(self) -> list[int]:
        """Return the PIDs of the server's processes."""
        return members(self.session)

    def pause(self) -> None:
        """Suspend all processes of the server, so that they take no processor time from another
        server."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume all processes of the server."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def usage(self) -> Usage:
        """Return the resources that the server's processes have used so far."""
        cpu_ns: dict[int, int] = {}
        switches: dict[int, int] = {}
        memory_kb = 0
        for pid in self.pids():
            with suppress(OSError):  # the process ended meanwhile
                cpu_ns[pid] = time.clock_gettime_ns(_clock(pid))
            memory_kb += _number(_text(_PROC / str(pid) / "smaps_rollup"), "Pss:")
            for thread in _listed(_PROC / str(pid) / "task"):
                if status := _text(thread / "status"):  # the thread has not ended meanwhile
                    switches[int(thread.name)] = _number(
                        status, "voluntary_ctxt_switches:"
                    ) + _number(status, "nonvoluntary_ctxt_switches:")
        return Usage(cpu_ns, switches, memory_kb / 1e3)


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _text(file: Path) -> str:
    """Return the text of a file in /proc, or nothing if its process or thread has ended."""
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def _number(text: str, name: str) -> int:
    """Return the number in the line that begins with a name, or 0 if there is no such line."""
    found = (line.split()[1] for line in text.splitlines() if line.startswith(name))
    return int(next(found, 0))


@contextmanager
def running(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    port: int,
    ready: Callable[[Address], bool],
    start_s: float = START_S,
) -> Iterator[Running]:
    """Start a server, and yield it as soon as `ready` returns True. End the server and its child
    processes after the block.

    The server's output and its home directory are below `folder`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log"
    all_variables = {
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        # The same for every server: otherwise ONNX Runtime would report its use from a separate
        # thread.
        "ORT_DISABLE_TELEMETRY": "1",
        **environment,
    }
    settings = [f"{name}={value}" for name, value in all_variables.items()]
    address: Address = ("127.0.0.1", port)
    begun = time.monotonic()
    with log.open("wb") as output:
        # A separate session, by which the processes that the server starts are found again.
        process = subprocess.Popen(
            ["env", *settings, *command],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        _wait_until(lambda: ready(address), process, log, start_s)
        yield Running(address, process.pid, time.monotonic() - begun, folder)
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
    """Terminate the process. Then end all processes that it started, in every session."""
    pids = members(process.pid)
    # If the process ends first, children in other sessions are not its descendants any more.
    sessions = {process.pid}
    for pid in pids:
        with suppress(ProcessLookupError):
            sessions.add(os.getsid(pid))
    with suppress(ProcessLookupError):
        process.terminate()
    for paused in pids:
        with suppress(ProcessLookupError):
            os.kill(paused, signal.SIGCONT)
    deadline = time.monotonic() + STOP_S
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    # Its children should end too. Until then, they would take processor time from the next server.
    while left := members(*sessions):
        late = time.monotonic() > deadline
        for child in left:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL if late else signal.SIGTERM)
        process.poll()
        time.sleep(_POLL_S)
    process.wait()


def members(*sessions: int) -> list[int]:
    """Return the live processes of sessions, and all their descendants. Descendants may be in other
    sessions, because some servers start their workers in new sessions."""
    parents, found = {}, set()
    for folder in _listed(_PROC):
        # pid (name, which may contain any characters) state ppid group session ...
        told = _text(folder / "stat").rpartition(")")[2].split() if folder.name.isdigit() else []
        if not told or told[0] in "ZX":
            continue  # the process has ended
        parents[int(folder.name)] = int(told[1])
        if int(told[3]) in sessions:
            found.add(int(folder.name))
    while children := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= children
    return sorted(found)
