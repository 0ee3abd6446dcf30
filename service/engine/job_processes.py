"""Decodes and runs a model's batches in other processes. Each process has its own engine and its
own GIL.

    event loop ─┬─ files and arrays ─── shared memory ─┬─ a job process: decodes, runs
                └─ other arguments, results ── socket ─┘
                └─ start or end a process ── socket ── the parent process, which forks them

The parent process is forked from the server before the server has threads or models. Job processes
share the memory pages that hold the parent's code and libraries, so each job process takes only a
few megabytes more. The parent ends when the server ends, and the job processes end when the parent
ends, for whatever reason.

A job process starts when a batch arrives and no process is idle. It runs one batch at a time, until
the server ends. The next batch may already be in its shared memory, so it can begin that batch
without waiting for the event loop. The server kills a process that exceeds the time limit of its
batch. Before a process decodes an image, it writes the image's index to the shared memory. If the
process crashes, the server reads there which image it was decoding.
"""

import asyncio
import gc
import logging
import mmap
import os
import pickle
import signal
import socket
import struct
import sys
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import accumulate, count, pairwise
from time import monotonic, perf_counter, process_time
from typing import Any, NoReturn

import numpy as np

from models import Engine
from service.engine.death_signal import end_with
from service.engine.supervised_engine import Item, JobLostError, JobResult, Probe, do_job
from service.engine.threads import StrayError
from service.engine.undecoded import NotHereError, Undecoded
from service.engine.watchdog import WITHIN_S, Restarts
from service.errors import ServiceError

# The most batches of a process: one runs, the other is next.
_BATCHES = 2

# The most bytes of a batch's files and arrays, and of the message about them; the server itself
# runs larger batches. Then the most bytes of an answer, which has scores and values inside the
# network.
_ROOM, _MOST_ASKED, _MOST_ANSWER = 2**21, 2**16, 2**28

# The most seconds in which a process opens its engine. And the number of steps in which a time
# limit is waited for, so that a server that was suspended does not take a process for stuck.
_START_S = 60.0
_LOOKS = 8

_READ_BYTES = 2**18

# Other programs crowd the cores if processes get less than this part of a core for their batches.
# Each batch counts for `_NEWEST` of the average.
_CROWDED, _NEWEST = 0.5, 0.1

# The memory of a process begins with two numbers: the index in the batch of the image that is being
# decoded, and the number of batches that were begun. After them comes the room of each batch.
_NONE = -1
_FIRST = 64
_BYTES = _FIRST + _BATCHES * _ROOM

_NUMBER = struct.Struct("=I")
_ASKED = struct.Struct("=II")  # bytes of a pickle, and the number of its buffers
_LENGTH = struct.Struct("=Q")

# Job processes ignore these signals, which Ctrl-C and init systems send to a group of processes.
# The server handles them, and finishes the requests that it has accepted.
_GROUP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_log = logging.getLogger("convoy")

Setup = tuple[Callable[[], Engine], Callable[[bytes], Undecoded]]
"""Two picklable functions. The first opens an engine, and the second turns a file into an
`Undecoded`."""


class JobParent:
    """Controls the parent process, which forks and ends job processes for the server."""

    def __init__(self, control: socket.socket, process: int) -> None:
        control.setblocking(False)  # the event loop must not wait for a parent that is stopped
        self._control, self.process = control, process
        self._numbers = count()

    @staticmethod
    def fork() -> "JobParent | None":
        """Fork the parent of all job processes. Call this before the server has threads or models.

        Returns None on systems other than Linux, which lack the necessary system calls.
        """
        if sys.platform != "linux":
            return None
        server = os.getpid()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        gc.disable()  # the collector would write to shared pages, and so copy them
        if (process := os.fork()) == 0:
            ours.close()
            _fork_on_demand(theirs, server)
        gc.enable()
        theirs.close()
        return JobParent(ours, process)

    def start(self, connection: socket.socket, memory: int, setup: int) -> int:
        """Ask the parent process to fork a job process that inherits these open files. Return the
        number of the job process, which is not its PID. Raises OSError."""
        number = next(self._numbers)
        files = [connection.fileno(), memory, setup]
        socket.send_fds(self._control, [_NUMBER.pack(number)], files)
        return number

    def end(self, number: int) -> None:
        """Kill the job process with this number, if it still runs."""
        try:
            self._control.send(_NUMBER.pack(number))
        except OSError as error:  # it has ended with all that it forked, or is stopped
            _log.error("the process that forks job processes does not listen: %s", error.strerror)

    def close(self) -> None:
        """End the parent process and all job processes."""
        self._control.close()


class JobProcesses:
    """Runs one model's batches in up to `most` processes. Not thread-safe: use it from one event
    loop."""

    def __init__(self, parent: JobParent, setup: Setup, most: int) -> None:
        self.lost = 0  # processes so far
        self._parent, self._most = parent, most
        self._setup: Setup | int = setup  # or the file with it
        self._all: list[_JobProcess] = []
        self._recent = Restarts()
        self._start_at = 0.0  # not before
        self._closed = False

    @property
    def ready(self) -> int:
        """Return how many processes have opened their engine."""
        return sum(process.is_open for process in tuple(self._all))  # any thread may ask

    def post(self, items: Sequence[Item], bound_s: float) -> "asyncio.Future[JobResult] | None":
        """Run a batch in a process, and return a future of its result. Return None if no process
        can take a batch now, or if the batch is too large.

        The future raises the error of the batch. It raises JobLostError if the process ends, or if
        the batch takes longer than `bound_s`.
        """
        takes = [process for process in self._all if process.is_open and process.has < _BATCHES]
        # The last process shares a core with the event loop, so it is used last. But if other
        # programs crowd the cores, Linux gives more time to more processes.
        crowded = any(process.core_share < _CROWDED for process in self._all)
        spare = crowded or sum(process.has > 0 for process in self._all) < self._most - 1
        process = (min if spare else max)(takes, key=lambda process: process.has, default=None)
        if process is None or (spare and process.has):
            self._start()
        if process is None or (asked := _packed(items)) is None:
            return None
        return process.ask(*asked, bound_s)

    def renew(self) -> None:
        """Replace all processes by new ones, because their engines return errors or wrong
        scores."""
        if self._all:
            self.lost += len(self._all)
            self._end_all("was ended because its engine failed")
            self._pause_if_often("job processes were ended because their engines failed")

    def close(self) -> None:
        """End all processes."""
        self._closed = True
        self._end_all("was ended")
        if isinstance(self._setup, int):
            os.close(self._setup)
            self._setup = _CLOSED

    def _start(self) -> None:
        """Start another process. Do nothing if all `most` processes exist, if one of them is still
        starting, or if too many have crashed recently."""
        enough = len(self._all) >= self._most or not all(process.is_open for process in self._all)
        if self._closed or enough or monotonic() < self._start_at:
            return
        try:
            if not isinstance(self._setup, int):
                self._setup = _file_of(self._setup)
            self._all.append(_JobProcess(self._parent, self._setup, self._forget))
        except OSError as error:
            _log.error("no job process can be started: %s", error.strerror)
            self._start_at = monotonic() + WITHIN_S

    def _end_all(self, how: str) -> None:
        ended, self._all = self._all, []
        for process in ended:
            process.end(how)

    def _forget(self, process: "_JobProcess", how: str) -> None:
        self._all.remove(process)
        self.lost += 1
        self._pause_if_often(f"a job process {how}")

    def _pause_if_often(self, what: str) -> None:
        now = monotonic()
        if self._recent.another(now):
            _log.error("%s; new processes start when they are needed", what)
        else:
            _log.error("%s; no new process starts for %.0f s", what, WITHIN_S)
            self._start_at = now + WITHIN_S


class _JobProcess:
    """Sends batches to one job process, and receives their results."""

    def __init__(
        self,
        parent: JobParent,
        setup: int,
        on_lost: Callable[["_JobProcess", str], None],
    ) -> None:
        """Start the process. `on_lost` is called once when the process has ended or is stuck, with
        a phrase such as "ended". Raises OSError."""
        self._parent, self._on_lost = parent, on_lost
        self._loop = asyncio.get_running_loop()
        self._connection, theirs = socket.socketpair()
        self._connection.setblocking(False)
        memory = os.memfd_create("convoy")
        try:
            os.ftruncate(memory, _BYTES)
            self._memory = memoryview(mmap.mmap(memory, _BYTES))
            self._number = parent.start(theirs, memory, setup)
        except OSError:
            self._connection.close()
            raise
        finally:
            os.close(memory)  # what is mapped stays mapped
            theirs.close()
        self._progress = self._memory[:16].cast("q")
        self._progress[0] = _NONE
        self._asked = 0  # batches so far
        # The batches that the process has, each with its time limit in seconds.
        self._answers: deque[tuple[asyncio.Future[JobResult], float]] = deque()
        self._received = bytearray()
        self.is_open = False  # its engine
        self.core_share = 1.0  # the average part of a core that it got for a batch
        self._ended = False
        self._loop.add_reader(self._connection, self._on_readable)
        self._await(_START_S)

    @property
    def has(self) -> int:
        """Return how many batches the process has not answered yet. It runs one of them."""
        return len(self._answers)

    def ask(
        self, data: bytes, buffers: Sequence[memoryview], bound_s: float
    ) -> "asyncio.Future[JobResult]":
        """Send the process a batch, and return a future of its outcome."""
        answer: asyncio.Future[JobResult] = self._loop.create_future()
        end = _first(self._asked)
        self._asked += 1
        for buffer in buffers:
            begin, end = end, end + buffer.nbytes
            self._memory[begin:end] = buffer
        lengths = (buffer.nbytes for buffer in buffers)
        message = _ASKED.pack(len(data), len(buffers)) + b"".join(map(_NUMBER.pack, lengths)) + data
        self._answers.append((answer, bound_s))
        if self.has == 1:
            self._await(bound_s)
        try:  # all at once: the socket has room for the messages of all batches
            sent = self._connection.send(message)
        except OSError:
            sent = 0
        if sent < len(message):
            self._loop.call_soon(self.lose, "did not accept a batch")
        return answer

    def lose(self, how: str) -> None:
        """End a process that crashed, hung or sent an invalid answer, and call `on_lost`."""
        if not self._ended:
            self.end(how)
            self._on_lost(self, how)

    def end(self, how: str) -> None:
        """End the process. The futures of its batches raise JobLostError."""
        self._ended = True
        self._timer.cancel()
        self._loop.remove_reader(self._connection)
        self._parent.end(self._number)
        self._connection.close()
        index, begun = self._progress
        for number, (answer, _) in enumerate(self._answers, 1 + self._asked - self.has):
            decoding = None if index == _NONE or number != begun else index
            if not answer.done():
                answer.set_exception(JobLostError(how, decoding, begun=number <= begun))

    def _await(self, bound_s: float) -> None:
        self._bound_s = bound_s
        self._timer = self._loop.call_later(bound_s / _LOOKS, self._look, _LOOKS - 1)

    def _look(self, left: int) -> None:
        if left:
            self._timer = self._loop.call_later(self._bound_s / _LOOKS, self._look, left - 1)
        else:
            self.lose(f"was stuck for {self._bound_s:.1f} s")

    def _on_readable(self) -> None:
        try:
            data = self._connection.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.lose("ended")
            return
        self._received += data
        while len(received := self._received) >= _LENGTH.size and not self._ended:
            (length,) = _LENGTH.unpack_from(received)
            end = _LENGTH.size + length
            if length > _MOST_ANSWER:
                self.lose(f"answered {length} bytes, more than the {_MOST_ANSWER} allowed")
            if len(received) < end:
                return
            self._received = received[end:]
            try:
                answer = pickle.loads(memoryview(received)[_LENGTH.size : end])  # noqa: S301  (this program)
            except Exception as error:  # noqa: BLE001  of damaged data, or too little memory
                self.lose(f"sent an answer that cannot be read ({type(error).__name__})")
                return
            self._receive(*answer)

    def _receive(
        self, result: JobResult | None, error: Exception | None, core_share: float
    ) -> None:
        """Handle a message from the process. The first message says that the engine is open. Each
        later message has the outcome of a batch."""
        self._timer.cancel()
        if not self.is_open:
            self.is_open = error is None
            if error is not None:
                self.lose(f"has no engine: {error}")
            return
        answer, _ = self._answers.popleft()
        if self._answers:
            self._await(self._answers[0][1])
        if answer.done():  # cancelled
            return
        if error is not None:
            answer.set_exception(error)
        elif result is not None:
            self.core_share += _NEWEST * (core_share - self.core_share)
            answer.set_result(result)


_CLOSED = -1


def _first(number: int) -> int:
    """Return the offset in the shared memory at which the files and arrays of a batch begin."""
    return _FIRST + number % _BATCHES * _ROOM


def _file_of(setup: Setup) -> int:
    """Write the pickled setup to an in-memory file, which all job processes read. Return the
    descriptor of the file."""
    with os.fdopen(os.memfd_create("convoy-setup"), "wb") as file:
        pickle.dump(setup, file, 5)
        file.flush()
        return os.dup(file.fileno())


def _packed(items: Sequence[Item]) -> tuple[bytes, Sequence[memoryview]] | None:
    """Return the pickle of a batch, and the large buffers that it refers to. Return None if the
    batch is too large or cannot be pickled."""
    buffers: list[pickle.PickleBuffer] = []
    asked: list[tuple[Any, list[str], bool]] = []
    for item in items:
        image, inner, averaged = item if isinstance(item, Probe) else (item, (), False)
        if isinstance(image, Undecoded):
            asked.append((pickle.PickleBuffer(image.file), list(inner), averaged))
        elif isinstance(image, np.ndarray):
            asked.append((image, list(inner), averaged))
        else:
            return None
    data = pickle.dumps(asked, 5, buffer_callback=buffers.append)
    raw = [buffer.raw() for buffer in buffers]
    fits = len(data) <= _MOST_ASKED and sum(view.nbytes for view in raw) <= _ROOM
    return (data, raw) if fits else None


# --- in the other processes ----------------------------------------------------------------------


def _fork_on_demand(control: socket.socket, server: int) -> NoReturn:
    """Fork and end job processes when the server asks for it, until the server ends."""
    parent = os.getpid()
    children: dict[int, int] = {}
    status = 1
    try:
        end_with(server)
        for group_signal in _GROUP_SIGNALS:
            signal.signal(group_signal, signal.SIG_IGN)
        gc.freeze()
        while True:
            message, files, _, _ = socket.recv_fds(control, _NUMBER.size, 3)
            if not message:
                break
            (number,) = _NUMBER.unpack(message)
            if files:
                # The setup's modules are imported here, once for all processes. The new process
                # reports errors.
                with suppress(Exception):
                    _setup_in(files[2])
                with suppress(OSError):  # the server sees that the connection ends
                    children[number] = os.fork()
                if children.get(number) == 0:
                    control.close()
                    _work(files, parent)
                for file in files:
                    os.close(file)
            elif number in children:
                os.kill(children[number], signal.SIGKILL)
            for number, process in tuple(children.items()):
                if os.waitpid(process, os.WNOHANG)[0]:
                    del children[number]
        status = 0
    finally:
        os._exit(status)  # which ends all job processes, too


def _work(files: list[int], parent: int) -> NoReturn:
    """Open an engine and run batches until the server closes the connection."""
    status = 1
    try:
        end_with(parent)
        # If Linux divides the cores among sessions (autogroup), processes in the server's session
        # would share its part.
        os.setsid()
        connected, memory, setup = files
        gc.enable()
        with socket.socket(fileno=connected) as connection:
            _run_batches(connection, memoryview(mmap.mmap(memory, 0)), setup)
        status = 0
    except (EOFError, ConnectionError):
        status = 0
    except BaseException:  # noqa: BLE001  nothing of the server may run here any more
        traceback.print_exc()
    finally:
        os._exit(status)


def _run_batches(connection: socket.socket, memory: memoryview, setup: int) -> None:
    try:
        opened, undecoded = _setup_in(setup)
        engine = opened().warm_up()
    except Exception as error:  # noqa: BLE001  told to the server, which logs it
        _answer(connection, None, _portable(error))
        return
    progress = memory[:16].cast("q")

    def begin(index: int) -> bool:
        progress[0] = index
        return True

    def begin_running() -> Engine:
        progress[0] = _NONE
        return engine

    _answer(connection, None, None)
    for number in count():
        items = [
            Probe(image, inner, averaged) if inner else image
            for image, inner, averaged in (
                (undecoded(what) if isinstance(what, bytes) else what, inner, averaged)
                for what, inner, averaged in _asked(connection, memory, _first(number))
            )
        ]
        progress[0] = _NONE  # if the last batch failed
        progress[1] = number + 1
        try:
            began, used = perf_counter(), process_time()
            results, failures, decode_s, inner = do_job(items, begin, begin_running)
            core_share = (process_time() - used) / (perf_counter() - began)
            kept = {index: _portable(failure) for index, failure in failures.items()}
            _answer(connection, JobResult(results, kept, decode_s, inner), None, core_share)
        except Exception as error:  # noqa: BLE001  raised in the server
            _answer(connection, None, _portable(error))
        del items  # an idle process must not keep an image


def _setup_in(file: int) -> Setup:
    with mmap.mmap(file, 0, prot=mmap.PROT_READ) as data:
        setup: Setup = pickle.loads(data)  # noqa: S301  (the other side is this program)
        return setup


def _asked(connection: socket.socket, memory: memoryview, first: int) -> Any:
    """Receive the next batch from the server. The files and arrays of the batch begin at the offset
    `first` of the shared memory. Raises EOFError if the server has ended."""
    length, buffers = _ASKED.unpack(_read(connection, _ASKED.size))
    each = _read(connection, buffers * _NUMBER.size)
    ends = [*accumulate((size for (size,) in _NUMBER.iter_unpack(each)), initial=first)]
    # Copied, because another batch's files will be in the same place, and errors may keep these
    # files.
    views = [bytes(memory[begin:end]) for begin, end in pairwise(ends)]
    return pickle.loads(_read(connection, length), buffers=views)  # noqa: S301  (as above)


def _read(connection: socket.socket, length: int) -> bytes:
    data = connection.recv(length, socket.MSG_WAITALL) if length else b""
    if len(data) < length:
        raise EOFError
    return data


def _answer(
    connection: socket.socket,
    result: JobResult | None,
    error: Exception | None,
    core_share: float = 1.0,
) -> None:
    data = pickle.dumps((result, error, core_share), 5)
    connection.sendall(_LENGTH.pack(len(data)) + data)


def _portable(error: Exception) -> Exception:
    """Return `error`, or a StrayError with the same text if `error` cannot be pickled. An
    unexpected error gets a note with its traceback, for the server's log."""
    if not isinstance(error, ServiceError | NotHereError):
        error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  (pickled here)
    except Exception:  # noqa: BLE001  of any library
        return StrayError(f"{type(error).__name__}: {error}")
    return error
