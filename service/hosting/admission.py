"""Limits how many images, and how many bytes of bodies and answers, are in progress at once. Not
thread-safe: use it from one event loop.

If a limit is reached, the client that uses the largest part of it gets an error for its next
request. If another client then needs capacity, the newest requests of the first client are
cancelled too. So a client that floods the server does not crowd out the other clients.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from typing_extensions import override

from service.errors import MemoryShortError, QueueFullError, ServiceError, TooManyImagesError
from service.fair_queue import ANYONE, Client
from service.machine.memory import MemoryPressure

# The number of answers of the greatest length that have room at once.
_ANSWERS = 4


@dataclass(eq=False, slots=True)
class ByteRoom:
    """Counts the bytes of request bodies that are being read or decoded, and of answers that are
    being created or sent. The bytes of all models are counted together."""

    max_bytes: int
    taken: int = 0
    inside: "dict[Held, None]" = field(default_factory=dict)  # of all models, in order
    pressure: MemoryPressure | None = None
    most: int = 0  # taken at once since `most_taken`

    def most_taken(self) -> int:
        """Return the peak number of reserved bytes since the last call."""
        most, self.most = self.most, self.taken
        return most

    def check_memory(self) -> None:
        """Raise MemoryShortError if the process is near a memory limit."""
        if self.pressure is not None and self.pressure.is_short():
            raise MemoryShortError(
                "the server is near its memory limit, and accepts no new images at the"
                " moment; try again in a second, or on another server"
            )

    @property
    def max_answer(self) -> int:
        """Return the maximum size of one answer in bytes. It is a fraction of `max_bytes`, so that
        several answers fit at the same time."""
        return self.max_bytes // _ANSWERS


@dataclass(eq=False)
class Admission:
    """Holds one model's limits, and counts the model's images and requests in progress."""

    max_images: int
    max_images_a_request: int
    max_body_bytes: int
    room: ByteRoom
    expected_wait_s: Callable[[], float]  # until all images inside now are answered
    requests: int = 0
    images: int = 0  # from before they are decoded until they are answered
    on_empty: asyncio.Event | None = None

    async def emptied(self) -> None:
        """Wait until no request is in progress."""
        while self.requests:
            self.on_empty = self.on_empty or asyncio.Event()
            self.on_empty.clear()
            await self.on_empty.wait()


class Held:
    """Reserves bytes of a `ByteRoom` for a client, until `release` is called."""

    __slots__ = ("_on_given_way", "_room", "bytes", "client")

    def __init__(
        self, room: ByteRoom, client: Client, on_given_way: Callable[[ServiceError], None]
    ) -> None:
        """`on_given_way` is called with an error if the reservation is released because another
        client needs the bytes."""
        self._room = room
        self.client = client
        self._on_given_way: Callable[[ServiceError], None] | None = on_given_way
        self.bytes = 0  # reserved
        room.inside[self] = None

    def hold_bytes(self, count: int) -> None:
        """Reserve `count` more bytes. If too few are free, cancel requests of clients that hold
        more than this client. Raises QueueFullError if that does not free enough."""
        if self._on_given_way is None:
            raise _refused()
        room = self._room
        lacking = room.taken + count - room.max_bytes
        if lacking > 0:
            self._let_in(lacking, count)
        room.taken = taken = room.taken + count
        room.most = max(room.most, taken)
        self.bytes += count

    def release_bytes(self) -> None:
        """Free the reserved bytes. More bytes may be reserved later."""
        self._room.taken -= self.bytes
        self.bytes = 0

    def release(self) -> None:
        """Free everything and end the reservation. Further calls do nothing."""
        if self._on_given_way is None:
            return
        self._on_given_way = None  # breaks a reference cycle
        self.release_bytes()
        del self._room.inside[self]

    def give_way(self) -> None:
        """End the reservation because another client needs it, and call `on_given_way` with an
        error that says so."""
        wait_s = self.expected_wait_s()
        error = QueueFullError(
            f"the queue is full, and your client holds the largest part of it; "
            f"try again in {max(1, ceil(wait_s))} s",
            wait_s,
        )
        tell = self._on_given_way
        self.release()
        if tell is not None:
            tell(error)

    def expected_wait_s(self) -> float:
        """Return the estimated seconds until another attempt may succeed."""
        return 1.0

    def _let_in(self, lacking: int, count: int) -> None:
        """Cancel other clients' requests until `count` bytes can be reserved. Raises QueueFullError
        if that is impossible."""
        room = self._room
        amounts = {held: held.bytes for held in room.inside if held.bytes}
        refused = _giving_way(lacking, self, count, amounts)
        if refused is None:
            raise QueueFullError(
                f"images and answers in progress have {room.taken} bytes; at most"
                f" {room.max_bytes} are allowed; try again in a second"
            )
        _give_way(refused)


class Reservation(Held):
    """Counts a request, its images and its bytes against the limits, until `release` is called."""

    __slots__ = ("_admission", "_images")

    def __init__(
        self,
        admission: Admission,
        client: Client = ANYONE,
        on_given_way: Callable[[ServiceError], None] = lambda _: None,
    ) -> None:
        """Count the request. `on_given_way` is called with an error if the request is cancelled
        later because another client needs its capacity."""
        super().__init__(admission.room, client, on_given_way)
        self._admission = admission
        self._images = 0
        admission.requests += 1

    @override
    def release(self) -> None:
        if self._on_given_way is None:
            return
        super().release()
        admission = self._admission
        admission.images -= self._images
        admission.requests -= 1
        if not admission.requests and admission.on_empty is not None:
            admission.on_empty.set()

    def expect_room(self) -> None:
        """Raise QueueFullError if no further image could be admitted."""
        if self._admission.images >= self._admission.max_images:
            self._images_giving_way(1)

    def admit(self, images: int) -> None:
        """Count the request's images as in progress, all or none. Raises TooManyImagesError or
        QueueFullError."""
        if self._on_given_way is None:
            raise _refused()
        admission = self._admission
        limit = admission.max_images_a_request
        if images > limit:
            raise TooManyImagesError(
                f"the request has {images} images; at most {limit} are allowed; split the request"
            )
        if admission.images + images > admission.max_images:
            _give_way(self._images_giving_way(images))
        admission.images += images
        self._images += images

    @override
    def expected_wait_s(self) -> float:
        return self._admission.expected_wait_s()

    def _images_giving_way(self, images: int) -> Sequence[Held]:
        """Return the requests to cancel so that the number of images in progress can grow by
        `images` within the limit. Raises QueueFullError if that is impossible."""
        admission = self._admission
        lacking = admission.images + images - admission.max_images
        inside = (
            held
            for held in admission.room.inside
            if isinstance(held, Reservation) and held._admission is admission
        )
        amounts = {
            reservation: reservation._images for reservation in inside if reservation._images
        }
        refused = _giving_way(lacking, self, images, amounts)
        if refused is None:
            wait_s = admission.expected_wait_s()
            raise QueueFullError(
                f"no room for {images} more images: {admission.images} images are queued or "
                f"running, and at most {admission.max_images} are allowed; "
                f"try again in {max(1, ceil(wait_s))} s",
                wait_s,
            )
        return refused


def _refused() -> QueueFullError:
    """Return the error for a request that continues after it was cancelled for another client."""
    return QueueFullError(
        "the server refused this request to make room for another client; try again in a second"
    )


def _giving_way(
    lacking: int, asking: Held, count: int, amounts: Mapping[Any, int]
) -> Sequence[Held] | None:
    """Return the requests to cancel so that a request of size `count` can be admitted, or None if
    that is impossible. `lacking` is the size that must become free. `amounts` has the size of each
    request in progress, in the order of arrival.

    The client with the largest total size, divided by its weight, loses its newest request. This
    repeats until enough is free. A client loses requests only while its total is larger than the
    asking client's total would become.
    """
    held: dict[str, float] = {}
    newest: dict[str, list[tuple[Held, int]]] = {}
    for reservation, amount in amounts.items():
        client = reservation.client
        held[client.name] = held.get(client.name, 0.0) + amount / client.weight
        newest.setdefault(client.name, []).append((reservation, amount))
    own = held.pop(asking.client.name, 0.0) + count / asking.client.weight
    refused: list[Held] = []
    while lacking > 0:
        largest = max(held, key=held.__getitem__, default="")
        if not held or held[largest] <= own:
            return None
        victim, amount = newest[largest].pop()
        refused.append(victim)
        lacking -= amount
        held[largest] -= amount / victim.client.weight
    return refused


def _give_way(several: Sequence[Held]) -> None:
    for held in several:
        held.give_way()
