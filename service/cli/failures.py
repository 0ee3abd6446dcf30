"""Defines the exit status for each kind of error that may end a command."""

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
    return 1 if isinstance(error, _EXPECTED) else None
