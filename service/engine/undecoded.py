"""Defines an image file that the engine's thread decodes immediately before it runs the batch.

If decoding an image takes at least as long as running it, the same thread does both. The request
then need not wait for a second thread, and images that arrive together form one batch.
"""

from collections.abc import Callable

from models import Pixels


class Undecoded:
    """Holds an image file that is not yet decoded."""

    file: bytes
    """Holds the bytes from which another process can recreate this object."""

    expected_s: float
    """Estimates the seconds that one core takes to decode the image."""

    def read(self) -> Callable[[], Pixels]:
        """Read the image's header, and return the function that decodes the image.

        Both functions may raise ImageError or another error about the image. Only `read` may raise
        NotHereError.
        """
        raise NotImplementedError


class NotHereError(Exception):
    """Raised if the decode pool has to decode an image, because decoding may take long or because a
    decoder hung earlier in the batch."""


Sample = Callable[[], object]
"""Decodes an image of the usual size. Raises ServiceError if the limits do not allow the image."""
