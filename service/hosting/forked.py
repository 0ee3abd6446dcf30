"""Creates objects in a forked copy of this process. The copy ends afterwards.

    this process ── fork ─┬─ continues, and receives the items later ─────────── items
                          └─ creates the items; sends items, log records, an error or the end

The copy's memory is freed when the copy ends. Modules that only the copy needs are never imported
in this process. The copy starts at once, because it begins with the imported modules of this
process.
"""

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

from service.engine.death_signal import end_with
from service.engine.process_pool import LogSender, how_ended, log_again

T = TypeVar("T")

CAN_FORK = sys.platform == "linux"
"""Whether processes can be forked. On systems other than Linux, system libraries do not work in a
forked process."""


@unique
class _Sent(Enum):
    """Lists the kinds of messages that the copy sends through the pipe."""

    ITEM = auto()
    LINE = auto()  # of the log
    ERROR = auto()
    END = auto()


def forked(
    make: Callable[[], Iterator[T]], lost: Callable[[str], Exception], bound_s: float = 0
) -> Generator[T, None, None]:
    """Fork a copy of this process that creates picklable items, and return an iterator over the
    items.

    The iterator raises the errors of `make`. If the copy ends too early, the iterator raises
    `lost(how)`, where `how` is a phrase such as "was ended by signal 9". After the first item, the
    copy may take `bound_s` seconds per item, or any time if `bound_s` is 0. Closing the iterator
    ends the copy. Call this while the process has no other threads, because the copy would lack
    them.
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
    """Send the items that `make` yields to the parent process, and end this process. If the parent
    ends earlier, this process ends too."""
    try:
        end_with(parent)
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
    """Yield None, and then the items that the copy sends. After the first `next`, closing the
    generator kills the copy."""
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
    """Return the kind and the content of the next message as a list, or None if the copy has
    ended."""
    try:
        return pickle.load(pipe)  # type: ignore[no-any-return]  # noqa: S301  (of this program)
    except (EOFError, pickle.UnpicklingError):  # nothing, or cut off
        return None


def _how(code: int, bound_s: float) -> str:
    if code == -signal.SIGALRM:
        return f"was stuck for {bound_s:g} s"
    return how_ended(code)
