"""The command in this process, and images for it to send."""

from pathlib import Path

import pytest

from tests.support.command_line import Run, convoy

__all__ = ["convoy"]

SHORT = ("--duration", "400ms", "--warmup", "100ms")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder with a image of each digit, as the fake engine and the scripted server see it."""
    folder = tmp_path / "images"
    folder.mkdir()
    for digit in range(10):
        (folder / f"{digit}.png").write_bytes(str(digit).encode())
    (folder / "notes.txt").write_text("no image")
    return folder


@pytest.fixture
def loadtest(convoy: Run, images: Path) -> Run:
    """Run the command on these images: (exit status, standard output, standard error)."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        return convoy("loadtest", "--images", images, *arguments)

    return run
