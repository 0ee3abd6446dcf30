"""Bounds on what is inside at once, images and bytes of bodies; used from one event loop."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from service.errors import QueueFullError, TooManyImagesError


@dataclass(eq=False, slots=True)
class ByteRoom:
    """Bytes of bodies that are being read or decoded, of all models together."""

    most: int
    taken: int = 0


@dataclass(eq=False)
class Admission:
    """One model's bounds and current counts."""

    max_images: int
    max_images_a_request: int
    max_body_bytes: int
    room: ByteRoom
    expected_wait_s: Callable[[], float]  # until all images inside now are answered
    requests: int = 0
    _images: int = 0
    on_empty: asyncio.Event | None = None

    @property
    def images(self) -> int:
        """Images inside, from before they are decoded until they are answered."""
        return self._images

    def add(self, images: int) -> None:
        """Count more images inside, or fewer."""
        self._images += images

    async def emptied(self) -> None:
        """Wait until no request is inside."""
        while self.requests:
            self.on_empty = self.on_empty or asyncio.Event()
            self.on_empty.clear()
            await self.on_empty.wait()


class Reservation:
    """What one request holds of an `Admission`, until `release`."""

    __slots__ = ("_admission", "_bytes", "_images", "_released")

    def __init__(self, admission: Admission) -> None:
        """Count the request in."""
        self._admission = admission
        self._bytes = 0
        self._images = 0
        self._released = False
        admission.requests += 1

    def release(self) -> None:
        """Return everything; a second call does nothing."""
        if self._released:
            return
        self._released = True
        admission = self._admission
        admission.room.taken -= self._bytes
        admission.add(-self._images)
        admission.requests -= 1
        if not admission.requests and admission.on_empty is not None:
            admission.on_empty.set()

    def expect_room(self) -> None:
        """Raise QueueFullError if no further image could be admitted."""
        admission = self._admission
        if admission.images >= admission.max_images:
            raise self._refusal(1)

    def hold_bytes(self, count: int) -> None:
        """Reserve `count` bytes for the body; QueueFullError if there is no room."""
        room = self._admission.room
        if room.taken + count > room.most:
            raise QueueFullError(
                f"{room.taken} of at most {room.most} bytes of images are being read; "
                "try again in a second"
            )
        room.taken += count
        self._bytes += count

    def release_bytes(self) -> None:
        """The body is no longer needed."""
        self._admission.room.taken -= self._bytes
        self._bytes = 0

    def admit(self, images: int) -> None:
        """Admit the request's images, all or none; TooManyImagesError or QueueFullError."""
        admission = self._admission
        limit = admission.max_images_a_request
        if images > limit:
            raise TooManyImagesError(
                f"{images} images in one request; at most {limit} are allowed; send several"
            )
        if admission.images + images > admission.max_images:
            raise self._refusal(images)
        admission.add(images)
        self._images += images

    def _refusal(self, images: int) -> QueueFullError:
        admission = self._admission
        wait_s = admission.expected_wait_s()
        return QueueFullError(
            f"no room for {images} more images: {admission.images} of at most "
            f"{admission.max_images} are queued or running; try again in {max(1, ceil(wait_s))} s",
            wait_s,
        )
