"""Makes things in a copy of this process, which ends after that.

    this process ── fork ─┬─ goes on, and receives later ─────────── items
                          └─ makes them, and sends items, lines of the log, an error or the end

The copy's memory ends with it, and code that only it needs is never imported here. It starts at
once, since it has all that is imported already.
"""

import ctypes
import logging
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Generator, Iterator
from enum import Enum, auto, unique
from functools import partial
from typing import IO, Any, NoReturn, TypeVar, cast

from service.engine.process_pool import LogSender, how_ended, log_again

T = TypeVar("T")

CAN_FORK = sys.platform == "linux"
"""Elsewhere libraries of the system do not work in a copy of a process."""

_PR_SET_PDEATHSIG = 1


@unique
class _Sent(Enum):
    """Says what comes through the pipe."""

    ITEM = auto()
    LINE = auto()  # of the log
    ERROR = auto()
    END = auto()


def forked(
    make: Callable[[], Iterator[T]], lost: Callable[[str], Exception], bound_s: float = 0
) -> Generator[T, None, None]:
    """Begin to make picklable items in a copy of this process, and return an iterator over them.

    It raises what `make` raises, and `lost(how)` where the copy ended too early, with `how` such as
    "was ended by signal 9". After its first item the copy has `bound_s` seconds for each; 0: no
    limit. Closing the iterator ends the copy. This process should have no other threads yet, since
    the copy has none of them.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # else the copy would write it, too
    reading, writing = os.pipe()
    parent = os.getpid()
    copy = os.fork()
    if copy == 0:
        os.close(reading)
        _make_and_end(make, writing, parent, bound_s)
    os.close(writing)
    received = _received(copy, os.fdopen(reading, "rb"), lost, bound_s)
    next(received)  # from here on closing it ends the copy
    return cast("Generator[T, None, None]", received)


# --- in the copy ----------------------------------------------------------------------------------


def _make_and_end(
    make: Callable[[], Iterator[object]], writing: int, parent: int, bound_s: float
) -> NoReturn:
    """Send what `make` makes, and end this process; or end with the parent, however that ends."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:  # else it has ended already
            with os.fdopen(writing, "wb") as pipe:
                _send_all(make, pipe, bound_s)
    except BaseException:  # noqa: BLE001  it cannot be sent; nothing of the parent's may run here
        traceback.print_exc()
    finally:
        os._exit(0)


def _send_all(make: Callable[[], Iterator[object]], pipe: IO[bytes], bound_s: float) -> None:
    def send(kind: _Sent, what: object = None) -> None:
        pickle.dump([kind, what], pipe, 5)
        pipe.flush()

    logging.getLogger().handlers = [LogSender(partial(send, _Sent.LINE))]
    logging.getLogger("convoy").setLevel(logging.DEBUG)  # the other process knows what it logs
    try:
        for item in make():
            signal.setitimer(signal.ITIMER_REAL, 0)
            send(_Sent.ITEM, item)
            signal.setitimer(signal.ITIMER_REAL, bound_s)  # whose signal ends the process
    except KeyboardInterrupt:  # the other process has it, too
        return
    except Exception as error:  # noqa: BLE001  raised in the other process
        error.add_note("".join(traceback.format_tb(error.__traceback__)))
        send(_Sent.ERROR, error)
    else:
        send(_Sent.END)


# --- in this process ------------------------------------------------------------------------------


def _received(
    copy: int, pipe: IO[bytes], lost: Callable[[str], Exception], bound_s: float
) -> Generator[Any, None, None]:
    """Yield None, and then the items that the copy sends; end the copy."""
    status: int | None = None
    try:
        with pipe:
            yield None
            while sent := _next(pipe):
                kind, what = sent
                if kind is _Sent.END:
                    return
                if kind is _Sent.ERROR:
                    raise what
                if kind is _Sent.LINE:
                    log_again(what)
                    continue
                del what
                yield sent.pop()  # which is not kept here
            _, status = os.waitpid(copy, 0)
    finally:
        if status is None:
            os.kill(copy, signal.SIGKILL)
            os.waitpid(copy, 0)
    raise lost(_how(os.waitstatus_to_exitcode(status), bound_s))


def _next(pipe: IO[bytes]) -> list[Any] | None:
    """Return what comes next, with its kind; None if the copy ended."""
    try:
        return pickle.load(pipe)  # type: ignore[no-any-return]  # noqa: S301  (of this program)
    except (EOFError, pickle.UnpicklingError):  # nothing, or cut off
        return None


def _how(code: int, bound_s: float) -> str:
    if code == -signal.SIGALRM:
        return f"is stuck for {bound_s:g} s"
    return how_ended(code)
