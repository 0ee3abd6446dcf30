"""Computes the memory of an image's place after each kernel of huffman.cu and jpeg.cu. It decodes
symbol by symbol, without regard to speed.

A stage corresponds to a kernel. It receives the scratch memory before the kernel, and returns the
scratch memory after the kernel (the state). The positions of all numbers are in the entry of the
place (kernels/image/jpeg.py).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kernels.device.device import SOURCE_ROOT
from kernels.device.signature import fields
from kernels.image.place import read_entry
from tests.support.kernels.jpegs import Bytes

SUBSEQUENCE, CHUNK = 1024, 4096  # bits, bytes
COUNTS, LOOKUPS, LOOKUP_BYTES = 8, 1040, 1312
QUICK_BITS = 9
NO_LINK, RESTART = 0x7F, 0x80

Table = dict[str, int]
"""Values by code; each character of a code is a bit."""


@dataclass(frozen=True)
class Slot:
    """Holds a subsequence of the scan: its segment, and its begin and end in bits. An unused slot
    has no bits."""

    segment: int
    first: int  # the segment's first slot
    begin: int
    end: int
    last: int  # the end of the segment


class Stages:
    """Computes the stages of one JPEG file."""

    def __init__(self, place: Bytes) -> None:
        """Read a place that `JpegImage.write` has written."""
        self.place = place
        entry = read_entry(place)
        self.pixels_at, self.at = int(entry["data"][0]), int(entry["jpeg"][0])
        self._numbers: dict[str, list[int]] = {}
        offset = self.at
        for field in fields(SOURCE_ROOT / "jpeg.cuh", "Jpeg"):
            count = field.length or 0
            self._numbers[field.name] = place[offset : offset + 4 * count].view(np.int32).tolist()
            offset += 12 if field.type == "Divisor" else 4 * count
        self._tables = bytes(place[offset:])
        self.scan = bytes(place[self.pixels_at :][: self["scan_bytes"]])

    def __getitem__(self, name: str) -> int:
        """Return the number that a field of the entry contains."""
        return self._numbers[name][0]

    def _of(self, name: str, place: int) -> int:
        return self._numbers[name][place]

    @cached_property
    def tables(self) -> Sequence[Table]:
        """Return the Huffman tables of each component, first for DC and then for AC."""
        found = []
        for number in range(2 * self["components"]):
            raw = self._tables[256 + 272 * number :][:272]
            table: Table = {}
            code, place = 0, 16
            for length, count in enumerate(raw[:16], 1):
                for _ in range(count):
                    table[f"{code:0{length}b}"] = raw[place]
                    code, place = code + 1, place + 1
                code <<= 1
            found.append(table)
        return found

    # jpeg_count

    def counted(self, scratch: Bytes) -> Bytes:
        """Return the state with the counts of each chunk of the scan, and with the lookup tables of
        the decoder."""
        scratch = scratch.copy()
        kept, restarts = self._classes
        for chunk in range(0, len(self.scan), CHUNK):
            part = slice(chunk, chunk + CHUNK)
            count = sum(kept[part]) | sum(restarts[part]) << 16
            _put(scratch, COUNTS + chunk // CHUNK * 4, np.array([count], np.uint32))
        for number, table in enumerate(self.tables):
            at = LOOKUPS + number * LOOKUP_BYTES
            raw = self._tables[256 + 272 * number + 16 :][:256]
            quick = [self._quick(table, bits, dc=number % 2 == 0) for bits in range(512)]
            ends = [
                max(
                    (int(code, 2) + 1 << 16 - len(code) for code in table if len(code) <= n),
                    default=0,
                )
                for n in range(9, 17)
            ]
            shorter = [sum(len(code) < n for code in table) for n in range(10, 17)]
            values = [
                count - (end >> 16 - length)
                for length, (count, end) in enumerate(zip(shorter, ends, strict=False), 10)
            ]
            _put(scratch, at, np.array(quick, np.uint16))
            _put(scratch, at + 1024, np.array([*ends[1:], 0], np.uint16))
            _put(scratch, at + 1040, np.array([*values, 0], np.int32).astype(np.int16))
            _put(scratch, at + 1056, np.frombuffer(raw, np.uint8))
        return scratch

    def _quick(self, table: Table, bits: int, *, dc: bool) -> int:
        text = f"{bits:0{QUICK_BITS}b}"
        for code, value in table.items():
            if text.startswith(code):
                size, run = value & 15, value >> 4
                step = 1 if dc else run + 1 if size or run == 15 else 64
                return len(code) + size | size << 5 | step << 9
        return 0

    @cached_property
    def _classes(self) -> tuple[list[bool], list[bool]]:
        """Return two lists: whether each byte is kept, and whether each byte begins a restart
        marker."""
        kept, restarts, at = [], [], 0
        while at < len(self.scan):
            marker = self.scan[at] == 0xFF
            restart = marker and 0xD0 <= self.scan[at + 1] <= 0xD7
            kept += [not restart, False] if marker else [True]
            restarts += [restart, False] if marker else [False]
            at += 1 + marker
        return kept, restarts

    # jpeg_unstuff

    @cached_property
    def segments(self) -> Sequence[bytes]:
        """Return the segments without byte stuffing."""
        found, at = [b""], 0
        while at < len(self.scan):
            if self.scan[at] == 0xFF and self.scan[at + 1] != 0:
                found.append(b"")
            else:
                found[-1] += self.scan[at : at + 1]
            at += 1 + (self.scan[at] == 0xFF)
        return found

    @cached_property
    def starts(self) -> Sequence[int]:
        """Return the position of the first byte of each segment, and the end of the last
        segment."""
        return [0, *np.cumsum([len(part) for part in self.segments]).tolist()]

    @property
    def slot_count(self) -> int:
        """Return the number of slots."""
        return self.starts[-1] // 128 + self["segments"]

    def unstuffed(self, scratch: Bytes) -> Bytes:
        """Return the state with the bytes of the scan and the beginnings of the segments. All
        coefficients are 0."""
        scratch = scratch.copy()
        _put(scratch, 0, np.array([self.slot_count, 0], np.int32))
        _put(scratch, self["starts"], np.array(self.starts, np.int32))
        for at, byte in enumerate(b"".join(self.segments) + bytes(16)):
            scratch[self["bytes"] + (at ^ 3)] = byte
        _put(scratch, self["coefficients"], np.zeros(64 * self["blocks"], np.int16))
        return scratch

    # jpeg_walk

    @cached_property
    def bits(self) -> str:
        """Return the bits of the scan without byte stuffing, followed by some additional bits."""
        whole = b"".join(self.segments) + bytes(16)
        return f"{int.from_bytes(whole, 'big'):0{8 * len(whole)}b}"

    def slot(self, number: int) -> Slot:
        """Return the slot with this number."""
        segments = self["segments"]
        firsts = [self.starts[segment] // 128 + segment for segment in range(segments)]
        segment = max(s for s in range(segments) if firsts[s] <= number)
        begin = 8 * self.starts[segment] + (number - firsts[segment]) * SUBSEQUENCE
        last = 8 * self.starts[segment + 1]
        return Slot(segment, firsts[segment], begin, min(begin + SUBSEQUENCE, last), last)

    def _symbols(self, bit: int, block: int, z: int, end: int) -> Iterator[tuple[int, ...]]:
        """Yield seven numbers for each symbol. Three are the position after the symbol: its bit,
        block and coefficient. The others are the symbol's component, the size and the value of its
        number, and how many coefficients the symbol covers."""
        while bit < end:
            component = self._of("component", block)
            table = self.tables[2 * component + (z > 0)]
            code = next(
                (
                    self.bits[bit : bit + n]
                    for n in range(1, 17)
                    if self.bits[bit : bit + n] in table
                ),
                None,
            )
            if code is None:
                bit += 1
                yield bit, block, z, component, 0, 0, 0
                continue
            value = table[code]
            size, run = value & 15, value >> 4
            text = self.bits[bit + len(code) :][:size]
            number = 0 if not size else int(text, 2)
            if size and text[0] == "0":
                number -= (1 << size) - 1
            bit += len(code) + size
            step = 1 if z == 0 else run + 1 if size or run == 15 else 64
            z += step
            if z >= 64:
                z, block = 0, (block + 1) % self["per_mcu"]
            yield bit, block, z, component, size, number, step

    def walked(self, scratch: Bytes, number: int) -> Bytes:
        """Return the state with the records and links of a round."""
        scratch = scratch.copy()
        per_mcu = self["per_mcu"]
        links = scratch[self["links"] :]
        before = scratch.copy()[self["links"] :]
        for walker in range(self.slot_count * per_mcu):
            first, p = divmod(walker, per_mcu)
            slot = self.slot(first + number)
            empty = slot.begin >= slot.last
            if number == 0:
                if empty and p == 0:
                    self._record(scratch, 0, walker)[:] = 0
                if empty or (p and first == slot.first):
                    links[walker] = 0 if p else 1 << 3 | RESTART
                    continue
                state = 0, p, 0
            else:
                if before[walker] != NO_LINK:
                    continue
                state = self._state(scratch, number - 1, walker)
                twins = [q for q in range(p) if self._state(scratch, 0, walker - p + q) == state]
                if number == 1 and twins:
                    links[walker] = twins[0]
                    continue
            at = (slot.begin + state[0], *state[1:])
            dc, blocks = [0, 0, 0], 0
            for bit, block, z, component, _, value, step in self._symbols(*at, slot.end):
                if step and at[2] == 0:
                    dc[component] += value
                elif step and z == 0:
                    blocks += 1
                at = bit, block, z
            packed = at[0] - slot.end | at[1] << 5 | at[2] << 8 | blocks << 14
            self._record(scratch, number, walker)[:] = np.array([packed, *dc], np.int64).astype(
                np.uint32
            )
            if slot.end == slot.last:
                links[walker] = (number + 1) << 3 | RESTART
                continue
            others = [
                q
                for q in range(per_mcu)
                if number
                and self._state(scratch, 0, (first + number) * per_mcu + q)
                == self._state(scratch, number, walker)
            ]
            links[walker] = number << 3 | others[0] if others else NO_LINK
        return scratch

    def _record(self, scratch: Bytes, number: int, walker: int) -> NDArray[np.uint32]:
        at = self["records"] + 16 * (number * self["walkers"] + walker)
        return scratch[at : at + 16].view(np.uint32)

    def _state(self, scratch: Bytes, number: int, walker: int) -> tuple[int, int, int]:
        packed = int(self._record(scratch, number, walker)[0])
        return packed & 31, packed >> 5 & 7, packed >> 8 & 63

    # jpeg_resolve

    def resolved(self, scratch: Bytes) -> Bytes:
        """Return the state with the true record of each subsequence, and with the sums of the
        records before it. If the links do not lead to the end, return the state unchanged."""
        scratch, slot, block, link = scratch.copy(), 0, 0, RESTART
        unchanged, per_mcu, walkers = scratch.copy(), self["per_mcu"], self["walkers"]
        sources = scratch[self["sources"] :][: 4 * self.slot_count].view(np.int32)
        while slot < self.slot_count:
            walker = slot * per_mcu + block
            on = int(scratch[self["links"] + walker])
            if on == NO_LINK:
                return unchanged
            hops = on >> 3 & 15
            for number in range(0 if link & RESTART else 1, hops + (not on & RESTART)):
                sources[slot + number] = number * walkers + walker
            slot, block, link = slot + hops, on & 7, on
        total = np.zeros(4, np.uint32)
        sums = scratch[self["sums"] :][: 16 * self.slot_count].view(np.uint32).reshape(-1, 4)
        for slot, source in enumerate(sources.tolist()):
            sums[slot] = total
            record = self._record(scratch, *divmod(source, walkers))
            total[0] += record[0] >> 14
            total[1:] += record[1:]
        _put(scratch, 4, np.array([1], np.int32))
        return scratch

    # jpeg_write: here, one walker decodes each segment from its begin

    def written(self, scratch: Bytes) -> Bytes:
        """Return the state with the coefficients."""
        scratch = scratch.copy()
        at, count = self["coefficients"], 64 * self["blocks"]
        coefficients = scratch[at : at + 2 * count].view(np.int16).reshape(-1, 64)
        for segment in range(self["segments"]):
            place, dc, z_before = segment * self["interval"], [0, 0, 0], 0
            end = min(place + self["interval"], self["blocks"])
            begin, last = (8 * self.starts[segment + more] for more in (0, 1))
            for _, _, z, component, size, number, step in self._symbols(begin, 0, 0, last):
                if z_before == 0:
                    dc[component] += number
                    coefficients[place, 0] = dc[component]
                elif size:
                    coefficients[place, z_before + step - 1] = number
                z_before = z
                place += z == 0
                if place == end:
                    break
        return scratch

    # inverse_dct

    def transformed(self, scratch: Bytes) -> Bytes:
        """Return the state with the samples."""
        scratch = scratch.copy()
        at, count = self["coefficients"], 64 * self["blocks"]
        coefficients = scratch[at : at + 2 * count].view(np.int16).reshape(-1, 64).astype(np.int64)
        for number, block in enumerate(coefficients):
            mcu, k = divmod(number, self["per_mcu"])
            c = self._of("component", k)
            y, x = divmod(mcu, self["across"])
            x = x * self._of("h", c) + self._of("column", k)
            y = y * self._of("v", c) + self._of("row", k)
            side = self._of("side", c)
            natural = np.zeros(64, np.int64)
            steps = np.frombuffer(self._tables, np.uint8, 64, 64 * c).astype(np.int64)
            natural[np.frombuffer(self._tables, np.uint8, 64, 192)] = block * steps
            self._plane(scratch, c)[y * side :, x * side :][:side, :side] = _samples(
                natural.reshape(8, 8), side
            )
        return scratch

    def _plane(self, scratch: Bytes, c: int) -> Bytes:
        stride = self["across"] * self._of("h", c) * self._of("side", c)
        rows = self["blocks"] // self["per_mcu"] // self["across"] * self._of("v", c)
        count = stride * rows * self._of("side", c)
        return scratch[self._of("plane", c) :][:count].reshape(-1, stride)

    # jpeg_pixels

    def coloured(self, scratch: Bytes) -> Bytes:
        """Return the place after the last kernel. The pixels have replaced the scan."""
        height, width = self["height"], self["width"]  # luma has one sample per pixel
        channels = [self._upsampled(scratch, c)[:height, :width] for c in range(self["components"])]
        if self["transform"] and self["components"] == 3:
            luma, blue, red = channels[0], channels[1] - 128, channels[2] - 128
            channels = [
                luma + ((91881 * red + 32768) >> 16),
                luma + ((-22554 * blue - 46802 * red + 32768) >> 16),
                luma + ((116130 * blue + 32768) >> 16),
            ]
        pixels = np.clip(np.stack(channels, 2), 0, 255).astype(np.uint8)
        pixels = pixels[self["top"] :, self["left"] :][: self["crop_height"], : self["crop_width"]]
        place = self.place.copy()
        _put(place, self.pixels_at, np.ascontiguousarray(pixels))
        return place

    def _upsampled(self, scratch: Bytes, c: int) -> NDArray[np.int64]:
        width, height = self._of("width", c), self._of("height", c)
        plane = self._plane(scratch, c)[:height, :width].astype(np.int64)
        across, down = self._of("up_x", c), self._of("up_y", c)
        if not self["fancy"] or (across == 2 and width <= 2):
            return plane.repeat(down, 0).repeat(across, 1)
        if down == 2:
            padded = np.pad(plane, ((1, 1), (0, 0)), "edge")
            upper, lower = 3 * plane + padded[:-2], 3 * plane + padded[2:]
            plane = np.stack([upper, lower], 1).reshape(-1, width)
            if across == 1:
                return (plane + 1 + np.arange(2 * height)[:, None] % 2) >> 2
        if across == 2:
            padded = np.pad(plane, ((0, 0), (1, 1)), "edge")
            left, right = 3 * plane + padded[:, :-2], 3 * plane + padded[:, 2:]
            plane = np.stack([left, right], 2).reshape(len(plane), -1)
            odd = np.arange(2 * width) % 2
            return (plane + 8 - odd) >> 4 if down == 2 else (plane + 1 + odd) >> 2
        return plane


def _put(memory: Bytes, at: int, numbers: NDArray[np.generic]) -> None:
    memory[at : at + numbers.nbytes] = numbers.reshape(-1).view(np.uint8)


def _end(code: str) -> int:
    """Return the 16-bit number that follows all 16-bit numbers that begin with the code."""
    return (int(code, 2) + 1) << (16 - len(code))


def _samples(block: NDArray[np.int64], side: int) -> Bytes:
    """Return side×side samples of dequantized coefficients."""
    samples = (block[:1, :1] + 4) >> 3
    if side > 1:
        columns = np.stack([_pass(block[:, x], side, 11) for x in range(8)], 1)
        samples = np.stack([_pass(columns[y], side, 18) for y in range(side)])
    result: Bytes = np.clip(samples + 128, 0, 255).astype(np.uint8)
    return result


def _fixed(number: float) -> int:
    return int(number * 8192 + 0.5)


def _pass(x: NDArray[np.int64], side: int, shift: int) -> NDArray[np.int64]:
    """Return the results of one pass of the inverse transform over 8 numbers, shifted right by
    `shift` bits with rounding."""
    even, odd, more = {8: _halves8, 4: _halves4, 2: _halves2}[side](x)
    half = 1 << (shift + more - 1)
    first = [e + o for e, o in zip(even, odd, strict=True)]
    last = [e - o for e, o in zip(even[::-1], odd[::-1], strict=True)]
    return (np.array(first + last) + half) >> (shift + more)


_Halves = tuple[list[int], list[int], int]
"""Even and odd parts, and the number of additional fractional bits. The first half of the results
are even + odd, and the second half are even - odd, in reverse order."""


def _halves8(x: NDArray[np.int64]) -> _Halves:
    shared = (x[2] + x[6]) * _fixed(0.541196100)
    t2, t3 = shared - x[6] * _fixed(1.847759065), shared + x[2] * _fixed(0.765366865)
    t0, t1 = (x[0] + x[4]) << 13, (x[0] - x[4]) << 13
    z5 = (x[7] + x[3] + x[5] + x[1]) * _fixed(1.175875602)
    z1, z2 = -(x[7] + x[1]) * _fixed(0.899976223), -(x[5] + x[3]) * _fixed(2.562915447)
    z3 = z5 - (x[7] + x[3]) * _fixed(1.961570560)
    z4 = z5 - (x[5] + x[1]) * _fixed(0.390180644)
    odd = [
        x[1] * _fixed(1.501321110) + z1 + z4,
        x[3] * _fixed(3.072711026) + z2 + z3,
        x[5] * _fixed(2.053119869) + z2 + z4,
        x[7] * _fixed(0.298631336) + z1 + z3,
    ]
    return [t0 + t3, t1 + t2, t1 - t2, t0 - t3], odd, 0


def _halves4(x: NDArray[np.int64]) -> _Halves:
    t0, t2 = x[0] << 14, x[2] * _fixed(1.847759065) - x[6] * _fixed(0.765366865)
    inner = -x[7] * _fixed(0.211164243) + x[5] * _fixed(1.451774981)
    inner += -x[3] * _fixed(2.172734803) + x[1] * _fixed(1.061594337)
    outer = -x[7] * _fixed(0.509795579) - x[5] * _fixed(0.601344887)
    outer += x[3] * _fixed(0.899976223) + x[1] * _fixed(2.562915447)
    return [t0 + t2, t0 - t2], [outer, inner], 1


def _halves2(x: NDArray[np.int64]) -> _Halves:
    odd = -x[7] * _fixed(0.720959822) + x[5] * _fixed(0.850430095)
    odd += -x[3] * _fixed(1.272758580) + x[1] * _fixed(3.624509785)
    return [x[0] << 15], [odd], 2
