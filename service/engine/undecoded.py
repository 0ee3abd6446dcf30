"""Defines images that an engine's thread decodes itself, in the job that runs their batch.

Where decoding an image takes no less time than running it, one job for both spares a request a
thread on its way, and lets images that arrive together make one batch.
"""

from collections.abc import Callable

from models import Pixels


class Undecoded:
    """Holds an image that is still a file."""

    file: bytes
    """Holds the bytes of which another process can make this image again."""

    expected_s: float
    """Estimates the seconds of one core that decoding it takes."""

    def read(self) -> Callable[[], Pixels]:
        """Read its header, and return the function that decodes it.

        Both raise ImageError or another error that refuses the image; this also NotHereError.
        """
        raise NotImplementedError


class NotHereError(Exception):
    """Says that an image is to be decoded by the decode pool, as it may take long, or as a decoder
    hung before its turn."""


Sample = Callable[[], object]
"""Decodes an image of the usual size; raises ServiceError where the limits allow none."""
