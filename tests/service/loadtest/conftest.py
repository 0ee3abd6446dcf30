"""The command in this process, and pictures for it to send."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from service import cli

Run = Callable[..., tuple[int, str, str]]

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
def loadtest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], pictures: Path
) -> Run:
    """Run the command in this process: (exit status, standard output, standard error)."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        command_line = ["convoy", "loadtest", "--images", pictures, *arguments]
        monkeypatch.setattr(sys, "argv", list(map(str, command_line)))
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, error = capsys.readouterr()
        assert "Traceback" not in error
        assert isinstance(end.value.code, int)
        return end.value.code, out, error

    return run
