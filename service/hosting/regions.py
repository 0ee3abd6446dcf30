"""Holds the regions of system shared memory that clients on this machine register by name.

A region is part of a file in /dev/shm. The server reads and writes it with system calls instead of
mapping it. If a client shortens its file, a system call fails, whereas access to a mapping would
end the process with SIGBUS. A client also cannot change data after the server has read it. The
server can use a region even after `shm_unlink`, because the file is open.
"""

import errno
import io
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from typing_extensions import TypedDict  # pydantic requires this one before Python 3.12

from service.errors import (
    BadRequestError,
    ModelNotFoundError,
    NoProcessError,
    PayloadTooLargeError,
)

_FOLDER = "/dev/shm/"  # noqa: S108  POSIX's shared memory, where Linux has it

# The names that shm_open accepts on every system: an optional first slash, and no other slash.
_KEY = re.compile(r"/?(?!\.{1,2}$)[^/\0]{1,254}").fullmatch
_NAME = re.compile(r"[^\0-\x1f]{1,256}").fullmatch

MOST_REGIONS = 1024
"""The largest number of regions. Each region has an open file."""

_MOST_OFFSET = 2**62


class RegionStatus(TypedDict):
    """Describes a registered region: its name, its file (`key`), and its position and length in the
    file."""

    name: str
    key: str
    offset: int
    byte_size: int


@dataclass(frozen=True, slots=True)
class _Region:
    """Holds a registered region and its open file. The file is closed when no request uses it any
    more."""

    status: RegionStatus
    file: io.FileIO


class RegionPart(NamedTuple):
    """Identifies the bytes of one tensor in a region."""

    region: _Region
    offset: int  # in the region
    byte_size: int

    def read(self) -> bytes:
        """Return a copy of the tensor's bytes. Raises BadRequestError if the file has become
        shorter or cannot be read."""
        self._check()
        try:
            data = os.pread(self.region.file.fileno(), self.byte_size, self._start)
        except OSError as error:
            raise self._unusable("read", error.errno) from error
        if len(data) != self.byte_size:
            raise self._shortened()
        return data

    def write(self, data: bytes) -> None:
        """Write the tensor's bytes. Raises BadRequestError if `data` is longer than this part of
        the region, or if the file has become too short or cannot be written."""
        if len(data) > self.byte_size:
            raise BadRequestError(
                f"shared memory size specified with the request for output should be at least "
                f"{len(data)} bytes; got {self.byte_size}"
            )
        self._check()
        try:
            written = os.pwrite(self.region.file.fileno(), data, self._start)
        except OSError as error:
            raise self._unusable("written", error.errno) from error
        if written != len(data):
            raise self._unusable("written", errno.ENOSPC)

    @property
    def _start(self) -> int:
        return self.region.status["offset"] + self.offset

    def _check(self) -> None:
        if os.fstat(self.region.file.fileno()).st_size < self._start + self.byte_size:
            raise self._shortened()

    def _unusable(self, how: str, number: int | None) -> BadRequestError:
        return BadRequestError(
            f"the shared memory of region '{self.region.status['name']}' cannot be {how}: "
            f"{os.strerror(number or errno.EIO)}; free space in {_FOLDER}, or fill the region with "
            "zeros before you register it, so that its memory is reserved"
        )

    def _shortened(self) -> BadRequestError:
        name = self.region.status["name"]
        return BadRequestError(f"the shared memory of region '{name}' is shorter than registered")


class Regions:
    """Holds the regions of one server. Not thread-safe: use it from one event loop."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes` is the largest number of bytes that one tensor may have."""
        self._max_bytes = max_bytes
        self._regions: dict[str, _Region] = {}
        self.longest = 0  # bytes of a region, of those that were ever registered

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Register part of a shared-memory file under a name. Raises BadRequestError unless the
        file exists and is long enough, and NoProcessError if no more files can be opened."""
        if not _NAME(name) or not _KEY(key):
            raise BadRequestError(
                "a region's name must have 1 to 256 characters, and its key must be a name of "
                f"shared memory with one slash, such as /images; got the name '{name[:50]}' and "
                f"the key '{key[:50]}'"
            )
        if name in self._regions:
            raise BadRequestError(f"shared memory region '{name}' already in manager")
        if len(self._regions) >= MOST_REGIONS:
            raise BadRequestError(
                f"{MOST_REGIONS} regions are registered, which is the limit; unregister some"
            )
        if not 0 < byte_size <= _MOST_OFFSET or not 0 <= offset <= _MOST_OFFSET:
            raise BadRequestError(
                f"region '{name}' must have 1 to {_MOST_OFFSET} bytes and an offset from 0 to"
                f" {_MOST_OFFSET}; got {byte_size} bytes at the offset {offset}"
            )
        file = _open(key)
        size = os.fstat(file.fileno()).st_size
        if offset + byte_size > size:
            raise BadRequestError(
                f"failed to register shared memory region '{name}': it ends at byte "
                f"{offset + byte_size}, but {key} has {size} bytes"
            )
        status = RegionStatus(name=name, key=key, offset=offset, byte_size=byte_size)
        self._regions[name] = _Region(status, file)
        self.longest = max(self.longest, byte_size)

    def unregister(self, name: str = "") -> None:
        """Remove a region, or every region if `name` is empty. An unknown name is not an error."""
        if name:
            self._regions.pop(name, None)
        else:
            self._regions.clear()

    def status(self, name: str = "") -> list[RegionStatus]:
        """Return the status of a region, or of every region if `name` is empty. Raises
        ModelNotFoundError for an unknown name."""
        regions: Iterable[_Region] = self._regions.values()
        if name:
            regions = [self._find(name, ModelNotFoundError)]
        return [region.status for region in regions]

    def part(self, name: str, offset: int, byte_size: int) -> RegionPart:
        """Return the part of a region that holds a tensor. Raises BadRequestError unless the part
        lies inside the region, and PayloadTooLargeError if the part is too long."""
        region = self._find(name, BadRequestError)
        if offset + byte_size > region.status["byte_size"]:
            raise BadRequestError(
                f"Invalid offset + byte size for shared memory region: '{name}', which has "
                f"{region.status['byte_size']} bytes; got {offset} + {byte_size}"
            )
        if byte_size > self._max_bytes:
            raise PayloadTooLargeError(
                f"at most {self._max_bytes} bytes are allowed in a tensor; got {byte_size}"
            )
        return RegionPart(region, offset, byte_size)

    def _find(self, name: str, error: type[BadRequestError] | type[ModelNotFoundError]) -> _Region:
        region = self._regions.get(name)
        if region is None:
            raise error(f"Unable to find shared memory region: '{name}'")
        return region


def _open(key: str) -> io.FileIO:
    """Open the shared-memory file named `key` and return it. Raises BadRequestError if it is not
    shared memory, and NoProcessError if the system allows no more open files."""
    # Do not wait for the end of a client's lease on its file, which may take 45 s.
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        file = io.FileIO(os.open(_FOLDER + key.removeprefix("/"), flags), "r+")
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not shared memory")
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise NoProcessError(error) from error
        raise BadRequestError(
            f"Unable to open shared memory region: '{key}': {error.strerror}"
        ) from error
    return file
