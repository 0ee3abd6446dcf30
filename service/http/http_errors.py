"""Defines errors of requests that exist only in HTTP."""

from typing import ClassVar

from service.errors import Code, ServiceError


class HttpError(ServiceError, code=Code.MALFORMED):
    """The base of errors that have a more precise HTTP `status` than their code."""

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
