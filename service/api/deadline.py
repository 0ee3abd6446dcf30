"""A request's deadline and priority, from its headers X-Timeout-Ms and X-Priority."""

from collections.abc import Callable, Mapping
from typing import Annotated, TypeVar

from fastapi import Header
from pydantic import TypeAdapter, ValidationError

from service.batching.policy import DEFAULT_PRIORITY, LOWEST_PRIORITY, NO_HURRY, Urgency, urgency_of
from service.errors import InvalidParameterError

T = TypeVar("T")

TIMEOUT_HEADER = "X-Timeout-Ms"
PRIORITY_HEADER = "X-Priority"

_DEADLINE = "deadline, in milliseconds after the request arrived; default: none"
_LEVELS = f"1: highest; {LOWEST_PRIORITY} and above: lowest; 0: the default, {DEFAULT_PRIORITY}"

# FastAPI documents these types; pydantic validates by them here.
Timeout = Annotated[
    float, Header(alias=TIMEOUT_HEADER, gt=0, allow_inf_nan=False, description=_DEADLINE)
]
Priority = Annotated[int, Header(alias=PRIORITY_HEADER, ge=0, description=_LEVELS)]

_TIMEOUT, _PRIORITY = (name.lower().encode() for name in (TIMEOUT_HEADER, PRIORITY_HEADER))
_timeout = TypeAdapter[float](Timeout).validator.validate_python
_priority = TypeAdapter[int](Priority).validator.validate_python


def urgency_from(headers: Mapping[bytes, bytes], started: float) -> Urgency:
    """The urgency of a request that began to arrive at `started` (clock seconds).

    InvalidParameterError: a header's value is not what `Timeout` or `Priority` allows.
    """
    timeout, priority = headers.get(_TIMEOUT), headers.get(_PRIORITY, b"0")
    if timeout is None and priority == b"0":
        return NO_HURRY
    level, timeout_s = 0, None
    if priority != b"0":
        rule = f"{PRIORITY_HEADER} must be a whole number: 1 is the highest priority, 0 the default"
        level = validated(_priority, priority, rule)
    if timeout is not None:
        rule = f"{TIMEOUT_HEADER} must be a positive number of milliseconds"
        timeout_s = validated(_timeout, timeout, rule) / 1e3
    return urgency_of(started, timeout_s, level)


def validated(validate: Callable[[bytes | str], T], value: bytes | str, rule: str) -> T:
    """A parameter's parsed value; InvalidParameterError, with the `rule`, if it is invalid."""
    try:
        return validate(value)
    except ValidationError:
        shown = value if isinstance(value, str) else value.decode("latin-1")
        raise InvalidParameterError(f"{rule}; got {shown[:20]!r}") from None
