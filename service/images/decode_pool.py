"""Decodes in threads within one memory budget; large images never delay small ones.

prepared ─┬─ quick ─────────── its client's turn ── a decode thread
          ├─ large ── memory, its client's turn ── a thread for large images ── `apart`
          └─ long ─── memory, its client's turn ── a thread for long ones ───── `apart`

A decode is quick if it takes little time and little memory; the budget reserves room for a quick
one in every thread. It is long if it takes more than a second, as a clip of many frames may: long
ones have threads of their own, one of which each client leaves to others, and half of the memory.
Clients take turns by the seconds that decoding takes, and the images of one are decoded in the
order in which they come (`service/fair_queue.py`).
"""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from math import ceil, inf
from operator import call
from typing import Any, NamedTuple

from models import Image, Kind, Pixels
from service.engine.process_pool import ProcessPool
from service.engine.threads import ThreadPool
from service.errors import DecodersBusyError, PayloadTooLargeError
from service.fair_queue import ANYONE, Client, FairQueue

# Gets the image, or the error instead.
OnDecoded = Callable[[Any, Exception | None], None]

# The most that a quick decode takes: a photograph of 10 megapixels, if it is a baseline JPEG.
_QUICK_S = 0.05
_QUICK_BYTES = 16 * 2**20

# What takes longer would keep shorter ones from their thread for too long.
_LARGE_S = 1.0

# The most that an image may take of the job that runs its batch: the others wait for it.
_IN_JOB_S = 0.005

# The longest that a large image waits for its turn, and a long one; one that would wait longer is
# refused.
_PATIENCE_S = 5.0
_LONG_PATIENCE_S = 20.0

# What threads have to do beyond what they are doing, so that none is idle until the event loop has
# given it the next image; and what an image costs at least, in turns.
_MOMENT_S = 0.002
_LEAST_S = 0.0001

# Quick decodes in all threads get at most this part of the budget: a quarter.
_SHARE = 4


class Cost(NamedTuple):
    """Estimates the most memory and time that decoding takes, without the file's own bytes."""

    bytes: int = 0
    seconds: float = 0.0  # of one core


# Of reading a file's headers and laying it out for a device.
_LAYING_OUT = Cost(2**21, 0.0003)


class NotForDeviceError(Exception):
    """Says why an image must be decoded on the CPU, by the name of a counter."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the image is not for a device to decode: {reason}")
        self.reason = reason


class Decoding(NamedTuple):
    """Holds a checked image file with the cost of decoding it and the functions that decode."""

    cost: Cost
    run: Callable[[], Pixels]
    # Likewise, for an engine that resizes; None where there is no such function.
    unresized: Callable[[], Image] | None = None
    # Decode it as large ones are, however little it takes: its decoder may crash or hang.
    apart: bool = False
    # For an engine that decodes: lays out the file, or raises NotForDeviceError.
    file: Callable[[], Image] | None = None


@dataclass(eq=False, slots=True)
class _Work:
    """Holds an image that waits for a thread or is being decoded."""

    lane: "_Lane"
    client: Client
    decoding: Decoding
    decode: Callable[[], Image]  # the one of its functions that is called
    then: OnDecoded | None  # None once it is withdrawn
    begun: bool = False  # or out of its line

    def withdraw(self) -> None:
        """Discard the result, and do not decode the image if it has not begun."""
        self.then = None
        if not self.begun:
            self.begun = True
            self.lane.leave(self)

    def run(self) -> Image | None:
        """Decode the image in a thread, unless it is withdrawn."""
        if self.then is None:
            return None
        return self.lane.call(self.decode, self.decoding.cost.bytes)


Call = Callable[[Callable[[], Image], int], Image]
"""Decodes an image by a function that takes at most so many bytes of memory."""


def in_process(processes: ProcessPool) -> Call:
    """Return a function that decodes an image in another process; it raises PayloadTooLargeError if
    that takes more memory than was reserved."""

    def decode_there(decode: Callable[[], Image], most_bytes: int) -> Image:
        try:
            return processes.run(decode, most_bytes)
        except MemoryError as error:
            raise PayloadTooLargeError(
                f"decoding takes more than the {ceil(most_bytes / 1e6)} MB of memory that the"
                " header lets expect; save the file again"
            ) from error

    return decode_there


def _here(decode: Callable[[], Image], _: int) -> Image:
    return decode()


@dataclass(eq=False, slots=True)
class _Lane:
    """Queues images for one kind of thread; clients take turns."""

    pool: ThreadPool
    threads: int
    has_room: Callable[[Cost], bool]  # whether an image that costs so much can begin
    call: Call = _here  # how its thread decodes an image
    patience_s: float = inf
    shared: bool = False  # one client leaves a thread to others
    on_end: Callable[[], None] = lambda: None  # something may have room now
    clients: Counter[str] = field(default_factory=Counter)  # whose images run
    waiting: FairQueue[_Work] = field(default_factory=FairQueue)
    running: int = 0
    bytes: float = 0  # of those that run
    seconds: float = 0.0

    def post(
        self, decoding: Decoding, decode: Callable[[], Image], then: OnDecoded, client: Client
    ) -> _Work:
        """Decode an image when its client's turn comes."""
        work = _Work(self, client, decoding, decode, then)
        if not self.waiting and self._may_begin(work):
            self._begin(work)
            return work
        line = self.waiting.line(client)
        line.entries.append(work)
        line.size += decoding.cost.seconds
        if len(line.entries) == 1:
            self.waiting.place(line)
            self.go_on()
        return work

    def leave(self, work: _Work) -> None:
        """Remove an image from its line."""
        line = self.waiting.line(work.client)
        line.entries.remove(work)
        line.size -= work.decoding.cost.seconds
        self.waiting.place(line)
        self.go_on()

    def ahead_s(self, client: Client) -> float:
        """Return the estimated seconds on one core of the work before a new image of this
        client."""
        own = self.waiting.size(client)
        others = sum(
            min(line.size, share + line.entries[0].decoding.cost.seconds)
            for line, share in self.waiting.ahead(client, own)
        )
        return self.seconds + own + others

    def go_on(self) -> None:
        """Begin the images whose turn has come, as far as there is room."""
        while self.waiting:
            line, _ = self.waiting.next()
            if not self._may_begin(line.entries[0]):
                others = [one for one in self.waiting.lines() if not self.clients[one.client.name]]
                line = min(others, key=lambda one: one.service, default=line)
            work = line.entries[0]
            if not self._may_begin(work):
                return
            del line.entries[0]
            line.size -= work.decoding.cost.seconds
            self.waiting.served(line, max(work.decoding.cost.seconds, _LEAST_S))
            self.waiting.place(line)
            self._begin(work)

    def _may_begin(self, work: _Work) -> bool:
        own = self.clients[work.client.name]
        turn = not self.shared or own < max(1, self.threads - 1)
        return turn and self.has_room(work.decoding.cost)

    def _begin(self, work: _Work) -> None:
        cost = work.decoding.cost
        work.begun = True
        self.running += 1
        self.clients[work.client.name] += 1
        self.bytes += cost.bytes
        self.seconds += cost.seconds
        self.pool.post(_Work.run, work, partial(self._ended, work))

    def _ended(self, work: _Work, image: Image, error: Exception | None) -> None:
        cost = work.decoding.cost
        self.running -= 1
        self.clients[work.client.name] -= 1
        self.clients += Counter()  # forgets those that have none
        self.bytes -= cost.bytes
        self.seconds = self.seconds - cost.seconds if self.running else 0.0
        then, work.then = work.then, None
        try:
            if then is not None:
                then(image, error)
        finally:
            self.on_end()
            self.go_on()


class DecodePool:
    """Decodes images in threads; used from one event loop."""

    def __init__(
        self,
        threads: int,
        budget_bytes: int,
        *,
        bound_s: float,
        nice: int = 0,
        apart: Call = _here,
    ) -> None:
        """Start `threads` threads, or decode in `post` if 0; `bound_s` limits the time for one
        image.

        `apart` decodes the large ones: in a thread unless it does so elsewhere.
        """
        self._threads = threads
        self._large_threads = max(min(1, threads), threads // 2)
        self.quick_bytes = min(_QUICK_BYTES, budget_bytes // (_SHARE * max(1, threads)))
        self._budget_bytes = budget_bytes
        self.jobs: Callable[[], int] = int  # of engines, in each of which a quick one is decoded
        quick = ThreadPool("decode", threads, bound_s=bound_s, nice=nice)
        slow = ThreadPool("decode-large", self._large_threads, bound_s=bound_s, nice=2 * nice)
        long_threads = max(min(2, threads), threads // 2)
        longest = ThreadPool("decode-long", long_threads, bound_s=bound_s, nice=3 * nice)
        self._quick = _Lane(quick, threads, self._has_thread)
        self._large = _Lane(slow, self._large_threads, self._has_memory, apart, _PATIENCE_S)
        self._long = _Lane(
            *(longest, long_threads, self._has_long_memory, apart, _LONG_PATIENCE_S),
            shared=True,
            on_end=self._large.go_on,
        )
        self._large.on_end = self._long.go_on

    @property
    def large_bytes(self) -> int:
        """Return the bytes that are left for large images."""
        return self._budget_bytes - (self._threads + self.jobs()) * self.quick_bytes

    @property
    def _long_bytes(self) -> int:
        return self.large_bytes // 2

    @property
    def lost(self) -> int:
        """Return how many threads were given up so far because they hung."""
        return sum(lane.pool.lost for lane in (self._quick, self._large, self._long))

    def fits_in_job(self, decoding: Decoding) -> bool:
        """Return whether an image may be decoded in the job that runs it; any thread may call
        this."""
        cost = decoding.cost
        quick = cost.seconds <= _IN_JOB_S and cost.bytes <= self.quick_bytes
        return quick and not decoding.apart

    def admit(self, *decodings: Decoding, client: Client = ANYONE) -> None:
        """Raise PayloadTooLargeError if an image exceeds the budget, DecodersBusyError if it would
        wait long."""
        waits: dict[_Lane, float] = {}
        for decoding in decodings:
            cost = decoding.cost
            lane = self._lane(decoding)
            if lane is self._quick:
                continue
            if cost.bytes > self.large_bytes:
                raise PayloadTooLargeError(
                    f"the image takes {ceil(cost.bytes / 1e6)} MB to decode, and at most "
                    f"{self.large_bytes // 1_000_000} MB are available; send it smaller"
                )
            if lane not in waits:
                waits[lane] = lane.ahead_s(client) / max(1, lane.threads)
            if (ahead_s := waits[lane]) > lane.patience_s:
                raise DecodersBusyError(
                    f"the large images ahead take about {ahead_s:.0f} s to decode; "
                    "send this one later, or smaller",
                    ahead_s - lane.patience_s,
                )
            waits[lane] += cost.seconds / max(1, lane.threads)

    def post(
        self,
        decoding: Decoding,
        then: OnDecoded,
        client: Client = ANYONE,
        left: Collection[Kind] = (),
    ) -> _Work | None:
        """Decode an admitted image and call `then` in the event loop; return None if that is done
        already.

        The image may be `left` to an engine, as one of these kinds; where it cannot be left as a
        file, `then` gets NotForDeviceError.
        """
        lane = self._lane(decoding)
        decode: Callable[[], Image] = decoding.run
        if Kind.JPEG in left and decoding.file is not None:
            lane, decode = self._quick, decoding.file
            decoding = decoding._replace(cost=_LAYING_OUT)
        # A large image is often decoded in another process, from where few pixels come sooner.
        elif Kind.DECODED in left and lane is self._quick and decoding.unresized is not None:
            decode = decoding.unresized
        if not self._threads:
            self._quick.pool.post(call, decode, then)
            return None
        return lane.post(decoding, decode, then, client)

    def close(self) -> None:
        """End every thread after its last job, without waiting."""
        for lane in (self._quick, self._large, self._long):
            lane.pool.close()

    def _lane(self, decoding: Decoding) -> _Lane:
        cost = decoding.cost
        in_bounds = cost.seconds <= _QUICK_S and cost.bytes <= self.quick_bytes
        if in_bounds and not decoding.apart:
            return self._quick
        # What takes more than its half of the memory would wait there for ever.
        is_long = cost.seconds > _LARGE_S and cost.bytes <= self._long_bytes
        return self._long if is_long else self._large

    def _has_thread(self, cost: Cost) -> bool:
        """Return whether a thread for a quick image is free or will be soon."""
        lane = self._quick
        soon = lane.seconds + cost.seconds <= _MOMENT_S * self._threads
        return soon or lane.running < self._threads

    def _has_memory(self, cost: Cost) -> bool:
        """Return whether there are a thread and memory for a large image."""
        lane, held = self._large, self._large.bytes + self._long.bytes
        # Alone it begins in any case: there may be less memory now than when it was admitted.
        has_memory = not held or held + cost.bytes <= self.large_bytes
        return lane.running < lane.threads and has_memory

    def _has_long_memory(self, cost: Cost) -> bool:
        """Return whether there are a thread and memory for a long one; memory that a large image
        waits for does not count."""
        lane = self._long
        if lane.running >= lane.threads:
            return False
        if lane.bytes and lane.bytes + cost.bytes > self._long_bytes:
            return False
        held = lane.bytes + self._large.bytes
        if held and held + cost.bytes > self.large_bytes:
            return False
        return not self._large.waiting or self._large.running >= self._large.threads
