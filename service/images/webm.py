"""Finds the frames of WebM and Matroska videos, which consist of elements (RFC 9559, RFC 8794). An
element has a number, a size and content.

    Segment ─┬─ Tracks ── TrackEntry        what the track is, its codec and size
             └─ Cluster ─┬─ SimpleBlock     a coded frame of some track
                         └─ BlockGroup ── Block

If an element contains other elements, its stated size is ignored, because recorders that stream
leave the size unknown.
"""

from service.images.video import Container, Video

_ENTERED = {
    0x18538067: "Segment",
    0x1F43B675: "Cluster",
    0xA0: "BlockGroup",
    0x1654AE6B: "Tracks",
    0xAE: "TrackEntry",
    0xE0: "Video",
}
_NUMBER, _TYPE, _CODEC, _SETUP, _CODING = 0xD7, 0x83, 0x86, 0x63A2, 0x6D80
_WIDTH, _HEIGHT = 0xB0, 0xBA
_OF_A_TRACK = (_NUMBER, _TYPE, _CODEC, _SETUP, _CODING, _WIDTH, _HEIGHT)
_BLOCKS = (0xA3, 0xA1)

_VIDEO = 1  # a track's type
_LACED = 0x06  # flags of a block
_MOST_NUMBER_BYTES = 8
_MOST_CODEC = 64  # bytes of its name


def parse_webm(data: bytes, most_frames: int) -> Video:
    """Return the first video track. Raises ImageError if the file is truncated or broken,
    UnsupportedMediaTypeError for an unsupported codec, and TooManyImagesError if it has too many
    frames.
    """
    return _Webm(data, most_frames).read()


class _Webm(Container):
    kind = "WebM"

    def read(self) -> Video:
        tracks: list[dict[int, memoryview]] = []
        chosen: dict[int, memoryview] = {}
        number = -1
        position = 0
        while position < len(self.view):
            self.count_element()
            element, position = self._number(position, marked=True)
            size, begin = self._number(position)
            if element in _ENTERED:
                if _ENTERED[element] == "TrackEntry":
                    tracks.append({})
                position = begin
                continue
            position = begin + size
            if position > len(self.view):
                raise self.truncated()
            if element in _OF_A_TRACK and tracks:
                tracks[-1].setdefault(element, self.view[begin:position])
            elif element in _BLOCKS:
                if not chosen:
                    chosen = self._first_of_video(tracks)
                    number = self._value(chosen, _NUMBER)
                self._add_block(begin, position, number)
        chosen = chosen or self._first_of_video(tracks)
        if _CODING in chosen:
            raise self.broken("its frames are encrypted, or compressed a second time")
        codec = bytes(chosen.get(_CODEC, b"")[:_MOST_CODEC]).rstrip(b"\0")
        size_ = self._value(chosen, _WIDTH), self._value(chosen, _HEIGHT)
        return self.video(codec, size_, chosen.get(_SETUP))

    def _number(self, position: int, *, marked: bool = False) -> tuple[int, int]:
        """Return the variable-length number at an offset, and the offset behind it. The position of
        the first set bit says how many bytes the number has, from one to eight. If `marked`, this
        bit is part of the value."""
        first = self.view[position] if position < len(self.view) else 0
        length = 9 - first.bit_length()
        if length > _MOST_NUMBER_BYTES or position + length > len(self.view):
            raise self.truncated()
        number = int.from_bytes(self.view[position : position + length], "big")
        return number if marked else number & ((1 << 7 * length) - 1), position + length

    def _first_of_video(self, tracks: list[dict[int, memoryview]]) -> dict[int, memoryview]:
        for track in tracks:
            if self._value(track, _TYPE) == _VIDEO:
                return track
        raise self.broken("it has no video track")

    def _value(self, track: dict[int, memoryview], element: int) -> int:
        """Return the value of an integer element of a track, or 0 if the track has no such
        element."""
        content = track.get(element, b"")
        if len(content) > _MOST_NUMBER_BYTES:
            raise self.broken("a number in its track header is too long")
        return int.from_bytes(content, "big")

    def _add_block(self, begin: int, end: int, number: int) -> None:
        """Add the frame of a block. A block consists of the track's number, two bytes of time,
        flags and the frame."""
        track, offset = self._number(begin)
        if track != number:
            return
        if offset + 3 > end:
            raise self.broken("a block is shorter than its header")
        if self.view[offset + 2] & _LACED:
            raise self.broken("a block has several frames, which is not supported")
        self.expect(1)
        self.add(offset + 3, end - offset - 3)
