"""Finds the frames of MP4 and QuickTime videos, which consist of boxes (ISO/IEC 14496-12). A box
has a size, a kind and a payload.

    moov ── trak ─┬─ tkhd, hdlr, stsd          what the track is, its size, rotation and codec
                  └─ stsz, stsc, stco or co64  the lengths and positions of the frames
    moof ── traf ─┬─ tfhd                      the same for a fragment, in a file with fragments
                  └─ trun

Edit lists are ignored, so all frames are read.
"""

import struct
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.images.boxes import Box, boxes
from service.images.video import Container, Video

_VIDEO = b"vide"

# The offsets of width and height in a sample entry, and of its own boxes.
_SIZE_AT, _BOXES_AT = 24, 78
_CHUNKS = {b"stco": ">u4", b"co64": ">u8"}
_SETUP = (b"avcC", b"hvcC", b"av1C")

# EXIF orientations by a track's matrix for x and y, in units of 2^16.
_ORIENTATIONS = {
    (1, 0, 0, 1): 1,
    (-1, 0, 0, 1): 2,
    (-1, 0, 0, -1): 3,
    (1, 0, 0, -1): 4,
    (0, 1, 1, 0): 5,
    (0, 1, -1, 0): 6,
    (0, -1, -1, 0): 7,
    (0, -1, 1, 0): 8,
}

# Flags of tfhd and trun that say which fields are present. Each field has four bytes, except the
# first.
_BASE, _DESCRIPTION, _DURATION, _SIZE = 0x1, 0x2, 0x8, 0x10
_OFFSET, _FIRST_FLAGS, _SAMPLE_DURATION, _SAMPLE_SIZE = 0x1, 0x4, 0x100, 0x200
_SAMPLE_FIELDS = 0xF00


class _Track(NamedTuple):
    number: int
    video: Video
    frame_bytes: int  # in parts that do not say otherwise


def parse_mp4(data: bytes, most_frames: int) -> Video:
    """Return the first video track. Raises ImageError if the file is truncated or broken,
    UnsupportedMediaTypeError for an unsupported codec, and TooManyImagesError if it has too many
    frames.
    """
    container = _Mp4(data, most_frames)
    try:
        return container.read()
    except (struct.error, IndexError):
        raise container.truncated() from None


class _Mp4(Container):
    kind = "MP4"

    def read(self) -> Video:
        track = None
        for kind, start, box in self._boxes(self.view):
            if kind == b"moov" and track is None:
                track = self._track(box)
            elif kind == b"moof" and track is not None:
                self._add_part(start, box, track)
        if track is None:
            raise self.broken("it has no `moov` box")
        return track.video

    def _boxes(self, view: memoryview) -> Iterator[Box]:
        return boxes(view, self.count_element, self)

    def _all(self, view: memoryview, wanted: bytes) -> Iterator[memoryview]:
        return (box for kind, _, box in self._boxes(view) if kind == wanted)

    def _find(self, view: memoryview, *path: bytes) -> memoryview:
        """Return the first box at this path of nested boxes. Raises ImageError if there is none."""
        for kind in path:
            box = next(self._all(view, kind), None)
            if box is None:
                raise self.broken(f"it has no `{kind.decode()}` box")
            view = box
        return view

    def _track(self, moov: memoryview) -> _Track:
        """Return the first video track, with the frames listed in its tables."""
        tracks = self._all(moov, b"trak")
        is_video = (trak for trak in tracks if self._find(trak, b"mdia", b"hdlr")[8:12] == _VIDEO)
        trak = next(is_video, None)
        if trak is None:
            raise self.broken("it has no video track")
        header = self._find(trak, b"tkhd")
        later = 12 if header[0] else 0  # times of 8 bytes instead of 4
        (number,) = struct.unpack_from(">I", header, 12 + (8 if later else 0))
        a, b, _, c, d = struct.unpack_from(">5i", header, 40 + later)
        orientation = _ORIENTATIONS.get((a >> 16, b >> 16, c >> 16, d >> 16), 1)
        tables = self._find(trak, b"mdia", b"minf", b"stbl")
        codec, _, entry = next(self._boxes(self._find(tables, b"stsd")[8:]), (b"", 0, tables[:0]))
        width, height = struct.unpack_from(">HH", entry, _SIZE_AT)
        setup = (box for kind, _, box in self._boxes(entry[_BOXES_AT:]) if kind in _SETUP)
        video = self.video(codec, (width, height), next(setup, None), orientation)
        self._add_listed(tables)
        frame_bytes = 0
        for extended in self._all(moov, b"mvex"):
            for track, usual in (
                struct.unpack_from(">4xI8xI", defaults) for defaults in self._all(extended, b"trex")
            ):
                frame_bytes = usual if track == number else frame_bytes
        return _Track(number, video, frame_bytes)

    def _add_listed(self, tables: memoryview) -> None:
        """Add the frames that a track's tables list. Frames are stored in chunks, and the tables
        list how many frames each chunk has."""
        lengths = self._find(tables, b"stsz")
        size, count = struct.unpack_from(">4xII", lengths)
        if not count:  # all are in parts
            return
        self.expect(count)
        sizes = [size] * count if size else self._numbers(lengths, ">u4", 12, count).tolist()
        runs = self._find(tables, b"stsc")
        # Each run has a frame at least, so that those beyond `count` have none.
        number = min(count, *struct.unpack_from(">4xI", runs))
        firsts, each, descriptions = self._numbers(runs, ">u4", 8, 3 * number).reshape(-1, 3).T
        chunks = self._chunks(tables, count)
        if not each.all() or (descriptions != 1).any() or (firsts[:1] != 1).any():
            raise self.broken("its table of chunks (stsc) is invalid")
        left = iter(sizes)
        for (first, following), frames in zip(
            pairwise([*firsts.tolist(), len(chunks) + 1]), each.tolist(), strict=True
        ):
            for chunk in chunks[first - 1 : following - 1].tolist():
                position = chunk
                for _, frame_bytes in zip(range(frames), left, strict=False):
                    self.add(position, frame_bytes)
                    position += frame_bytes
                if len(self.packets) == count:
                    return
        raise self.broken("its tables list fewer frames than its header states")

    def _chunks(self, tables: memoryview, most: int) -> NDArray[np.unsignedinteger[Any]]:
        """Return the offset of each chunk in the file, at most `most` offsets."""
        for kind, _, box in self._boxes(tables):
            if kind in _CHUNKS:
                number = min(most, *struct.unpack_from(">4xI", box))
                return self._numbers(box, _CHUNKS[kind], 8, number)
        raise self.broken("it has no `stco` box")

    def _numbers(
        self, box: memoryview, kind: str, begin: int, count: int
    ) -> NDArray[np.unsignedinteger[Any]]:
        data = box[begin : begin + count * np.dtype(kind).itemsize]
        if len(data) < count * np.dtype(kind).itemsize:
            raise self.broken("a table is shorter than its header says")
        return np.frombuffer(data, kind)

    def _add_part(self, start: int, moof: memoryview, track: _Track) -> None:
        """Add the frames of a movie fragment that begins at the offset `start` of the file."""
        for traf in self._all(moof, b"traf"):
            header = self._find(traf, b"tfhd")
            flags, number = struct.unpack_from(">II", header)
            if number != track.number:
                continue
            origin, offset, frame_bytes = start, 8, track.frame_bytes
            if flags & _BASE:
                (origin,) = struct.unpack_from(">Q", header, offset)
                offset += 8
            offset += 4 * (flags & (_DESCRIPTION | _DURATION)).bit_count()
            if flags & _SIZE:
                (frame_bytes,) = struct.unpack_from(">I", header, offset)
            position = origin
            for run in self._all(traf, b"trun"):
                position = self._add_run(run, origin, position, frame_bytes)

    def _add_run(self, run: memoryview, origin: int, position: int, frame_bytes: int) -> int:
        """Add consecutive frames of a fragment (a `trun` box), and return the offset behind the
        last frame. If the box has an offset, the frames begin at that distance from `origin`.
        Otherwise, they begin at `position`."""
        flags, count = struct.unpack_from(">II", run)
        self.expect(count)
        offset = 8
        if flags & _OFFSET:
            position = origin + struct.unpack_from(">i", run, offset)[0]
            offset += 4
        offset += 4 * bool(flags & _FIRST_FLAGS)
        for _ in range(count):
            if flags & _SAMPLE_SIZE:
                (frame_bytes,) = struct.unpack_from(
                    ">I", run, offset + 4 * bool(flags & _SAMPLE_DURATION)
                )
            self.add(position, frame_bytes)
            position += frame_bytes
            offset += 4 * (flags & _SAMPLE_FIELDS).bit_count()
        return position
