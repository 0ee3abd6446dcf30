"""Decodes images in threads within one memory budget. Large images never delay small ones.

    prepared ─┬─ quick ── queue of clients ───────────── a decode thread
              ├─ large ── queue of clients, free memory ── a thread for large images ── `apart`
              └─ long ─── queue of clients, free memory ── a thread for long files ──── `apart`

An image is quick if decoding it takes little time and little memory. The budget always has enough
memory for one quick image per thread. A file is long if decoding it takes more than a second, such
as a clip of many frames. Long files have their own threads and may use half of the memory. No
client may use all of these threads at once.

If an engine decodes its images itself, it also reads the header of a `Coded` file and decodes the
file. It leaves a file to this pool if decoding takes more than `_IN_JOB_S` seconds, or more memory
than a quick image.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple

from typing_extensions import override

from models import Image, Kind, Pixels
from service.engine.lane import Call, Cost, Lane, Work, here
from service.engine.process_pool import ProcessPool
from service.engine.threads import ThreadPool
from service.engine.undecoded import NotHereError, Undecoded
from service.errors import DecodersBusyError, PayloadTooLargeError
from service.fair_queue import ANYONE, Client
from service.images.jpeg import jpeg_size
from service.images.png import png_size

# Called with the image, or with the error.
OnDecoded = Callable[[Any, Exception | None], None]

# The most that a quick decode takes: a photograph of 10 megapixels, if it is a baseline JPEG.
_QUICK_S = 0.05
_QUICK_BYTES = 16 * 2**20

# A longer decode would keep shorter ones from their thread for too long.
_LARGE_S = 1.0

# The longest decode within the job that runs the batch: the batch's other images wait for it.
_IN_JOB_S = 0.005

# The seconds per pixel and per coded byte, about the weights in `jpeg.py` for most JPEGs. A PNG's
# pixels take longer, but a PNG also has more bytes.
_PIXEL_S, _BYTE_S = 2.8e-9, 7.2e-9

# The longest waits of large images and of long decodes, which are refused otherwise.
_PATIENCE_S = 5.0
_LONG_PATIENCE_S = 20.0

# Seconds of work that threads get in advance, so that none waits for the event loop.
_MOMENT_S = 0.002

# Quick decodes in all threads get at most this part of the budget: a quarter.
_SHARE = 4

# The cost of reading a file's headers and of laying the file out for a device.
_LAYING_OUT = Cost(2**21, 0.0003)


class NotForDeviceError(Exception):
    """Raised if the device cannot decode an image. `reason` names the metric that counts such
    images."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"a device cannot decode the image: {reason}")
        self.reason = reason


class Decoding(NamedTuple):
    """Holds the cost of decoding an image file, and the functions that decode it."""

    cost: Cost  # without the file's own bytes
    run: Callable[[], Pixels]
    # The same without the resize, for an engine that resizes; None if there is no such function.
    unresized: Callable[[], Image] | None = None
    # Decode it like a large image, however small it is, because its decoder may crash or hang.
    apart: bool = False
    # Lays out the file for an engine that decodes, or raises NotForDeviceError.
    file: Callable[[], Image] | None = None
    copied: int = 0  # bytes that it holds beside the file, from now on


def in_process(processes: ProcessPool) -> Call:
    """Return a function that decodes an image in another process. The function raises
    PayloadTooLargeError if decoding takes more memory than was reserved."""

    def decode_there(decode: Callable[[], Image], most_bytes: int) -> Image:
        try:
            return processes.run(decode, most_bytes)
        except MemoryError as error:
            raise PayloadTooLargeError(
                f"decoding takes more than the {ceil(most_bytes / 1e6)} MB of memory estimated from"
                " the image's header; save the image again"
            ) from error

    return decode_there


@dataclass(eq=False, slots=True)
class Coded(Undecoded):
    """Holds an image file that the engine decodes itself, immediately before it runs the image."""

    file: bytes
    prepare: Callable[[bytes], Decoding]
    most_bytes: int  # that decoding it may take there: those of a quick decode
    expected_s: float = 0.0
    _decoding: Decoding | None = None

    @staticmethod
    def of(file: bytes, prepare: Callable[[bytes], Decoding], most_bytes: int) -> "Coded":
        """Return a `Coded` for this file. If the image's size cannot be found quickly, the header
        is read now, which may raise the errors of `prepare`."""
        size = png_size(file) or jpeg_size(file)
        if size is None:
            decoding = prepare(file)
            return Coded(file, prepare, most_bytes, decoding.cost.seconds, decoding)
        width, height = size
        return Coded(file, prepare, most_bytes, width * height * _PIXEL_S + len(file) * _BYTE_S)

    @property
    def decoding(self) -> Decoding:
        """Return the cost and the functions to decode the file. Raises the errors of `prepare`."""
        if self._decoding is None:
            self._decoding = self.prepare(self.file)
        return self._decoding

    @override
    def read(self) -> Callable[[], Pixels]:
        decoding = self.decoding
        cost = decoding.cost
        if decoding.apart or cost.seconds > _IN_JOB_S or cost.bytes > self.most_bytes:
            raise NotHereError
        return decoding.run


class DecodePool:
    """Decodes images in threads. Not thread-safe: use it from one event loop."""

    def __init__(
        self,
        threads: int,
        budget_bytes: int,
        *,
        bound_s: float,
        nice: int = 0,
        apart: Call = here,
    ) -> None:
        """Start `threads` threads for quick images. If `threads` is 0, `post` decodes the image
        itself. `bound_s` limits the time for one image. `apart` calls the function that decodes a
        large image: by default in the calling thread, otherwise in another process."""
        self._threads = threads
        self._large_threads = max(min(1, threads), threads // 2)
        self.quick_bytes = min(_QUICK_BYTES, budget_bytes // (_SHARE * max(1, threads)))
        self._budget_bytes = budget_bytes
        self.jobs: Callable[[], int] = int  # of engines, in each of which a quick one is decoded
        quick = ThreadPool("decode", threads, bound_s=bound_s, nice=nice)
        slow = ThreadPool("decode-large", self._large_threads, bound_s=bound_s, nice=2 * nice)
        long_threads = max(min(2, threads), threads // 2)
        longest = ThreadPool("decode-long", long_threads, bound_s=bound_s, nice=3 * nice)
        self._quick = Lane(quick, threads, self._has_thread)
        self._large = Lane(slow, self._large_threads, self._has_memory, apart, _PATIENCE_S)
        self._long = Lane(
            *(longest, long_threads, self._has_long_memory, apart, _LONG_PATIENCE_S),
            shared=True,
            on_end=self._large.go_on,
        )
        self._large.on_end = self._long.go_on

    @property
    def large_bytes(self) -> int:
        """Return the bytes of the budget that large images may use."""
        return self._budget_bytes - (self._threads + self.jobs()) * self.quick_bytes

    @property
    def _long_bytes(self) -> int:
        return self.large_bytes // 2

    @property
    def lost(self) -> int:
        """Return how many threads were abandoned so far because they hung."""
        return sum(lane.pool.lost for lane in (self._quick, self._large, self._long))

    def admit(self, *decodings: Decoding, client: Client = ANYONE) -> None:
        """Raise PayloadTooLargeError if decoding an image takes more memory than the budget has,
        and DecodersBusyError if the image would wait too long."""
        waits: dict[Lane, float] = {}
        for decoding in decodings:
            cost = decoding.cost
            lane = self._lane(decoding)
            if lane is self._quick:
                continue
            if cost.bytes > self.large_bytes:
                raise PayloadTooLargeError(
                    f"decoding the image takes {ceil(cost.bytes / 1e6)} MB of memory, but at most "
                    f"{self.large_bytes // 1_000_000} MB are available; send a smaller image"
                )
            if lane not in waits:
                waits[lane] = lane.ahead_s(client) / max(1, lane.threads)
            if (ahead_s := waits[lane]) > lane.patience_s:
                raise DecodersBusyError(
                    f"the large images that arrived earlier take about {ahead_s:.0f} s to decode; "
                    "try again later, or send a smaller image",
                    ahead_s - lane.patience_s,
                )
            waits[lane] += cost.seconds / max(1, lane.threads)

    def post(
        self,
        decoding: Decoding,
        then: OnDecoded,
        client: Client = ANYONE,
        left: Collection[Kind] = (),
    ) -> Work | None:
        """Decode an image that `admit` has accepted, then call `then` in the event loop. Return
        None if `then` was called before `post` returned.

        `left` has the kinds of images that the engine can turn into pixels itself. If the engine
        decodes JPEG files but cannot decode this file, `then` gets NotForDeviceError.
        """
        lane, cost = self._lane(decoding), decoding.cost
        decode: Callable[[], Image] = decoding.run
        if Kind.JPEG in left and decoding.file is not None:
            lane, decode, cost = self._quick, decoding.file, _LAYING_OUT
        # A large image is often decoded in another process, which returns few pixels faster.
        elif Kind.DECODED in left and lane is self._quick and decoding.unresized is not None:
            decode = decoding.unresized
        return lane.post(cost, decode, then, client)

    def close(self) -> None:
        """Let every thread end after its last job. Does not wait for the threads."""
        for lane in (self._quick, self._large, self._long):
            lane.pool.close()

    def _lane(self, decoding: Decoding) -> Lane:
        cost = decoding.cost
        in_bounds = cost.seconds <= _QUICK_S and cost.bytes <= self.quick_bytes
        if in_bounds and not decoding.apart:
            return self._quick
        # A decode that takes more than half of the memory would wait there for ever.
        is_long = cost.seconds > _LARGE_S and cost.bytes <= self._long_bytes
        return self._long if is_long else self._large

    def _has_thread(self, cost: Cost) -> bool:
        """Return whether a thread for quick images is free, or will be free within a few
        milliseconds."""
        lane = self._quick
        soon = lane.seconds + cost.seconds <= _MOMENT_S * self._threads
        return soon or lane.running < self._threads

    def _has_memory(self, cost: Cost) -> bool:
        """Return whether a thread and enough memory for a large image are free."""
        lane, held = self._large, self._large.bytes + self._long.bytes
        # If nothing else runs, it begins in any case: memory may have shrunk since it was admitted.
        has_memory = not held or held + cost.bytes <= self.large_bytes
        return lane.running < lane.threads and has_memory

    def _has_long_memory(self, cost: Cost) -> bool:
        """Return whether a thread and enough memory for a long file are free. While a large image
        waits for memory, long files get none."""
        lane = self._long
        if lane.running >= lane.threads:
            return False
        if lane.bytes and lane.bytes + cost.bytes > self._long_bytes:
            return False
        held = lane.bytes + self._large.bytes
        if held and held + cost.bytes > self.large_bytes:
            return False
        return not self._large.waiting or self._large.running >= self._large.threads
