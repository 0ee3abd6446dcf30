"""How soon a request is wanted, read off its headers: X-Timeout-Ms, X-Priority."""

import math
from collections.abc import Iterable

from service.errors import InvalidParameterError
from service.policy import Urgency, urgency_of

TIMEOUT_HEADER = "X-Timeout-Ms"
PRIORITY_HEADER = "X-Priority"

_TIMEOUT, _PRIORITY = (name.lower().encode() for name in (TIMEOUT_HEADER, PRIORITY_HEADER))


def urgency_from(headers: Iterable[tuple[bytes, bytes]], started: float) -> Urgency:
    """What the headers of a request that began to arrive at `started` (clock seconds) ask for.

    InvalidParameterError: a timeout that is no positive number, a priority that is none either.
    """
    timeout_s, priority = None, 0
    for name, value in headers:
        if name == _TIMEOUT:
            timeout_s = _milliseconds(value) / 1e3
        elif name == _PRIORITY:
            if not (value.isdigit() and len(value) < 9):
                raise InvalidParameterError(
                    f"{PRIORITY_HEADER} is {_shown(value)}; it must be a whole number: "
                    "1 for the highest priority, 0 for the default"
                )
            priority = int(value)
    return urgency_of(started, timeout_s, priority)


def _milliseconds(value: bytes) -> float:
    try:
        number = float(value) if len(value) < 25 else math.nan
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise InvalidParameterError(
            f"{TIMEOUT_HEADER} is {_shown(value)}; it must be a positive number of milliseconds"
        )
    return number


def _shown(value: bytes) -> str:
    return repr(value[:20].decode("latin-1"))
