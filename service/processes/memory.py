"""Memory that several processes see, with no name that could outlive them.

An anonymous file of memory is handed to a process as it is started, so nothing is left behind
however the processes end, and nothing counts against /dev/shm, which containers keep small. Pages
that are never touched take no memory.
"""

import mmap
import os
from multiprocessing.reduction import DupFd
from typing import Any


class Memory:
    """So many bytes, zero at first; pickled on the way to a new process, it is the same there."""

    def __init__(self, size: int) -> None:
        self._file = os.memfd_create("convoy")
        os.ftruncate(self._file, max(size, 1))  # nothing cannot be mapped
        self.view = memoryview(mmap.mmap(self._file, max(size, 1)))

    def __getstate__(self) -> Any:
        """What is written down for a process that is being started, and for nobody else."""
        return DupFd(self._file)

    def __setstate__(self, file: Any) -> None:
        """The same memory, in the new process."""
        self._file = file.detach()
        self.view = memoryview(mmap.mmap(self._file, os.fstat(self._file).st_size))

    def __del__(self) -> None:
        os.close(self._file)  # what is mapped stays mapped as long as somebody looks at it
