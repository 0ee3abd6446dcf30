"""The service's exceptions, each with a code that every protocol maps to its own.

The message becomes the answer's `error`: it says what was wrong and what to do. The router itself
answers 405, and 404 for unknown paths, in the same JSON format; errors that only HTTP has are in
`service/http/errors.py`.
"""

from enum import IntEnum, unique
from typing import ClassVar


@unique
class Code(IntEnum):
    """How a request ended that has no result; the number, HTTP's status, is what metrics show."""

    MALFORMED = 400
    UNAUTHENTICATED = 401
    FORBIDDEN = 403
    NOT_FOUND = 404
    TOO_SLOW = 408
    TOO_LARGE = 413
    UNSUPPORTED_TYPE = 415
    INVALID = 422
    TOO_MANY = 429
    CLIENT_LEFT = 499  # nginx's
    FAILED = 500
    UNIMPLEMENTED = 501
    UNAVAILABLE = 503
    TOO_LATE = 504


class ServiceError(Exception):
    """Base class; clients read the message."""

    code: ClassVar[Code] = Code.FAILED

    def __init_subclass__(cls, code: Code | None = None) -> None:
        cls.code = code or cls.code


class BadRequestError(ServiceError, code=Code.MALFORMED):
    """A malformed request: no body, broken multipart."""


class ImageError(BadRequestError):
    """Truncated or corrupt image data, in a supported format."""


class UnauthorizedError(ServiceError, code=Code.UNAUTHENTICATED):
    """A missing or unknown API key."""


class ForbiddenError(ServiceError, code=Code.FORBIDDEN):
    """A known client that asks for what it may not have."""


class ModelNotFoundError(ServiceError, code=Code.NOT_FOUND):
    """An unknown model or version."""


class RequestTimeoutError(ServiceError, code=Code.TOO_SLOW):
    """A head or body that did not arrive in time."""


class PayloadTooLargeError(ServiceError, code=Code.TOO_LARGE):
    """More bytes in a body, or pixels in an image, than the settings allow."""


class TooManyImagesError(PayloadTooLargeError):
    """More images in one request than the queue can hold."""


class UnsupportedMediaTypeError(ServiceError, code=Code.UNSUPPORTED_TYPE):
    """An unsupported Content-Type or image format, or an animation."""


class InvalidParameterError(ServiceError, code=Code.INVALID):
    """A query parameter or form field with a wrong name or value."""


class InvalidTensorError(ServiceError, code=Code.INVALID):
    """A client's own tensor for which the model has no finite scores."""


class UnsupportedError(ServiceError, code=Code.UNIMPLEMENTED):
    """A part of the protocol that this server does not implement."""


class DeadlineError(ServiceError, code=Code.TOO_LATE):
    """A request that cannot meet its deadline; any work on it has stopped."""

    def __init__(self, expected_s: float, allowed_s: float) -> None:
        """Both count from now: to the expected end, and to the deadline (negative: passed)."""
        ms = allowed_s * 1e3
        due = f"is in {ms:.1f} ms" if ms > 0 else f"passed {-ms:.1f} ms ago"
        super().__init__(
            f"this request would be done in {expected_s * 1e3:.1f} ms, but its deadline {due}; "
            "allow more time, or retry when the server is less busy"
        )
        self.expected_s = expected_s
        self.allowed_s = allowed_s


# A hang is answered 500 rather than 503, which proxies and clients retry elsewhere: an input that
# hangs one server may hang the next.


class ThreadLostError(ServiceError):
    """A thread working for the request hung or died."""


class DecoderLostError(ServiceError):
    """A process that decoded an image hung or died."""

    def __init__(self, how: str) -> None:
        """`how`: "was ended by signal 11"."""
        super().__init__(
            f"given up: the process that decoded the image {how}; the image may be the cause"
        )


class BrokenModelError(ServiceError, code=Code.UNAVAILABLE):
    """One of several models, which could not be opened; another server may have it."""


class EngineFailedError(ServiceError):
    """The engine raised, hung, or returned scores that are not finite; a later request may pass."""


class RetryableError(ServiceError, code=Code.UNAVAILABLE):
    """Base class of temporary conditions; the answer says when to try again."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class QueueFullError(RetryableError, code=Code.TOO_MANY):
    """A full queue; none of the request's images were queued."""


class TooManyFromClientError(RetryableError, code=Code.TOO_MANY):
    """A client at its limit of concurrent requests or of requests per second."""


class TooManyConnectionsError(RetryableError):
    """A server at its limit of open connections."""


class DecodersBusyError(RetryableError):
    """Large images waiting for memory or a decode thread; small images are still accepted."""


class NotReadyError(RetryableError):
    """A model that is loading or warming up, or whose engine is restarting."""


class ShuttingDownError(RetryableError):
    """A draining server: accepted requests finish, new ones are refused."""
