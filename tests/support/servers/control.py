"""Lets the engine of a server in another process hold its batches, or fail.

A test gives commands by creating files in a folder. So the test knows the number of images in the
server, even on a busy machine.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from models import EngineError
from tests.support import PATIENCE_S


class Control:
    """Holds the folder into which a test writes commands. The engine reads the commands at each
    batch."""

    def __init__(self, folder: Path) -> None:
        self._hold, self._held, self._fail = (folder / name for name in ("hold", "held", "fail"))

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Hold batches within this block."""
        self._held.unlink(missing_ok=True)
        with _present(self._hold):
            yield

    def until_held(self) -> None:
        """Wait until a batch has begun and is held. Images that are sent afterwards are not in this
        batch."""
        until(self._held.exists)

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Make batches fail within this block."""
        with _present(self._fail):
            yield

    def obey(self) -> None:
        """Hold the batch, or raise EngineError, in the engine's process."""
        while self._hold.exists():
            self._held.touch()
            time.sleep(0.005)
        if self._fail.exists():
            raise EngineError("the device fell off the bus")


@contextmanager
def _present(file: Path) -> Iterator[None]:
    file.touch()
    try:
        yield
    finally:
        file.unlink()


def until(condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    """Wait until another process has made the condition true, even on a busy machine."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def processor_s(process: int) -> float:
    """Return the CPU seconds that a process has used, both in its own code and in the kernel."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
