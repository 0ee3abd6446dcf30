"""Defines the errors that only requests over HTTP can have."""

from typing import ClassVar

from service.errors import Code, ServiceError


class HttpError(ServiceError, code=Code.MALFORMED):
    """The base class of errors with an HTTP `status` that is more precise than their `code`."""

    status: ClassVar[int]

    def __init_subclass__(cls, status: int) -> None:
        cls.status = status


class TargetTooLongError(HttpError, status=414):
    """Says that a path and query exceed their length limit."""


class ExpectationError(HttpError, status=417):
    """Says that an Expect header has a value other than 100-continue."""


class HeadTooLargeError(HttpError, status=431):
    """Says that a request line and headers exceed their length limit."""


class HttpVersionError(HttpError, status=505):
    """Says that an HTTP version is neither 1.0 nor 1.1."""
