"""Decodes large images in other processes, so that the server's threads need not wait.

    a decode thread ── pickle protocol 5, by a pipe ── Drawing() ── pixels or the error ── back

Pillow holds the interpreter's lock while it copies a decoded WebP: 60 ms for 25 megapixels, in
which the server answers no request. In a process of its own it holds another lock. A decoder that
crashes fails only its own image, and one that takes more memory than was reserved gets no more.
"""

import pickle
import resource
import select
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from math import ceil, inf
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from service.errors import DecoderLostError, PayloadTooLargeError

R = TypeVar("R")

# What a process needs for itself: code that is imported with the first image of a kind.
_SLACK_BYTES = 64 * 2**20

_DATA_OF_STATM = 5  # the place of what RLIMIT_DATA counts

_LENGTHS = struct.Struct("=QI")  # bytes of a pickle, and the number of its buffers
_LENGTH = struct.Struct("=Q")


class DecodeProcesses:
    """Runs as many processes as threads call `run` at once; each starts when first needed.

    A process has the niceness of the thread that starts it, and ends with this one, however that
    ends: it reads from a pipe that closes then.
    """

    def __init__(self, bound_s: float = inf) -> None:
        """Limit one call to `bound_s` seconds."""
        self._bound_s = bound_s
        self._idle: list[_Process] = []
        self._closed = False

    def run(self, function: Callable[[], R], most_bytes: int | None = None) -> R:
        """Return the result of a picklable function called in another process, or raise its error.

        Raises DecoderLostError where the process crashed, was killed, or took longer than the
        bound, and PayloadTooLargeError where it needs more than `most_bytes` of memory, which Linux
        alone limits.
        """
        try:
            process = self._idle.pop()
        except IndexError:
            process = _Process()
        try:
            result, error = process.call((function, most_bytes), self._bound_s)
        except BaseException:
            process.kill()
            raise
        self._idle.append(process)
        if self._closed:
            self.close()
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

    def close(self) -> None:
        """End every process after its last call, without waiting."""
        self._closed = True
        with suppress(IndexError):
            while True:
                self._idle.pop().close()


class _Process:
    def __init__(self) -> None:
        self._process = subprocess.Popen(  # noqa: S603  (this interpreter, on this module)
            [sys.executable, "-c", _MAIN.format(path=sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._input = cast(IO[bytes], self._process.stdin)
        self._output = cast(IO[bytes], self._process.stdout)

    def call(self, asked: tuple[Callable[[], Any], int | None], bound_s: float) -> Any:
        """Return the function's result, or None, and its error."""
        try:
            _send(self._input, asked)
            if not self._answers_within(bound_s):
                raise DecoderLostError(f"is stuck for {bound_s:.0f} s")
            return _receive(self._output)
        except (BrokenPipeError, EOFError) as error:
            status = self._process.wait()
            how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
            raise DecoderLostError(how) from error

    def _answers_within(self, bound_s: float) -> bool:
        poll = select.poll()
        poll.register(self._output, select.POLLIN)
        return bool(poll.poll(None if bound_s == inf else bound_s * 1e3))

    def kill(self) -> None:
        self._process.kill()
        self.close()

    def close(self) -> None:
        """Close the process's input, by which it ends, and wait for its end."""
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


# Nothing is multiplied there, and NumPy's library would start a thread for each core.
_MAIN = """\
import os, sys
os.environ["OPENBLAS_NUM_THREADS"] = "1"
sys.path[:] = {path!r}
from service.images.decode_process import main
main()
"""


def main() -> None:
    """Call functions read from standard input until it ends, because the parent closed or died.

    Signals to a whole group of processes, Ctrl-C say, are for the parent, which finishes what it
    has accepted.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with closing(sys.stdin.buffer) as requests, closing(sys.stdout.buffer) as answers:
        # What a decoder prints must not come between the answers.
        sys.stdout = sys.stderr
        with suppress(EOFError, BrokenPipeError):
            while True:
                asked = _receive(requests)
                _send(answers, _outcome(*asked))
                del asked  # an idle process must not keep an image


def _outcome(function: Callable[[], Any], most_bytes: int | None) -> tuple[Any, Exception | None]:
    try:
        if most_bytes is None:
            return function(), None
        with _memory_limited(most_bytes + _SLACK_BYTES):
            return function(), None
    except MemoryError as error:
        if most_bytes is None:
            return None, error
        return None, PayloadTooLargeError(
            f"decoding takes more than the {ceil(most_bytes / 1e6)} MB of memory that the header"
            " lets expect; save the file again"
        )
    except Exception as error:  # noqa: BLE001  (raised in the other process)
        return None, error


@contextmanager
def _memory_limited(more_bytes: int) -> Iterator[None]:
    """Let this process have so much more memory meanwhile; allocations beyond it fail."""
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
