"""Decode threads with one memory budget, in which large images never hold up small ones.

prepared ─┬─ quick ──────────────────────── a decode thread
          └─ large ── waits for its memory ── a thread for large images

A decode is quick if it takes little time and little memory; the budget reserves room for a quick
one in every thread. The rest is for large images, first come, first served.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil
from operator import call
from typing import NamedTuple

from models import Pixels
from service.engine.threads import Job, Workers
from service.errors import DecodersBusyError, PayloadTooLargeError

# Gets the pixels, or the error instead.
Decoded = Callable[[Pixels, Exception | None], None]

# The most that a quick decode takes: a photograph of 10 megapixels, if it is a baseline JPEG.
_QUICK_S = 0.05
_QUICK_BYTES = 16 * 2**20

# The longest that a large image waits for its turn; one that would wait longer is refused.
_PATIENCE_S = 5.0

# Quick decodes in all threads get at most this part of the budget: a quarter.
_SHARE = 4


class Cost(NamedTuple):
    """The estimated peak cost of decoding an image, without the file's own bytes."""

    bytes: int = 0
    seconds: float = 0.0  # of one core


class Decoding(NamedTuple):
    """A checked image file: what decoding it costs, and the function that does it."""

    cost: Cost
    run: Callable[[], Pixels]


@dataclass(eq=False, slots=True)
class _Large:
    """A large image that waits or is being decoded."""

    decoding: Decoding
    then: Decoded | None  # None once it is withdrawn

    def withdraw(self) -> None:
        """Discard its result; before its turn, never decode it."""
        self.then = None


class DecodePool:
    """Decodes images in threads; used from one event loop."""

    def __init__(self, threads: int, budget_bytes: int, *, bound_s: float, nice: int = 0) -> None:
        """`bound_s` limits the time of one image; with no threads `post` decodes every image."""
        self._large_threads = max(min(1, threads), threads // 2)
        self._quick = Workers("decode", threads, bound_s=bound_s, nice=nice)
        self._slow = Workers("decode-large", self._large_threads, bound_s=bound_s, nice=2 * nice)
        self.quick_bytes = min(_QUICK_BYTES, budget_bytes // (_SHARE * max(1, threads)))
        self.large_bytes = budget_bytes - threads * self.quick_bytes
        self._running: list[_Large] = []
        self._waiting: deque[_Large] = deque()

    @property
    def lost(self) -> int:
        """Threads given up so far."""
        return self._quick.lost + self._slow.lost

    @property
    def taken_bytes(self) -> int:
        """Memory that large images take now."""
        return sum(large.decoding.cost.bytes for large in self._running)

    def admit(self, *decodings: Decoding) -> None:
        """PayloadTooLargeError: one exceeds the budget. DecodersBusyError: one would wait long."""
        ahead_s = 0.0
        for cost, _ in decodings:
            if self._is_quick(cost):
                continue
            if cost.bytes > self.large_bytes:
                raise PayloadTooLargeError(
                    f"the image takes {ceil(cost.bytes / 1e6)} MB to decode, and at most "
                    f"{self.large_bytes // 1_000_000} MB are available; send it smaller"
                )
            ahead_s = ahead_s or self._ahead_s()
            if ahead_s > _PATIENCE_S:
                raise DecodersBusyError(
                    f"the large images ahead take about {ahead_s:.0f} s to decode; "
                    "send this one later, or smaller",
                    ahead_s - _PATIENCE_S,
                )
            ahead_s += cost.seconds / max(1, self._large_threads)

    def post(self, decoding: Decoding, then: Decoded) -> Job | _Large | None:
        """Decode an admitted image, then call `then` in the event loop; None: it is done."""
        if self._is_quick(decoding.cost) or not self._large_threads:
            return self._quick.post(call, decoding.run, then)
        large = _Large(decoding, then)
        self._waiting.append(large)
        self._start()
        return large

    def close(self) -> None:
        """End every thread after its last job; does not wait for it."""
        self._quick.close()
        self._slow.close()

    def _is_quick(self, cost: Cost) -> bool:
        return cost.seconds <= _QUICK_S and cost.bytes <= self.quick_bytes

    def _ahead_s(self) -> float:
        """The estimated wait of a large image that comes now."""
        ahead = (*self._running, *self._waiting)
        return sum(large.decoding.cost.seconds for large in ahead) / max(1, self._large_threads)

    def _start(self) -> None:
        """Start large images in order, as far as threads and memory allow."""
        while self._waiting and len(self._running) < self._large_threads:
            large = self._waiting[0]
            if large.then is not None:
                if self.taken_bytes + large.decoding.cost.bytes > self.large_bytes:
                    return
                self._running.append(large)
                self._slow.post(call, large.decoding.run, partial(self._ended, large))
            self._waiting.popleft()

    def _ended(self, large: _Large, pixels: Pixels, error: Exception | None) -> None:
        self._running.remove(large)
        try:
            if large.then is not None:
                large.then(pixels, error)
        finally:
            self._start()
