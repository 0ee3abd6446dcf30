"""The command in this process, and pictures for it to send."""

from pathlib import Path

import pytest

from tests.support.command_line import Run, convoy

__all__ = ["convoy"]

SHORT = ("--duration", "400ms", "--warmup", "100ms")


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A folder with a picture of each digit, as the fake engine and the scripted server see it."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for digit in range(10):
        (folder / f"{digit}.png").write_bytes(str(digit).encode())
    (folder / "notes.txt").write_text("no picture")
    return folder


@pytest.fixture
def loadtest(convoy: Run, pictures: Path) -> Run:
    """Run the command on these pictures: (exit status, standard output, standard error)."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        return convoy("loadtest", "--images", pictures, *arguments)

    return run
