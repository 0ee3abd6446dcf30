"""Creates video files with FFmpeg."""

import io
from collections.abc import Mapping, Sequence
from tempfile import NamedTemporaryFile
from typing import Any

import av
import numpy as np
from PIL import Image


class _Stream(io.RawIOBase):
    """A file that cannot seek. Recorders write their files in this way."""

    def __init__(self) -> None:
        self.written = bytearray()

    def write(self, data: Any) -> int:
        self.written += data
        return len(data)

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


LOSSLESS: Mapping[str, Mapping[str, str]] = {
    "libx264": {"qp": "0", "preset": "ultrafast"},
    "libx265": {"x265-params": "lossless=1:log-level=none", "preset": "ultrafast"},
    "libvpx": {"crf": "4", "b": "8M", "deadline": "realtime"},
    "libvpx-vp9": {"lossless": "1", "deadline": "realtime"},
    "libsvtav1": {"crf": "1", "preset": "10", "svtav1-params": "lp=1"},
}
"""Options of encoders that lose little or nothing."""


def video(
    frames: Sequence[Image.Image],
    container: str = "mp4",
    encoder: str = "libx264",
    *,
    pixels: str = "yuv420p",
    written: Mapping[str, str] | None = None,
    streamed: bool = False,
    **options: str,
) -> bytes:
    """Return a video of these frames. `written` are options of the container. `options` are options
    of the encoder.

    A `streamed` file is written without seeking.
    """
    chosen = {**LOSSLESS.get(encoder, {}), **{k.replace("_", "-"): v for k, v in options.items()}}
    # Some containers are read again while they are written.
    with NamedTemporaryFile(suffix=f".{container}") as kept:
        stream_to = _Stream()
        place: Any = stream_to if streamed else kept.name
        with av.open(place, "w", format=container, options=dict(written or {})) as opened:
            stream: Any = opened.add_stream(encoder, rate=25, options=chosen)
            stream.width, stream.height, stream.pix_fmt = *frames[0].size, pixels
            stream.thread_count = 1
            for image in frames:
                pixels_of = np.asarray(image.convert("RGB"))
                opened.mux(stream.encode(av.VideoFrame.from_ndarray(pixels_of)))
            opened.mux(stream.encode(None))
        return bytes(stream_to.written) if streamed else kept.read()
