"""Defines image files that are decoded in the job that runs them; the job reads their headers,
too."""

from collections.abc import Callable
from dataclasses import dataclass

from typing_extensions import override

from models import Pixels
from service.engine.undecoded import NotHereError, Undecoded
from service.images.decode_pool import Decoding
from service.images.jpeg import jpeg_size
from service.images.png import png_size

# The seconds of a pixel and of a coded byte, about as `jpeg.py` weighs those of most JPEGs. A PNG's
# pixels take more, but it has more bytes, too.
_PIXEL_S, _BYTE_S = 2.8e-9, 7.2e-9


@dataclass(eq=False, slots=True)
class Coded(Undecoded):
    """Holds a file, with functions that read its header and say whether it is decoded in a job."""

    file: bytes
    prepare: Callable[[bytes], Decoding]
    fits: Callable[[Decoding], bool]
    expected_s: float = 0.0
    _decoding: Decoding | None = None

    @staticmethod
    def of(
        file: bytes, prepare: Callable[[bytes], Decoding], fits: Callable[[Decoding], bool]
    ) -> "Coded":
        """Return a file to decode in a job. If its size is not found at once, its header is read
        now. Raises what `prepare` raises then."""
        size = png_size(file) or jpeg_size(file)
        if size is None:
            decoding = prepare(file)
            return Coded(file, prepare, fits, decoding.cost.seconds, decoding)
        width, height = size
        return Coded(file, prepare, fits, width * height * _PIXEL_S + len(file) * _BYTE_S)

    @property
    def decoding(self) -> Decoding:
        """Return how the file is decoded. Raises what `prepare` raises."""
        if self._decoding is None:
            self._decoding = self.prepare(self.file)
        return self._decoding

    @override
    def read(self) -> Callable[[], Pixels]:
        decoding = self.decoding
        if not self.fits(decoding):
            raise NotHereError
        return decoding.run
