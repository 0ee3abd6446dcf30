"""Defines the service's errors. The `Code` of an error class is mapped to an HTTP or gRPC status.

An error's message says what was wrong and what would be right. The JSON answer contains it as the
field `error`. FastAPI's own answers for an unknown path (404) and a wrong method (405) have the
same JSON format. Errors that exist only in HTTP are in `service/http/http_errors.py`.
"""

from enum import IntEnum, unique
from typing import ClassVar, Self


@unique
class Code(IntEnum):
    """Lists the kinds of errors. Their numbers are HTTP status codes, also for gRPC requests.
    Metrics count errors by these numbers."""

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


CRASHED = "internal server error; see the server log"
"""The message for an unexpected error; clients must not see its details."""


class ServiceError(Exception):
    """The base class of errors whose message is sent to the client."""

    code: ClassVar[Code] = Code.FAILED

    def __init_subclass__(cls, code: Code | None = None) -> None:
        cls.code = code or cls.code

    def within(self, place: str) -> Self:
        """Return a copy of the error with a prefix in its message, such as "image 1 of 4".

        The copy is made without `__init__`, because the subclasses' arguments differ.
        """
        copied = type(self).__new__(type(self), f"{place}: {self}")
        copied.__dict__.update(self.__dict__)
        return copied


class BadRequestError(ServiceError, code=Code.MALFORMED):
    """Says that a request is malformed, for example without a body."""


class ImageError(BadRequestError):
    """Says that image data in a supported format is truncated or corrupt."""


class UnauthorizedError(ServiceError, code=Code.UNAUTHENTICATED):
    """Says that an API key is missing or unknown."""


class ForbiddenError(ServiceError, code=Code.FORBIDDEN):
    """Says that the client is not allowed to do what it requested."""


class ModelNotFoundError(ServiceError, code=Code.NOT_FOUND):
    """Says that a model or version is unknown."""


class RequestTimeoutError(ServiceError, code=Code.TOO_SLOW):
    """Says that a request's headers or body did not arrive in time."""


class PayloadTooLargeError(ServiceError, code=Code.TOO_LARGE):
    """Says that a body has more bytes, or an image more pixels, than the settings allow."""


class TooManyImagesError(PayloadTooLargeError):
    """Says that one request has more images than the queue can hold."""


class UnsupportedMediaTypeError(ServiceError, code=Code.UNSUPPORTED_TYPE):
    """Says that a Content-Type or an image format is unsupported, or that an image is animated."""


class InvalidParameterError(ServiceError, code=Code.INVALID):
    """Says that a query parameter or form field has a wrong name or value."""


class InvalidTensorError(ServiceError, code=Code.INVALID):
    """Says that the model's scores for a client's tensor are NaN or infinite."""


class NotLoadedError(ServiceError, code=Code.INVALID):
    """Says why the server did not load a new version of a model."""


class UnsupportedError(ServiceError, code=Code.UNIMPLEMENTED):
    """Says that this server does not implement a part of the protocol."""


class DeadlineError(ServiceError, code=Code.TOO_LATE):
    """Says that a request will miss its deadline. The server has stopped working on the request."""

    def __init__(self, expected_s: float, allowed_s: float) -> None:
        """`expected_s` is the time in seconds until the request would be done. `allowed_s` is the
        time in seconds until its deadline, and is negative if the deadline has passed."""
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
    """Says that the thread that handled the request hung or died."""


class NotTriedError(ServiceError):
    """Says that the process that tested a new version of a model hung or died."""

    def __init__(self, how: str) -> None:
        """`how` describes how the process ended, such as "was ended by signal 11"."""
        super().__init__(
            f"the process that tested the new version {how}; the model may be the cause"
        )


class DecoderLostError(ServiceError):
    """Says that the process that decoded an image hung or died."""

    def __init__(self, how: str) -> None:
        """`how` describes how the process ended, such as "was ended by signal 11"."""
        super().__init__(
            f"the server gave up: the process that decoded the image {how};"
            " the image may be the cause"
        )


class BrokenModelError(ServiceError, code=Code.UNAVAILABLE):
    """Says that the requested model could not be opened. Another server may serve this model."""


class EngineFailedError(ServiceError):
    """Says that the engine raised an exception, hung, or returned NaN or infinite scores. A retry
    may succeed."""


class RetryableError(ServiceError, code=Code.UNAVAILABLE):
    """The base class of temporary errors. The answer tells the client when to retry."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class QueueFullError(RetryableError, code=Code.TOO_MANY):
    """Says that the queue is full. None of the request's images were queued."""


class TooManyFromClientError(RetryableError, code=Code.TOO_MANY):
    """Says that a client has reached its limit of images in progress or of images per second."""


class TooManyConnectionsError(RetryableError):
    """Says that the server, or the client's address, has reached its limit of open connections."""


class DecodersBusyError(RetryableError):
    """Says that a large image is refused, because decoding earlier large images takes too long.
    Small images are still accepted."""


class NoProcessError(RetryableError):
    """Says that the operating system currently allows no more processes or open files."""

    def __init__(self, error: OSError) -> None:
        """`error` is the exception raised when a process could not be started or a file not
        opened."""
        super().__init__(
            f"the server has reached a limit of its system ({error.strerror}); try again in a"
            " second"
        )


class NotReadyError(RetryableError):
    """Says that a model is loading or warming up, or that its engine is restarting."""


class MemoryShortError(RetryableError):
    """Says that the process is near its memory limit, and reads no new request bodies."""


class ShuttingDownError(RetryableError):
    """Says that the server is shutting down. It finishes accepted requests and refuses new
    requests."""
