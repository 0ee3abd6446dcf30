"""The service's exceptions, each with the HTTP status of its answer.

The message becomes the answer's `error`: it says what was wrong and what to do. The router itself
answers 405, and 404 for unknown paths, in the same JSON format.
"""

from math import ceil
from typing import ClassVar


class ServiceError(Exception):
    """Base class; `status` is the HTTP status, and clients read the message."""

    status: ClassVar[int] = 500

    def __init_subclass__(cls, status: int | None = None) -> None:
        cls.status = status or cls.status

    def headers(self) -> dict[str, str]:
        """Headers that the answer adds."""
        return {}


class BadRequestError(ServiceError, status=400):
    """A malformed request: no body, broken multipart."""


class ImageError(BadRequestError):
    """Truncated or corrupt image data, in a supported format."""


class UnauthorizedError(ServiceError, status=401):
    """A missing or unknown API key."""

    def headers(self) -> dict[str, str]:
        """The expected scheme (RFC 6750)."""
        return {"WWW-Authenticate": "Bearer"}


class ForbiddenError(ServiceError, status=403):
    """A known client that asks for what it may not have."""


class ModelNotFoundError(ServiceError, status=404):
    """An unknown model or version."""


class RequestTimeoutError(ServiceError, status=408):
    """A head or body that did not arrive in time."""


class PayloadTooLargeError(ServiceError, status=413):
    """More bytes in a body, or pixels in an image, than the settings allow."""


class TooManyImagesError(PayloadTooLargeError):
    """More images in one request than the queue can hold."""


class TargetTooLongError(ServiceError, status=414):
    """A path with query beyond its length limit."""


class UnsupportedMediaTypeError(ServiceError, status=415):
    """An unsupported Content-Type or image format, or an animation."""


class ExpectationError(ServiceError, status=417):
    """An Expect header with another value than 100-continue."""


class InvalidParameterError(ServiceError, status=422):
    """A query parameter or form field with a wrong name or value."""


class InvalidTensorError(ServiceError, status=422):
    """A client's own tensor for which the model has no finite scores."""


class HeadTooLargeError(ServiceError, status=431):
    """A request line with headers beyond its length limit."""


class UnsupportedError(ServiceError, status=501):
    """A part of the protocol that this server does not implement."""


class DeadlineError(ServiceError, status=504):
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


class HttpVersionError(ServiceError, status=505):
    """An HTTP version other than 1.0 and 1.1."""


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


class BrokenModelError(ServiceError, status=503):
    """One of several models, which could not be opened; another server may have it."""


class EngineFailedError(ServiceError):
    """The engine raised, hung, or returned scores that are not finite; a later request may pass."""


class RetryableError(ServiceError, status=503):
    """Base class of temporary conditions; the answer carries Retry-After."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s

    def headers(self) -> dict[str, str]:
        """Retry-After, rounded up to whole seconds, at least one (RFC 9110 section 10.2.3)."""
        return {"Retry-After": str(max(1, ceil(self.retry_after_s)))}


class QueueFullError(RetryableError, status=429):
    """A full queue; none of the request's images were queued."""


class TooManyFromClientError(RetryableError, status=429):
    """A client at its limit of concurrent requests or of requests per second."""


class TooManyConnectionsError(RetryableError):
    """A server at its limit of open connections."""


class DecodersBusyError(RetryableError):
    """Large images waiting for memory or a decode thread; small images are still accepted."""


class NotReadyError(RetryableError):
    """A model that is loading or warming up, or whose engine is restarting."""


class ShuttingDownError(RetryableError):
    """A draining server: accepted requests finish, new ones are refused."""
