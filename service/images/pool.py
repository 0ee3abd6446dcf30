"""Threads that decode, within one budget of bytes, so that large images never hold up small ones.

prepared ─┬─ quick ──────────────────────────────── a thread
          └─ large ── waits until the budget has it ── a thread of the few for large ones

A decode is quick if it takes little time and little memory; the budget has room for a quick one in
every thread, set aside. What is left is for large ones, first come first served.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from math import ceil
from typing import NamedTuple

from models import Pixels
from service.engine.workers import Job, Workers
from service.errors import DecodersBusyError, PayloadTooLargeError

# Told the pixels, or what went wrong instead.
Decoded = Callable[[Pixels, Exception | None], None]

# What a quick decode takes at the most: a photograph of 10 megapixels, if it is a plain JPEG.
_QUICK_S = 0.05
_QUICK_BYTES = 16 * 2**20

# The longest that a large image waits for its turn; one that would wait longer is refused.
_PATIENCE_S = 5.0

# How many times the budget of a thread is kept for quick decodes.
_SHARE = 4


class Cost(NamedTuple):
    """What decoding an image takes at its peak, the file's own bytes not counted."""

    bytes: int
    seconds: float  # of one core, estimated


FREE = Cost(0, 0.0)


class Decoding(NamedTuple):
    """An image that can be decoded, and what that takes."""

    cost: Cost
    run: Callable[[], Pixels]


class _Large:
    """A large image that waits, or is being decoded."""

    __slots__ = ("decoding", "then")

    def __init__(self, decoding: Decoding, then: Decoded) -> None:
        self.decoding = decoding
        self.then: Decoded | None = then  # None once nobody wants it

    def withdraw(self) -> None:
        """Nobody wants it any longer: before its turn it is not decoded, and `then` not called."""
        self.then = None


class DecodePool:
    """Decodes images in threads; used from one event loop."""

    def __init__(self, threads: int, budget_bytes: int, *, bound_s: float, nice: int = 0) -> None:
        """`bound_s` is what one image may take; `nice` how much others go before these threads.

        With no threads every image is decoded at once, where it is posted.
        """
        large = min(1, threads) and max(1, threads // 2)
        self._quick = Workers("decode", threads, bound_s=bound_s, nice=nice)
        self._slow = Workers("decode-large", large, bound_s=bound_s, nice=2 * nice)
        self.quick_bytes = min(_QUICK_BYTES, budget_bytes // (_SHARE * max(1, threads)))
        self.large_bytes = budget_bytes - threads * self.quick_bytes
        self._threads = large
        self._taken = 0  # bytes, by large images that are being decoded
        self._running: list[_Large] = []
        self._waiting: deque[_Large] = deque()

    @property
    def lost(self) -> int:
        """Threads that were given up so far."""
        return self._quick.lost + self._slow.lost

    @property
    def taken_bytes(self) -> int:
        """What large images take now."""
        return self._taken

    @property
    def waiting(self) -> int:
        """Large images that wait for room."""
        return sum(1 for large in self._waiting if large.then is not None)

    def admit(self, *decodings: Decoding) -> None:
        """Raise unless these can be posted now, all of them.

        PayloadTooLargeError: one takes more than the whole budget. DecodersBusyError: large images
        would have to wait longer than makes sense.
        """
        ahead_s = 0.0
        for cost, _ in decodings:
            if self._is_quick(cost):
                continue
            if cost.bytes > self.large_bytes:
                raise PayloadTooLargeError(
                    f"the image takes {ceil(cost.bytes / 1e6)} MB to decode, and at most "
                    f"{self.large_bytes // 1_000_000} MB are to be had; send it smaller"
                )
            if ahead_s == 0.0:
                ahead_s = self._ahead_s()
            if ahead_s > _PATIENCE_S:
                raise DecodersBusyError(
                    f"large images that came before take about {ahead_s:.0f} s to decode; "
                    "send this one later, or smaller",
                    ahead_s - _PATIENCE_S,
                )
            ahead_s += cost.seconds / max(1, self._threads)

    def post(self, decoding: Decoding, then: Decoded) -> "Job | _Large | None":
        """Have an image decoded, then `then` called in the event loop; it must be admitted before.

        None: both are done already. What is returned can be withdrawn.
        """
        if self._is_quick(decoding.cost) or not self._threads:
            return self._quick.post(_run, decoding, then)
        large = _Large(decoding, then)
        self._waiting.append(large)
        self._start()
        return large

    def close(self) -> None:
        """End every thread when it has no more to do; does not wait for it."""
        self._quick.close()
        self._slow.close()

    def _is_quick(self, cost: Cost) -> bool:
        return cost.seconds <= _QUICK_S and cost.bytes <= self.quick_bytes

    def _ahead_s(self) -> float:
        """Until a large image that comes now would begin, about."""
        ahead = sum(
            large.decoding.cost.seconds
            for images in (self._running, self._waiting)
            for large in images
        )
        return ahead / max(1, self._threads)

    def _start(self) -> None:
        """Begin with those whose turn it is, in order."""
        while self._waiting and len(self._running) < self._threads:
            large = self._waiting[0]
            if large.then is not None:
                size = large.decoding.cost.bytes
                if self._taken + size > self.large_bytes:
                    return
                self._taken += size
                self._running.append(large)
                self._slow.post(_run, large.decoding, partial(self._ended, large))
            self._waiting.popleft()

    def _ended(self, large: _Large, pixels: Pixels, error: Exception | None) -> None:
        self._running.remove(large)
        self._taken -= large.decoding.cost.bytes
        try:
            if large.then is not None:
                large.then(pixels, error)
        finally:
            self._start()


def free(decode: Callable[[bytes], Pixels]) -> Callable[[bytes], Decoding]:
    """What prepares images whose decoding takes next to nothing."""
    return partial(_prepare_free, decode)


def _prepare_free(decode: Callable[[bytes], Pixels], data: bytes) -> Decoding:
    return Decoding(FREE, partial(decode, data))


def _run(decoding: Decoding) -> Pixels:
    return decoding.run()
