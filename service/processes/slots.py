"""Where decoded images lie on their way from a worker to the engine, and scores on their way back.

    slot    0     1     2     ...       one an image, of one model and one worker
    images  H×W×C                       the worker writes, the engine reads
    scores  classes                     the engine's process writes, the worker reads
    notes   batch size, moments
    next    the request's next slot     a request's slots are a chain
    texts   why it failed

A slot belongs to the worker until it submits it, and again once it is told that nobody reads it any
more; in between it is the engine's. Only the worker hands slots out, so only it keeps count.
"""

import struct
from collections.abc import Sequence
from math import prod

import numpy as np

from models import OutputKind
from service.batching.waiting import Answered
from service.engine.ranking import ScoreRow, rank
from service.engine.runner import Pixels

# Of a failure's text, in UTF-8; what is longer is cut.
TEXT_BYTES = 512

# Rows begin at whole cache lines, so that no two processes write to one.
_LINE = 64

# Batch size, moment of its dispatch, its seconds; at a request's first slot.
_NOTE = struct.Struct("=Idd")


class Slots:
    """The slots of one model and one worker."""

    def __init__(
        self, memory: memoryview, image_shape: tuple[int, ...], classes: int, count: int
    ) -> None:
        """In `memory`, of which the first `bytes_of` are used."""
        image, scores, note = _row_bytes(image_shape, classes)
        ends = [count * width for width in (image, scores, note, _LINE, TEXT_BYTES)]
        at = np.cumsum([0, *ends]).tolist()
        self.count = count
        self.image_shape = image_shape
        # Rows of one image each, and the bytes between them.
        self._images = np.ndarray(
            (count, *image_shape), np.uint8, memory, at[0], (image, *_strides(image_shape, 1))
        )
        self._scores = np.ndarray(
            (count, classes), np.float32, memory, at[1], (scores, *_strides((classes,), 4))
        )
        self._notes, self._note_bytes = memory[at[2] : at[3]], note
        self._next = memory[at[3] : at[4]].cast("q")
        self._texts = memory[at[4] : at[5]]

    @staticmethod
    def bytes_of(image_shape: tuple[int, ...], classes: int, count: int) -> int:
        """How much memory so many slots take, in whole cache lines."""
        return count * (sum(_row_bytes(image_shape, classes)) + _LINE + TEXT_BYTES)

    def put(self, slots: Sequence[int], pixels: Sequence[Pixels]) -> None:
        """Copy a request's images into its slots, and chain them."""
        last = None
        for slot, image in zip(slots, pixels, strict=True):
            if image.shape != self.image_shape:  # NumPy would stretch it
                raise ValueError(f"an image of shape {image.shape}, not {self.image_shape}")
            self._images[slot] = image
            if last is not None:
                self._next[last * _STEP] = slot
            last = slot

    def chain(self, first: int, count: int) -> list[int]:
        """A request's slots. IndexError, ValueError: nobody can have written that."""
        slots = [first]
        while len(slots) < min(count, self.count):
            slots.append(self._next[slots[-1] * _STEP])
        if len(slots) != count or not all(0 <= slot < self.count for slot in slots):
            raise ValueError(f"{count} slots from {first} on are no request's")
        return slots

    def image(self, slot: int) -> Pixels:
        """A slot's image, in place."""
        view: Pixels = self._images[slot]
        return view

    def answer(self, slots: Sequence[int], answered: Answered[ScoreRow], dispatched: float) -> None:
        """Write down a request's scores, and how they came about; the worker ranks them."""
        for slot, row in zip(slots, answered.results, strict=True):
            self._scores[slot] = row.scores
        place = slots[0] * self._note_bytes
        _NOTE.pack_into(self._notes, place, answered.batch_size, dispatched, answered.compute_s)

    def rows(self, slots: Sequence[int], output: OutputKind) -> list[ScoreRow]:
        """The scores of slots, which do not change when these are used again."""
        return rank(self._scores[slots], output)

    def answered(
        self, slots: Sequence[int], rows: list[ScoreRow], submitted: float
    ) -> Answered[ScoreRow]:
        """What became of a request, of these scores."""
        size, dispatched, took_s = _NOTE.unpack_from(self._notes, slots[0] * self._note_bytes)
        return Answered(rows, size, dispatched - submitted, took_s)

    def write_text(self, slot: int, text: str) -> int:
        """Leave a text at a slot; how many bytes of it there are."""
        data = text.encode()[:TEXT_BYTES]
        self._texts[slot * TEXT_BYTES :][: len(data)] = data
        return len(data)

    def text(self, slot: int, length: int) -> str:
        """The text left at a slot."""
        return bytes(self._texts[slot * TEXT_BYTES :][:length]).decode(errors="ignore")


_STEP = _LINE // 8  # between the elements of `next`


def _row_bytes(image_shape: tuple[int, ...], classes: int) -> tuple[int, int, int]:
    image, scores, note = (
        -(-size // _LINE) * _LINE for size in (prod(image_shape), 4 * classes, _NOTE.size)
    )
    return image, scores, note


def _strides(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """The bytes between neighbours on each axis, where elements of a size lie side by side."""
    return tuple(size * prod(shape[axis + 1 :]) for axis in range(len(shape)))
