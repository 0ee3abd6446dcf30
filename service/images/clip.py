"""Checks clips and estimates the cost of decoding them, without decoding a pixel. A clip is several
images, an animation or a video.

several images ────────────────┐
ZIP archive ── its directory ──┴─ the frames that the model gets ── each as `prepare_image`
animated GIF, WebP or PNG ────── its header ─┬─ the size of all frames, and their number
MP4 or WebM ── its container ────────────────┘
"""

import io
import re
import struct
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import prod

from models import Preprocessing
from service.engine.lane import Cost
from service.errors import (
    BadRequestError,
    ImageError,
    PayloadTooLargeError,
    ServiceError,
    TooManyImagesError,
    UnsupportedMediaTypeError,
)
from service.images.decode import Drawing, Sketch
from service.images.decode_pool import Decoding
from service.images.file import ImageFile, ImageFormat, Weight
from service.images.film import Animation, Film, StillFrames
from service.images.gif import parse_gif
from service.images.mp4 import parse_mp4
from service.images.png import parse_png
from service.images.prepare import MAX_SIDE, ImageLimits, check_image, megapixels, plan
from service.images.signatures import MP4, WEBM, ZIP, unread
from service.images.video import VIDEO_TYPES
from service.images.webm import parse_webm
from service.images.webp import parse_webp

MOST_FRAMES = 1024
"""The most frames that a clip may have, before frames are chosen for the model."""

CLIP_TYPES = ("application/zip", *VIDEO_TYPES)
"""The media types of archives and videos, which only clips can have."""

_HOW = (
    "send the frames of a clip as a form with several images, an animated GIF, WebP or PNG, a ZIP"
    " archive of images, or an MP4 or WebM video"
)

# Where the marks of an animated PNG are looked for.
_PNG_HEAD = 2**18

_END = b"PK\x05\x06"
_END_BYTES, _MOST_COMMENT = 22, 65_535
_END_64 = b"PK\x06\x07"  # of a ZIP of 4 GB or more
_END_64_BYTES = 20
_MOST_ENTRIES = 2 * MOST_FRAMES  # folders and such, too
_BYTES_AN_ENTRY = 512  # of the directory; a name and a few times of day
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 0x1

# Images are already compressed, so an archive of images inflates to little more than its own size.
_MOST_RATIO, _FREE_BYTES = 4, 2**20

_IGNORED = ("__MACOSX/", ".")

_MOST_REASON = 120  # characters of an error that may name files of the archive

# The errors that zipfile raises for invalid bytes.
_ZIP_ERRORS = (
    *(zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError, struct.error),
)

# Memory for a canvas, the previous canvas, and copies with and without transparency, each with 4
# bytes per pixel. Most of the time is for copying; a frame that codes all pixels takes longer.
_ANIMATED = Weight(held_bytes=0.0, drawn_bytes=17.3, ns=100)

# An H.264 frame may refer to 16 frames of 3 bytes per pixel. Such a video takes 77 bytes per pixel,
# usual videos take 20 to 45.
_VIDEO = Weight(held_bytes=0.0, drawn_bytes=77.0, ns=40)
_VIDEO_NS_A_BYTE = 50  # of coded frames
_FRAME_S = 60e-6  # for each frame, however small: Pillow finds all of them before it decodes some
_HASTE = 5  # a video is given up after this multiple of its estimated time
_LEAST_S = 2.0

_HAS_PYAV = find_spec("av") is not None


@dataclass(frozen=True, slots=True)
class Frames:
    """Holds the images of one clip. Its `len` is the total number of bytes."""

    files: Sequence[bytes]

    def __len__(self) -> int:
        return sum(map(len, self.files))


def clips_of(files: Sequence[bytes]) -> list[bytes | Frames]:
    """Return the clips in a request's files. All still images together form one clip. Any other
    file is a clip by itself.

    Raises BadRequestError if still images and clips are mixed.
    """
    stills = [not _is_whole(file) for file in files]
    if not any(stills):
        return list(files)
    if not all(stills):
        raise BadRequestError(
            f"{sum(stills)} of {len(files)} files are still images, and the others are clips;"
            f" {_HOW}"
        )
    return [Frames(files)]


def prepare_clip(
    clip: bytes | Frames, preprocessing: Preprocessing, limits: ImageLimits
) -> Decoding:
    """Check a clip and estimate the cost of decoding it, without decoding a pixel.

    The result's `run` gives D×H×W×C pixels of the frames that the preprocessing chooses. Raises the
    errors of `prepare_image`, TooManyImagesError for more than MOST_FRAMES frames, and
    BadRequestError for a broken archive.
    """
    if isinstance(clip, Frames):
        return _of_stills(clip.files, preprocessing, limits)
    if len(clip) > limits.max_bytes:
        raise PayloadTooLargeError(
            f"the clip has {len(clip)} bytes, more than the {limits.max_bytes} allowed; send a"
            " smaller or more compressed clip"
        )
    if ZIP.begins(clip):
        return _of_zip(clip, preprocessing, limits)
    if WEBM.begins(clip) or MP4.begins(clip):
        return _of_video(clip, preprocessing, limits)
    return _of_animation(clip, preprocessing, limits)


def _is_whole(file: bytes) -> bool:
    """Return whether a file is a clip by itself: an animation, a video or an archive. A file that
    is not an image counts as a clip, too."""
    match ImageFormat.of(file):
        case None | ImageFormat.GIF:
            return True
        case ImageFormat.PNG:
            begin, end = file.find(b"acTL", 0, _PNG_HEAD), file.find(b"IDAT", 0, _PNG_HEAD)
            return begin > 0 and (begin < end or end < 0)
        case ImageFormat.WEBP:
            return file[12:16] == b"VP8X" and len(file) > 20 and bool(file[20] & 0x02)
        case _:
            return False


def _of_animation(data: bytes, preprocessing: Preprocessing, limits: ImageLimits) -> Decoding:
    file, kind = _animation(data)
    chosen, cost, sketch = _planned(file, len(data), preprocessing, limits)
    return Decoding(cost, Animation(kind, memoryview(data), file.frames, chosen, sketch))


def _planned(
    file: ImageFile, coded_bytes: int, preprocessing: Preprocessing, limits: ImageLimits
) -> tuple[list[int], Cost, Sketch]:
    """Return the numbers of the frames that the model gets, and the cost of decoding the file up to
    the last of them. Also return the `Sketch` that describes how to resize each frame.

    Raises PayloadTooLargeError or TooManyImagesError if a limit is exceeded, and BadRequestError
    for a single frame.
    """
    _check_frames(file.frames)
    if file.pixels > limits.max_pixels or max(file.width, file.height) > MAX_SIDE:
        raise PayloadTooLargeError(
            f"the clip has {file.width}×{file.height} pixels, {megapixels(file.pixels)}; at most"
            f" {megapixels(limits.max_pixels)} (--max-megapixels) and {MAX_SIDE} pixels a side are"
            " allowed; send a smaller clip"
        )
    chosen = preprocessing.chosen(file.frames)
    passes = max(chosen) + 1
    _check_pixels(passes * file.pixels, limits)
    cost, drawing = plan(file, preprocessing, limits)
    total_bytes = cost.bytes + coded_bytes + 2 * _output_bytes(preprocessing)
    seconds = passes * cost.seconds + file.frames * _FRAME_S
    total = _in_time(Cost(total_bytes, seconds), limits)
    return chosen, total, drawing.sketch


def _of_video(data: bytes, preprocessing: Preprocessing, limits: ImageLimits) -> Decoding:
    if not _HAS_PYAV:
        raise UnsupportedMediaTypeError(
            "this server cannot decode videos without PyAV: install Convoy with the extra"
            " `video`, or send the frames as images or as an animation"
        )
    video = (parse_webm if WEBM.begins(data) else parse_mp4)(data, MOST_FRAMES)
    if not video.frames:
        raise ImageError("the video has no frames; save it again")
    coded_bytes = sum(map(len, video.packets))
    if coded_bytes > len(data):
        raise ImageError("the frames of the video overlap; save it again")
    file = _moving(video.width, video.height, video.frames, _VIDEO, video.orientation)
    chosen, cost, sketch = _planned(file, len(data), preprocessing, limits)
    seconds = cost.seconds + coded_bytes * _VIDEO_NS_A_BYTE / 1e9
    cost = _in_time(cost._replace(seconds=seconds), limits)
    longest_s = max(_LEAST_S, _HASTE * cost.seconds)
    film = Film(video.decoder, video.setup, video.packets, chosen, sketch, longest_s)
    return Decoding(cost, film, apart=True, copied=coded_bytes)


def _moving(
    width: int, height: int, frames: int, weight: Weight, orientation: int = 1
) -> ImageFile:
    """Return the `ImageFile` that describes the decoded frames of an animation or a video. Its
    `format` is always PNG, because an `ImageFile` needs a format, but decoded frames have none."""
    return ImageFile(*(ImageFormat.PNG, width, height, orientation, 1, weight, 0, 0, []), frames)


def _animation(data: bytes) -> tuple[ImageFile, str]:
    """Return the `ImageFile` that describes an animation, and Pillow's name of its format."""
    kind = ImageFormat.of(data)
    if kind is ImageFormat.PNG:
        file = parse_png(data, animated=True)
    elif kind is ImageFormat.WEBP:
        file = parse_webp(data, animated=True)
    elif kind is ImageFormat.GIF:
        file = _moving(*parse_gif(data), _ANIMATED)
    elif kind is not None:
        raise UnsupportedMediaTypeError(f"this is a single still {kind.value}, not a clip; {_HOW}")
    elif data:
        raise unread(data, _HOW)
    else:
        raise ImageError(f"the clip is empty; {_HOW}")
    return file._replace(weight=_ANIMATED, parts=[]), kind.name


def _of_stills(
    files: Sequence[bytes], preprocessing: Preprocessing, limits: ImageLimits
) -> Decoding:
    _check_frames(len(files))
    chosen = preprocessing.chosen(len(files))
    index_of = {number: index for index, number in enumerate(dict.fromkeys(chosen))}
    decodings = [_frame(files[number], number, preprocessing, limits) for number in index_of]
    drawings = [drawing for _, drawing in decodings]
    _check_pixels(sum(prod(drawing.sketch.stored) for drawing in drawings), limits)
    cost = Cost(
        max(cost.bytes for cost, _ in decodings) + 2 * _output_bytes(preprocessing),
        sum(cost.seconds for cost, _ in decodings),
    )
    _in_time(cost, limits)
    return Decoding(cost, StillFrames(drawings, [index_of[number] for number in chosen]))


def _frame(
    file: bytes, number: int, preprocessing: Preprocessing, limits: ImageLimits
) -> tuple[Cost, Drawing]:
    """Return the cost of decoding a frame, and the `Drawing` that decodes it. Raises the errors of
    `prepare_image`, with the frame's number in the message."""
    try:
        return plan(check_image(file, limits), preprocessing, limits)
    except ServiceError as error:
        raise error.within(f"frame {number + 1}") from error


def _of_zip(data: bytes, preprocessing: Preprocessing, limits: ImageLimits) -> Decoding:
    """Read the images of a ZIP archive in the order of their names. Digits in names are compared as
    numbers."""
    _check_directory(data)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = [entry for entry in archive.infolist() if _is_frame(entry)]
            entries.sort(key=lambda entry: _in_order(entry.filename))
            if not entries:
                raise BadRequestError(f"the ZIP archive contains no images; {_HOW}")
            _check_frames(len(entries))
            needed = dict.fromkeys(preprocessing.chosen(len(entries)))
            _check_sizes([entries[number] for number in needed], len(data))
            files = [
                _inflated(archive, entry) if number in needed else b""
                for number, entry in enumerate(entries)
            ]
    except _ZIP_ERRORS as error:
        raise BadRequestError(
            f"the ZIP archive cannot be read ({str(error)[:_MOST_REASON]}): it is truncated or"
            " broken; create it again"
        ) from error
    copied = sum(map(len, files))
    return _of_stills(files, preprocessing, limits)._replace(copied=copied)


def _check_directory(data: bytes) -> None:
    """Raise BadRequestError if the directory of a ZIP archive is invalid, and TooManyImagesError if
    it lists too many files."""
    end = data.rfind(_END, max(0, len(data) - _END_BYTES - _MOST_COMMENT))
    if end < 0 or end + _END_BYTES > len(data):
        raise BadRequestError("the ZIP archive is truncated: it has no directory; send it whole")
    entries, size = struct.unpack_from("<HI", data, end + 10)
    if data[max(0, end - _END_64_BYTES) :].startswith(_END_64):
        raise BadRequestError("the ZIP archive is in the ZIP64 format; create it without ZIP64")
    if entries > _MOST_ENTRIES or size > _MOST_ENTRIES * _BYTES_AN_ENTRY:
        raise TooManyImagesError(
            f"the ZIP archive has {entries} entries and a directory of {size} bytes; a clip has"
            f" at most {MOST_FRAMES} frames"
        )


def _inflated(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """Return a file of an archive. Inflate at most as many bytes as the directory states, which was
    checked. `ZipFile.read` would inflate up to 2 GiB before it drops the rest."""
    with archive.open(entry) as file:
        return file.read(entry.file_size)


def _is_frame(entry: zipfile.ZipInfo) -> bool:
    name = entry.filename
    # Not `entry.is_dir()`, which fails for an empty name.
    return not (not name or name.endswith("/") or name.startswith(_IGNORED) or "/." in name)


def _in_order(name: str) -> str:
    """Return a sort key that places frame9 before frame10."""
    return re.sub(r"[0-9]+", lambda digits: digits[0].lstrip("0").rjust(20, "0"), name)


def _check_sizes(entries: Sequence[zipfile.ZipInfo], archive_bytes: int) -> None:
    """Raise BadRequestError if a file cannot be read, and PayloadTooLargeError if the files have
    too many bytes in all."""
    for entry in entries:
        if entry.flag_bits & _ENCRYPTED:
            raise BadRequestError("the ZIP archive is encrypted; send it without a password")
        if entry.compress_type not in _METHODS:
            raise BadRequestError(
                "the ZIP archive is not compressed with deflate; compress it with deflate, or store"
                " the images uncompressed"
            )
    if sum(entry.compress_size for entry in entries) > archive_bytes:
        raise BadRequestError("the files of the ZIP archive overlap; create it again")
    inflated = sum(entry.file_size for entry in entries)
    if inflated > (most := _MOST_RATIO * archive_bytes + _FREE_BYTES):
        raise PayloadTooLargeError(
            f"the files of the ZIP archive have {inflated} bytes uncompressed; at most {most} are"
            f" allowed for an archive of {archive_bytes} bytes; store the images uncompressed"
        )


def _check_frames(frames: int) -> None:
    if frames == 1:
        raise BadRequestError(f"a single still image is not a clip; {_HOW}")
    if frames > MOST_FRAMES:
        raise TooManyImagesError(
            f"the clip has {frames} frames; at most {MOST_FRAMES} are allowed; send fewer"
        )


def _check_pixels(pixels: int, limits: ImageLimits) -> None:
    """Raise PayloadTooLargeError if the frames to decode have too many pixels in all."""
    if pixels > (most := limits.max_passes * limits.max_pixels):
        raise PayloadTooLargeError(
            f"the frames of the clip have {megapixels(pixels)} in all; at most {megapixels(most)}"
            f" are allowed ({limits.max_passes} times --max-megapixels); send fewer or smaller"
            " frames"
        )


def _in_time(cost: Cost, limits: ImageLimits) -> Cost:
    """Return `cost` if decoding the clip takes at most `limits.max_clip_s` seconds. Otherwise raise
    PayloadTooLargeError."""
    if cost.seconds > limits.max_clip_s:
        raise PayloadTooLargeError(
            f"decoding the clip would take about {cost.seconds:.1f} s on one core; at most"
            f" {limits.max_clip_s:g} s are allowed (--max-clip-s); send fewer or smaller frames"
        )
    return cost


def _output_bytes(preprocessing: Preprocessing) -> int:
    return prod(preprocessing.image_shape)
