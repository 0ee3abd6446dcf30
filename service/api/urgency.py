"""How soon a request is wanted, read off its headers: X-Timeout-Ms, X-Priority."""

import math
from collections.abc import Mapping

from service.batching.policy import NO_HURRY, Urgency, urgency_of
from service.errors import InvalidParameterError

TIMEOUT_HEADER = "X-Timeout-Ms"
PRIORITY_HEADER = "X-Priority"

_TIMEOUT, _PRIORITY = (name.lower().encode() for name in (TIMEOUT_HEADER, PRIORITY_HEADER))


def urgency_from(headers: Mapping[bytes, bytes], started: float) -> Urgency:
    """What the headers of a request that began to arrive at `started` (clock seconds) ask for.

    InvalidParameterError: a timeout that is no positive number, a priority that is none either.
    """
    timeout, priority = headers.get(_TIMEOUT), headers.get(_PRIORITY, b"0")
    if timeout is None and priority == b"0":
        return NO_HURRY
    if not (priority.isdigit() and len(priority) < 9):
        raise InvalidParameterError(
            f"{PRIORITY_HEADER} is {_shown(priority)}; it must be a whole number: "
            "1 for the highest priority, 0 for the default"
        )
    timeout_s = None if timeout is None else _milliseconds(timeout) / 1e3
    return urgency_of(started, timeout_s, int(priority))


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
