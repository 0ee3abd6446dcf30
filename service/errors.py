"""What the service refuses or fails at; every class carries the HTTP status of its answer.

ServiceError
├── BadRequestError 400             the request cannot be understood: no body, broken multipart
│   └── ImageError 400              the bytes are no readable picture: truncated, corrupt
├── UnauthorizedError 401           no API key, or one that is not taken
├── ModelNotFoundError 404          no such model, or not in this version
├── RequestTimeoutError 408         the head or the body did not arrive in time
├── PayloadTooLargeError 413        more bytes or more pixels than allowed
│   └── TooManyImagesError 413      more images in one request than allowed
├── TargetTooLongError 414          a path with a query longer than any should be
├── UnsupportedMediaTypeError 415   a Content-Type or picture format not taken, or an animation
├── InvalidParameterError 422       a query parameter or form field with a wrong name or value
├── HeadTooLargeError 431           a request line with headers longer than any should be
├── RetryableError 503              passes by itself; Retry-After says when to come back
│   ├── QueueFullError 429          as many images wait as may wait
│   ├── TooManyFromClientError 429  as many requests of one client are inside as may be
│   ├── TooManyConnectionsError 503 as many connections are open as may be
│   ├── DecodersBusyError 503       large images wait for memory or a thread to be decoded
│   ├── NotReadyError 503           still loading or warming up, or restarting
│   └── ShuttingDownError 503       draining: what was accepted finishes, new requests go elsewhere
├── DeadlineError 504               it cannot be done by its deadline, so it was not tried
├── UnsupportedError 501            part of a protocol, but not done here
├── HttpVersionError 505            another version than HTTP/1.1 and 1.0
├── ThreadLostError 500             what a request takes in a thread never came to an end
└── EngineFailedError 500           the engine raised or hung, or gave scores that are no numbers

The message is the answer's `error`, so it says what was wrong and what to do. 405, and 404 for
other paths, come from the router, in the same shape.
"""

from math import ceil
from typing import ClassVar


class ServiceError(Exception):
    """Base class; `status` is the HTTP status, the message is what the client reads."""

    status: ClassVar[int] = 500

    def headers(self) -> dict[str, str]:
        """What the answer's header says besides its status."""
        return {}


class BadRequestError(ServiceError):
    """The request cannot be understood as HTTP says it should be."""

    status = 400


class ImageError(BadRequestError):
    """The format is one that is taken, but the bytes are no readable still picture."""


class UnauthorizedError(ServiceError):
    """The request brings no API key, or none that is taken."""

    status = 401

    def headers(self) -> dict[str, str]:
        """What would be taken (RFC 6750)."""
        return {"WWW-Authenticate": "Bearer"}


class ModelNotFoundError(ServiceError):
    """No model of that name, or none of that version, is served."""

    status = 404


class RequestTimeoutError(ServiceError):
    """The head or the body came too slowly."""

    status = 408


class PayloadTooLargeError(ServiceError):
    """More bytes in the body, or more pixels in a picture, than the settings allow."""

    status = 413


class TooManyImagesError(PayloadTooLargeError):
    """More images in one request than can ever wait at once."""


class UnsupportedMediaTypeError(ServiceError):
    """A Content-Type or a picture format that the service does not read."""

    status = 415


class InvalidParameterError(ServiceError):
    """A query parameter or form field is understood, but its name or value is wrong."""

    status = 422


class TargetTooLongError(ServiceError):
    """The path and query are longer than any that make sense."""

    status = 414


class HeadTooLargeError(ServiceError):
    """The request line and headers are longer than any that make sense."""

    status = 431


class HttpVersionError(ServiceError):
    """The request is of a version of HTTP that is not spoken here."""

    status = 505


class RetryableError(ServiceError):
    """Base of what passes by itself: the answer tells the client when to come back."""

    status = 503

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s

    def headers(self) -> dict[str, str]:
        """Retry-After in whole seconds, at least one (RFC 9110 section 10.2.3).

        Rounded up: who comes a moment too early is refused again.
        """
        return {"Retry-After": str(max(1, ceil(self.retry_after_s)))}


class QueueFullError(RetryableError):
    """As many images wait as may wait; nothing of the request was queued."""

    status = 429


class TooManyFromClientError(RetryableError):
    """As many requests of this client are inside as may be at once."""

    status = 429


class TooManyConnectionsError(RetryableError):
    """As many connections are open as may be."""


class DecodersBusyError(RetryableError):
    """Too many large images wait to be decoded; small ones are still taken."""


class UnsupportedError(ServiceError):
    """Something that the protocol has and this server does not do."""

    status = 501


class DeadlineError(ServiceError):
    """A request with a deadline cannot be done by then; nothing of it is done any more."""

    status = 504

    def __init__(self, expected_s: float, allowed_s: float) -> None:
        allowed = (
            f"is in {allowed_s * 1e3:.1f} ms"
            if allowed_s > 0
            else f"passed {-allowed_s * 1e3:.1f} ms ago"
        )
        super().__init__(
            f"this would be done in {expected_s * 1e3:.1f} ms, but its deadline {allowed}; "
            "allow more time, or send it when there is less to do"
        )
        self.expected_s = expected_s  # from now until it would have been done
        self.allowed_s = allowed_s  # from now until the deadline


class ThreadLostError(ServiceError):
    """A thread that worked for the request took longer than it may, or died.

    Not 503, which proxies and clients send elsewhere: what hangs one server may hang the next.
    """

    status = 500


class EngineFailedError(ServiceError):
    """The engine failed on the batch this request was in; the next request may well succeed.

    The same where it hung, and for the reason that ThreadLostError has: 500, not 503.
    """

    status = 500


class NotReadyError(RetryableError):
    """The model is still being loaded or warmed up, or its engine is restarted."""


class ShuttingDownError(RetryableError):
    """The service is draining and takes nothing new."""
