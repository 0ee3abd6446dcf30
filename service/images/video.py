"""Describes a video before it is decoded, and contains the code that the parsers of MP4 and WebM
share.

`mp4.py` and `webm.py` find the coded frames, instead of FFmpeg's parsers. So FFmpeg's decoders get
only frames that were counted, and a malicious file reaches less code.
"""

from typing import NamedTuple

from service.errors import ImageError, TooManyImagesError, UnsupportedMediaTypeError

VIDEO_TYPES = ("video/mp4", "video/quicktime", "video/webm", "video/x-matroska")
"""Media types of the containers that are read."""

# FFmpeg's decoders, by the containers' names of the codecs.
_DECODERS = {
    b"avc1": "h264",
    b"avc3": "h264",
    b"V_MPEG4/ISO/AVC": "h264",
    b"hvc1": "hevc",
    b"hev1": "hevc",
    b"V_MPEGH/ISO/HEVC": "hevc",
    b"vp08": "vp8",
    b"V_VP8": "vp8",
    b"vp09": "vp9",
    b"V_VP9": "vp9",
    b"av01": "libdav1d",
    b"V_AV1": "libdav1d",
}

# Bytes per element: every coded frame, also of sound, is an element, and seldom shorter.
_ELEMENTS = 4096
_BYTES_AN_ELEMENT = 64

# Bytes of the data that a decoder gets before the first frame: usually less than 200.
_MOST_SETUP = 2**16

_VP8_SHOWN = 0x10  # in the first byte of a frame


class Video(NamedTuple):
    """Describes the first video track of a file before it is decoded."""

    decoder: str  # FFmpeg's name
    width: int  # as stored
    height: int
    orientation: int  # EXIF 1..8: how to turn the stored pixels upright
    setup: memoryview  # what the decoder gets before the first frame; may be empty
    packets: list[memoryview]  # coded frames, in the order in which they are decoded

    @property
    def frames(self) -> int:
        """Return how many frames are shown: one per packet, except in VP8."""
        if self.decoder != "vp8":
            return len(self.packets)
        return sum(packet[0] & _VP8_SHOWN > 0 for packet in self.packets)


class Container:
    """Collects a video's coded frames within limits on the number of frames and of elements."""

    kind: str
    """The format's usual name."""

    def __init__(self, data: bytes, most_frames: int) -> None:
        self.view = memoryview(data)
        self.packets: list[memoryview] = []
        self._most_frames = most_frames
        self._elements_left = _ELEMENTS + len(data) // _BYTES_AN_ELEMENT

    def broken(self, what: str) -> ImageError:
        """Return the error for a file that contradicts its format."""
        return ImageError(f"the {self.kind} is broken: {what}; save the video again")

    def truncated(self) -> ImageError:
        """Return the error for a file that ends too early."""
        return ImageError(f"the {self.kind} is truncated: the file ends too early; send it whole")

    def count_element(self) -> None:
        """Count one element of the file. Raises ImageError if the file has more elements than any
        real video of its size."""
        self._elements_left -= 1
        if self._elements_left < 0:
            raise self.broken("it has more elements than a video of its size needs")

    def expect(self, frames: int) -> None:
        """Raise TooManyImagesError if the video would have too many frames after `frames` more are
        added."""
        if (count := len(self.packets) + frames) > self._most_frames:
            raise TooManyImagesError(
                f"the video has {count} frames or more; at most {self._most_frames} are allowed;"
                " send a shorter one, or fewer frames per second"
            )

    def add(self, start: int, size: int) -> None:
        """Add the coded frame at this position. Raises ImageError if the frame is empty or outside
        the file."""
        if not size:
            raise self.broken("one of its frames has no bytes")
        if start < 0:
            raise self.broken("one of its frames is before the beginning of the file")
        if start + size > len(self.view):
            raise self.truncated()
        self.packets.append(self.view[start : start + size])

    def video(
        self, codec: bytes, size: tuple[int, int], setup: memoryview | None, orientation: int = 1
    ) -> Video:
        """Return the video with the frames that were added. Raises UnsupportedMediaTypeError for an
        unsupported codec, and ImageError if the size is missing or `setup` is too long."""
        decoder = _DECODERS.get(codec)
        if decoder is None:
            raise UnsupportedMediaTypeError(
                f"the {self.kind} has the unsupported codec {codec[:20].decode('latin-1')!r};"
                " send H.264, H.265, VP8, VP9 or AV1"
            )
        if not all(size):
            raise self.broken("its width or height is 0 or missing")
        if setup is not None and len(setup) > _MOST_SETUP:
            raise self.broken(
                f"its decoder configuration has {len(setup)} bytes; at most {_MOST_SETUP} are"
                " allowed"
            )
        return Video(decoder, *size, orientation, setup or self.view[:0], self.packets)
