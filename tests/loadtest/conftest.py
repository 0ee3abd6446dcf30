"""The command in this process, and images for it to send."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from loadtest import loops
from loadtest import run as runs
from tests.support import PATIENCE_S
from tests.support.command_line import Run, convoy
from tests.support.counted_clock import CountedClock

__all__ = ["convoy"]

SHORT = ("--duration", "400ms", "--warmup", "100ms")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Return a folder with an image of each digit, as the fake engine and the scripted server read
    it."""
    folder = tmp_path / "images"
    folder.mkdir()
    for digit in range(10):
        (folder / f"{digit}.png").write_bytes(str(digit).encode())
    (folder / "notes.txt").write_text("no image")
    return folder


@pytest.fixture
def loadtest(convoy: Run, images: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command on these images: (exit status, standard output, standard error).

    Each request of an open loop is sent, however late it is.
    """
    monkeypatch.setattr(loops, "_MAX_LAG_S", 10.0 * PATIENCE_S)

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        return convoy("loadtest", "--images", images, *arguments)

    return run


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of requests of closed loops does not depend on the machine."""
    monkeypatch.setattr(runs, "precise_clock", lambda: nullcontext(CountedClock()))
