"""How much may be inside the service at once: images, and the bytes of bodies being read.

A request is counted before it costs anything and gives everything back when it leaves, however it
leaves. Used from one event loop.
"""

import asyncio
from collections.abc import Callable
from math import ceil
from types import TracebackType
from typing import Self

from service.errors import QueueFullError, TooManyImagesError


class ByteRoom:
    """Room for the bodies that are being read or decoded, of all models together."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0


class Inside:
    """How many images of a model are inside: from before they are decoded until answered."""

    def __init__(self) -> None:
        self._images = 0

    @property
    def images(self) -> int:
        """How many there are."""
        return self._images

    def add(self, images: int) -> None:
        """Count more, or fewer."""
        self._images += images


class Admission:
    """One model's bounds, and what is inside now."""

    def __init__(
        self,
        *,
        max_images: int,
        max_images_a_request: int,
        room: ByteRoom,
        expected_wait_s: Callable[[], float],
        inside: Inside | None = None,
    ) -> None:
        """`inside` is where images are counted that other processes let in too."""
        self.max_images = max_images
        self.max_images_a_request = max_images_a_request
        self.room = room
        self.expected_wait_s = expected_wait_s  # until the images inside now are answered
        self.requests = 0
        self.inside = inside or Inside()
        self._emptied: asyncio.Event | None = None  # where somebody waits for it

    @property
    def images(self) -> int:
        """How many images are inside."""
        return self.inside.images

    def enter(self) -> None:
        """Count a request in."""
        self.requests += 1

    def leave(self) -> None:
        """Count a request out."""
        self.requests -= 1
        if not self.requests and self._emptied is not None:
            self._emptied.set()

    async def emptied(self) -> None:
        """Wait until no request is inside."""
        while self.requests:
            self._emptied = self._emptied or asyncio.Event()
            self._emptied.clear()
            await self._emptied.wait()


class Visit:
    """One request's stay from now on, a context manager; what it holds is given back at the end."""

    __slots__ = ("_admission", "_bytes", "_images", "_left")

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._bytes = 0
        self._images = 0
        self._left = False
        admission.enter()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.leave()

    def leave(self) -> None:
        """End it; said again, nothing happens."""
        if self._left:
            return
        self._left = True
        admission = self._admission
        if self._bytes:
            self.release_bytes()
        if self._images:
            admission.inside.add(-self._images)
        admission.leave()

    def expect_room(self) -> None:
        """QueueFullError if not even one more image could be admitted, before anything is read."""
        admission = self._admission
        if admission.inside.images >= admission.max_images:
            raise self._refusal(1)

    def hold_bytes(self, count: int) -> None:
        """Keep `count` more bytes of the body; QueueFullError if there is no room for them."""
        room = self._admission.room
        if room.taken + count > room.most:
            raise QueueFullError(
                f"{room.taken} bytes of images are being read, of at most "
                f"{room.most}; try again in a second"
            )
        room.taken += count
        self._bytes += count

    def release_bytes(self) -> None:
        """The body is not needed any longer."""
        self._admission.room.taken -= self._bytes
        self._bytes = 0

    def admit(self, images: int) -> None:
        """Let the request's images in, all or none; TooManyImagesError or QueueFullError."""
        admission = self._admission
        limit = admission.max_images_a_request
        if images > limit:
            raise TooManyImagesError(
                f"{images} images in one request; at most {limit} are allowed, "
                "so send them in several"
            )
        inside = admission.inside
        if inside.images + images > admission.max_images:
            raise self._refusal(images)
        inside.add(images)
        self._images += images

    def _refusal(self, images: int) -> QueueFullError:
        admission = self._admission
        wait_s = admission.expected_wait_s()
        return QueueFullError(
            f"{admission.images} images of at most {admission.max_images} are being worked on and "
            f"{images} more came; try again in {max(1, ceil(wait_s))} s",
            wait_s,
        )
