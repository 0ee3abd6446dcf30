"""What a worker and the engine's process say to each other: records of one length.

    worker          SUBMIT  CANCEL  LISTENING
    engine's side   DONE  FAILED  FREED  DRAIN

Every SUBMIT has one end: DONE (the scores are in its slots, which are the worker's again), or
FREED (the slots are, and there are no scores), which FAILED may precede. Where a batch that nobody
wants is still running on a slot, FREED comes when it has ended. CANCEL asks for that end; one that
crosses another end says nothing.
"""

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

from service.batching.policy import LOWEST_PRIORITY
from service.errors import DeadlineError, RetryableError, ServiceError


class Ask(IntEnum):
    """What a worker says."""

    SUBMIT = 1
    CANCEL = 2
    LISTENING = 3


class Tell(IntEnum):
    """What the engine's process says."""

    DONE = 1
    FAILED = 2
    FREED = 3
    DRAIN = 4


# Ask, priority, model, images, request, first slot, deadline in perf_counter's seconds.
_ASK = struct.Struct("<BBHIQId")

# Tell, error, bytes of its text, request, two numbers of the error.
_TELL = struct.Struct("<BBHQdd")


def _tree(error: type[ServiceError]) -> Iterator[type[ServiceError]]:
    yield error
    for kind in error.__subclasses__():
        yield from _tree(kind)


_ERRORS = tuple(_tree(ServiceError))
_CODES = {error: code for code, error in enumerate(_ERRORS)}


class Records:
    """Puts together the records of one kind that arrive in pieces."""

    def __init__(self, kind: struct.Struct) -> None:
        self._kind = kind
        self._rest = b""

    @classmethod
    def asked(cls) -> "Records":
        """What a worker says."""
        return cls(_ASK)

    @classmethod
    def told(cls) -> "Records":
        """What the engine's process says."""
        return cls(_TELL)

    def read(self, data: bytes) -> Iterator[tuple[Any, ...]]:
        """The records that are whole now."""
        if self._rest:
            data = self._rest + data
        over = len(data) % self._kind.size
        self._rest = data[len(data) - over :] if over else b""
        return self._kind.iter_unpack(data[: len(data) - over] if over else data)


def submit(
    request: int, model: int, images: int, slot: int, deadline: float, priority: int
) -> bytes:
    """Run the images in a chain of slots."""
    # A client may say any number, and those beyond the lowest priority are the same as it.
    level = min(priority, LOWEST_PRIORITY)
    return _ASK.pack(Ask.SUBMIT, level, model, images, request, slot, deadline)


def cancel(request: int) -> bytes:
    """Nobody waits for this any more."""
    return _ASK.pack(Ask.CANCEL, 0, 0, 0, request, 0, 0.0)


def listening() -> bytes:
    """Connections are accepted."""
    return _ASK.pack(Ask.LISTENING, 0, 0, 0, 0, 0, 0.0)


def done(request: int) -> bytes:
    """The scores are there."""
    return _TELL.pack(Tell.DONE, 0, 0, request, 0.0, 0.0)


def freed(request: int) -> bytes:
    """Nobody reads the slots any more."""
    return _TELL.pack(Tell.FREED, 0, 0, request, 0.0, 0.0)


def drain() -> bytes:
    """Finish what is inside, and leave; said again: do not wait for it."""
    return _TELL.pack(Tell.DRAIN, 0, 0, 0, 0.0, 0.0)


def failed(request: int, error: ServiceError, text_bytes: int) -> bytes:
    """It failed, with a text left at the first slot."""
    numbers = (0.0, 0.0)
    if isinstance(error, DeadlineError):
        numbers = (error.expected_s, error.allowed_s)
    elif isinstance(error, RetryableError):
        numbers = (error.retry_after_s, 0.0)
    return _TELL.pack(Tell.FAILED, _CODES[type(error)], text_bytes, request, *numbers)


def error_of(code: int, text: str, first: float, second: float) -> ServiceError:
    """The error that was told."""
    kind = _ERRORS[code]
    if issubclass(kind, DeadlineError):
        return kind(first, second)
    if issubclass(kind, RetryableError):
        return kind(text, first)
    return kind(text)
