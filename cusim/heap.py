"""Places buffers far apart in device memory, so that an access outside one buffer does not reach
another."""

from kernels.device.device import ALIGNMENT

_PAGE = 1 << 16  # bytes; at least the system's page size
_RED_ZONE = 64 << 10  # bytes, as in runtime/memory.h
_GAP = 8 << 20  # bytes between buffers, which kernels cannot access
_GAPS = 4096  # this many small buffers fit in the address space


class Heap:
    """Allocates buffers in `span` bytes of address space. At most `total` bytes can be in use."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.span = total + _GAPS * _GAP
        self._sizes: dict[int, int] = {}  # by offset

    @property
    def free(self) -> int:
        """Return how many bytes are not allocated."""
        return self.total - sum(self._sizes.values())

    def allocate(self, nbytes: int) -> int | None:
        """Allocate a buffer, and return its offset, or None if memory is full.

        The offset is a multiple of ALIGNMENT, but of no larger power of two.
        """
        if nbytes > self.free:
            return None
        end = 0
        for offset in sorted(self._sizes):
            if _first_free(end) + nbytes + _GAP <= offset:
                break
            end = offset + self._sizes[offset]
        start = _first_free(end)
        if start + nbytes + _GAP > self.span:
            return None
        self._sizes[start] = nbytes
        return start

    def release(self, offset: int) -> None:
        """Free the buffer that starts at `offset`."""
        del self._sizes[offset]

    def buffer(self, offset: int, nbytes: int = 1) -> tuple[int, int] | None:
        """Return the offset and size of the buffer that holds all `nbytes` bytes from `offset` on,
        or None if no buffer does."""
        for start, size in self._sizes.items():
            if start <= offset and offset + nbytes <= start + size:
                return start, size
        return None


def _first_free(end: int) -> int:
    """Return the lowest offset at which a buffer may begin if the previous buffer ends at `end`."""
    return -(-(end + _GAP) // _PAGE) * _PAGE + _RED_ZONE + ALIGNMENT
