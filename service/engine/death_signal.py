"""Ends a process together with its parent process, even if the process hangs."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Make Linux kill this process when the parent process ends for whatever reason. `parent` is
    the parent's PID. If the parent has already ended, exit now.

    Linux sends the signal when the thread that started this process ends. So the parent must start
    it from its main thread, or from another thread that does not end earlier.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before Linux knew of the signal
        os._exit(0)
