"""Errors of requests that are wrong only as HTTP has them."""

from typing import ClassVar

from service.errors import Code, ServiceError


class HttpError(ServiceError, code=Code.MALFORMED):
    """Base class; `status` is more precise than the code's."""

    status: ClassVar[int]

    def __init_subclass__(cls, status: int) -> None:
        cls.status = status


class TargetTooLongError(HttpError, status=414):
    """A path with query beyond its length limit."""


class ExpectationError(HttpError, status=417):
    """An Expect header with another value than 100-continue."""


class HeadTooLargeError(HttpError, status=431):
    """A request line with headers beyond its length limit."""


class HttpVersionError(HttpError, status=505):
    """An HTTP version other than 1.0 and 1.1."""
