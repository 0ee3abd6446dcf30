"""Defines images that an engine's thread decodes itself, in the job that runs their batch.

If decoding an image takes at least as long as running it, both are done in one job. This saves a
request the handover to another thread. It also lets images that arrive together form one batch.
"""

from collections.abc import Callable

from models import Pixels


class Undecoded:
    """Holds an image that is not yet decoded."""

    file: bytes
    """Holds the bytes from which another process can recreate this object."""

    expected_s: float
    """Estimates the seconds that one core takes to decode the image."""

    def read(self) -> Callable[[], Pixels]:
        """Read the image's header, and return the function that decodes the image.

        Both functions may raise ImageError or another error that refuses the image. Only `read` may
        raise NotHereError.
        """
        raise NotImplementedError


class NotHereError(Exception):
    """Says that the decode pool has to decode an image, because decoding may take long or because a
    decoder hung earlier in the batch."""


Sample = Callable[[], object]
"""Decodes an image of the usual size; raises ServiceError if the limits do not allow the image."""
