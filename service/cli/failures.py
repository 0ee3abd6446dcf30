"""Defines the exit status and the message for each kind of error that may end a command."""

import errno

from loadtest import LoadTestError, OptionsError
from models import DeviceLostError, ModelError
from service.errors import ServiceError
from service.http.server import DEVICE_LOST, ListenError
from service.settings import SettingsError

_EXPECTED = (ModelError, ServiceError, ListenError, LoadTestError, SettingsError, OSError)


def status_of(error: Exception) -> int | None:
    """Return the exit status, or None for an unexpected error, which needs a traceback."""
    if isinstance(error, DeviceLostError):
        return DEVICE_LOST
    if isinstance(error, SettingsError | OptionsError):
        return 2
    return 1 if isinstance(error, _EXPECTED) or _lacks_thread(error) else None


def message_of(error: Exception) -> str:
    """Return the message of an expected error. If the system allows no more threads or open files,
    the message names the limit."""
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EAGAIN or _lacks_thread(error):
        return f"{error}: the system allows no more threads and processes (ulimit -u, pids.max)"
    if number in (errno.EMFILE, errno.ENFILE):
        return f"{error}: the system allows no more open files (ulimit -n)"
    return str(error)


def _lacks_thread(error: Exception) -> bool:
    """Return whether the error says that Python could not start a thread. Python raises a plain
    RuntimeError then."""
    return isinstance(error, RuntimeError) and str(error) == "can't start new thread"
