"""Creates files of shared memory with unique names."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER = Path("/dev/shm")


@contextmanager
def shared_memory(content: bytes) -> Iterator[Path]:
    """Yield a file of shared memory with this content. The test may remove the file."""
    number, name = tempfile.mkstemp(prefix="convoy-test-", dir=FOLDER)
    os.close(number)
    file = Path(name)
    file.write_bytes(content)
    try:
        yield file
    finally:
        file.unlink(missing_ok=True)
