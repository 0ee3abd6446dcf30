"""Calls functions in other processes, so that they cannot block or crash the server.

    a thread ── function, arguments ── pipe ── process: function() ── result or error, log ── pipe

Pillow holds the GIL while it copies a decoded WebP image. For 25 megapixels, this takes 60 ms, in
which the server would answer no request. Another process has its own GIL. If a decoder crashes in
another process, only the image that it was decoding fails. A decoder that needs more memory than
was reserved also fails, instead of using more.

A new version of a model is also tested in such a process. The test holds the GIL for 0.1 s and then
keeps all cores busy. The process has a low priority, so that requests go first.
"""

import logging
import os
import pickle
import resource
import select
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import cache
from math import inf
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from typing_extensions import override

from service.engine.death_signal import end_with
from service.errors import NoProcessError

R = TypeVar("R")

# A process on idle cores is starved if it gets less than `_STARVED` of a core in `_LOOK_S` seconds.
# `_LOW` is the niceness of its replacement, which has a third of the weight of a thread that
# serves.
_STARVED, _LOOK_S, _LOW = 0.1, 3.0, 5

# The memory that a process needs for itself: code that is imported with the first function of each
# kind.
_SLACK_BYTES = 64 * 2**20

_DATA_OF_STATM = 5  # the index of what RLIMIT_DATA counts

_LENGTHS = struct.Struct("=QI")  # bytes of a pickle, and the number of its buffers
_LENGTH = struct.Struct("=Q")


Line = tuple[str, int, str]
"""A line of the log: its logger, its level and its message."""


class LogSender(logging.Handler):
    """Sends log records to another process, which logs them with `log_again`."""

    def __init__(self, send: Callable[[Line], None]) -> None:
        super().__init__()
        self._send = send

    @override
    def emit(self, record: logging.LogRecord) -> None:
        self._send((record.name, record.levelno, self.format(record)))


def log_again(line: Line) -> None:
    """Log a record that a `LogSender` sent from another process."""
    name, level, message = line
    logging.getLogger(name).log(level, "%s", message)


def how_ended(status: int) -> str:
    """Return a phrase such as "was ended by signal 11" for an exit status. A negative status means
    that a signal ended the process."""
    return f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"


class ProcessPool:
    """Calls functions in other processes. Each call of `run` that is in progress uses one process.
    Processes start when they are first needed.

    A process has the niceness of the thread that first calls `run` with it. When the parent ends,
    for whatever reason, the process ends too: on Linux at once, elsewhere after its call, because
    the pipe from which it reads is closed. After each call, the parent logs the records that the
    process logged.
    """

    def __init__(
        self, lost: Callable[[str], Exception], bound_s: float = inf, *, idle: bool = False
    ) -> None:
        """Limit each call to `bound_s` seconds. If a process ends or exceeds the limit, its call
        raises the error `lost(how)`, where `how` is a phrase such as "was ended by signal 11". With
        `idle`, processes run only on idle cores. If hardly any core is idle, the call is repeated
        in a process of low priority."""
        self._lost, self._bound_s, self._is_idle = lost, bound_s, idle
        self._idle: list[_Process] = []
        self._busy: set[_Process] = set()
        self._closed = self._killed = False
        _starter()

    def run(self, function: Callable[[], R], most_bytes: int | None = None) -> R:
        """Call a picklable function in another process. Return its result, or raise its error.

        Raises the error that `lost` returns if the process crashes, is killed, or exceeds the time
        limit. Raises MemoryError if the call needs more than `most_bytes` of memory. Only Linux
        enforces this limit. Raises NoProcessError if no process can be started.
        """
        asked = function, most_bytes
        try:
            process = self._idle.pop()
        except IndexError:
            process = _started(idle=self._is_idle)
        try:
            result, error, logged = self._called(process, asked)
        except _StarvedError:
            process = _started(more_nice=_LOW)
            result, error, logged = self._called(process, asked)
        self._idle.append(process)
        if self._closed:
            self.close()
        for line in logged:
            log_again(line)
        if error is not None:
            try:
                raise error
            finally:
                del error  # it has this frame, and so the function's image: a cycle
        return result  # type: ignore[no-any-return]

    def _called(self, process: "_Process", asked: "_Asked") -> "_Answer":
        self._busy.add(process)
        try:
            if self._killed:  # while the process started
                raise _LostError("was ended")
            return process.call(asked, self._bound_s)
        except _LostError as error:
            process.kill()
            raise self._lost(str(error)) from error
        except BaseException:
            process.kill()
            raise
        finally:
            self._busy.discard(process)

    def close(self) -> None:
        """End every process after its last call, without waiting."""
        self._closed = True
        self.end_idle()

    def kill(self) -> None:
        """End every process now. Running and later calls raise the error that `lost` returns."""
        self._killed = True
        self.close()
        for process in tuple(self._busy):
            process.end()

    def end_idle(self) -> None:
        """End the processes that run no call. New ones start when they are needed."""
        with suppress(IndexError):
            while True:
                self._idle.pop().close()


class _LostError(Exception):
    """Raised if a process crashed, was killed, or exceeded its time limit."""


class _StarvedError(Exception):
    """Raised if a process that may use only idle cores gets hardly any processor time."""


_Asked = tuple[Callable[[], Any], int | None]
_Answer = tuple[Any, Exception | None, list[Line]]


@cache
def _starter() -> ThreadPoolExecutor:
    """Return the thread that starts the processes of all pools. Linux ends a process with the
    thread that started it (`end_with`), and the threads that call `run` may end earlier.

    Called first where no thread is nice, because the thread gets the niceness of its caller.
    """
    starter = ThreadPoolExecutor(1, "starter")
    starter.submit(int)  # which starts the thread
    return starter


def _started(*, idle: bool = False, more_nice: int = 0) -> "_Process":
    nice = os.getpriority(os.PRIO_PROCESS, 0) + more_nice  # of this thread, on Linux
    try:
        return _starter().submit(_Process, idle=idle, nice=nice, apart=more_nice > 0).result()
    except OSError as error:
        raise NoProcessError(error) from error


class _Process:
    def __init__(self, *, idle: bool, nice: int, apart: bool) -> None:
        """Start the process, in a session of its own if it is `idle` or `apart`."""
        self._is_idle = idle
        program = _MAIN.format(
            path=sys.path, module=__name__, parent=os.getpid(), nice=nice, idle=idle
        )
        self._process = subprocess.Popen(  # noqa: S603  (this interpreter, on this module)
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=idle or apart,  # to which Linux may give a share of the cores
        )
        self._input = cast(IO[bytes], self._process.stdin)
        self._output = cast(IO[bytes], self._process.stdout)

    def call(self, asked: "_Asked", bound_s: float) -> _Answer:
        try:
            _send(self._input, asked)
            if not self._answers_within(bound_s):
                raise _LostError(f"was stuck for {bound_s:.0f} s")
            return _receive(self._output)  # type: ignore[no-any-return]
        except (BrokenPipeError, EOFError) as error:
            raise _LostError(how_ended(self._process.wait())) from error

    def _answers_within(self, bound_s: float) -> bool:
        """Return whether an answer arrives within the time limit. Raises _StarvedError if the
        process gets hardly any processor time."""
        poll = select.poll()
        poll.register(self._output, select.POLLIN)
        left_s, used_s = bound_s, self._used_s()
        while left_s > 0:
            look_s = min(left_s, _LOOK_S if self._is_idle else inf)
            if poll.poll(None if look_s == inf else look_s * 1e3):
                return True
            left_s -= look_s
            before_s, used_s = used_s, self._used_s()
            if self._is_idle and used_s - before_s < _STARVED * look_s:
                raise _StarvedError
        return False

    def _used_s(self) -> float:
        """Return the processor seconds that the process has used, or inf if they are unknown."""
        try:
            stat = Path(f"/proc/{self._process.pid}/stat").read_text()
        except OSError:
            return inf
        user, system = stat.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        """Kill the process. If another thread waits for its answer, the call in that thread
        fails."""
        self._process.kill()

    def kill(self) -> None:
        self.end()
        self.close()

    def close(self) -> None:
        """Close the process's input, which ends the process, and wait until it has ended."""
        with suppress(BrokenPipeError):  # what was being sent is lost
            self._input.close()
        self._output.close()
        self._process.wait()


def _send(pipe: IO[bytes], what: object) -> None:
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(what, 5, buffer_callback=buffers.append)
    pipe.write(_LENGTHS.pack(len(data), len(buffers)))
    pipe.write(data)
    for buffer in buffers:
        raw = buffer.raw()
        pipe.write(_LENGTH.pack(len(raw)))
        pipe.write(raw)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> Any:
    """Return the object sent through a pipe. Raises EOFError if the other side has ended."""
    length, count = _LENGTHS.unpack(_read(pipe, _LENGTHS.size))
    data = _read(pipe, length)
    buffers = [_read(pipe, *_LENGTH.unpack(_read(pipe, _LENGTH.size))) for _ in range(count)]
    return pickle.loads(data, buffers=buffers)  # noqa: S301  (the other side is this program)


def _read(pipe: IO[bytes], length: int) -> bytes:
    data = pipe.read(length)
    if len(data) < length:
        raise EOFError
    return data


# These processes multiply no matrices, and NumPy's library would start a thread for each core.
_MAIN = """\
import os, sys
os.environ["OPENBLAS_NUM_THREADS"] = "1"
sys.path[:] = {path!r}
from {module} import main
main({parent}, {nice}, idle={idle})
"""


def main(parent: int, nice: int, *, idle: bool) -> None:
    """Read functions from standard input and call them, until the parent closes the pipe or ends.

    Ignores signals that are sent to the whole process group, such as Ctrl-C. The parent handles
    them, and finishes the requests that it has accepted.
    """
    if sys.platform == "linux":
        end_with(parent)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Only privileged processes may have a lower niceness than the thread that started them.
    os.setpriority(os.PRIO_PROCESS, 0, max(nice, os.getpriority(os.PRIO_PROCESS, 0)))
    if idle:
        _yield_cores()
    logged: list[Line] = []
    logging.getLogger().addHandler(LogSender(logged.append))  # which has no format
    logging.getLogger("convoy").setLevel(logging.INFO)
    with closing(sys.stdin.buffer) as requests, closing(sys.stdout.buffer) as answers:
        # A decoder's output must not come between the answers.
        sys.stdout = sys.stderr
        with suppress(EOFError, BrokenPipeError):
            while True:
                asked = _receive(requests)
                _send(answers, (*_outcome(*asked), logged))
                logged.clear()
                del asked  # an idle process must not keep an image
    os._exit(0)  # to free what libraries hold, object by object, takes as long as to import them


def _yield_cores() -> None:
    """Let this process run only on idle cores."""
    os.nice(19)
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        with suppress(OSError):  # its session, to which a share of the cores may belong
            Path("/proc/self/autogroup").write_text("19")


def _outcome(function: Callable[[], Any], most_bytes: int | None) -> tuple[Any, Exception | None]:
    try:
        if most_bytes is None:
            return function(), None
        with _memory_limited(most_bytes + _SLACK_BYTES):
            return function(), None
    except Exception as error:  # noqa: BLE001  (raised in the other process)
        return None, error


@contextmanager
def _memory_limited(more_bytes: int) -> Iterator[None]:
    """Within the `with` block, let this process allocate at most `more_bytes` more memory. Further
    allocations raise MemoryError."""
    if sys.platform != "linux":  # no other system says how much it has, or limits all of it
        yield
        return
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[_DATA_OF_STATM])
    most = pages * resource.getpagesize() + more_bytes
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
