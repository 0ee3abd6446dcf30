"""Runs `convoy` in this process. A conftest can import the fixture."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kernels.device import cache_folder
from service import cli

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def convoy(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs the command line in this process. The function returns the exit
    status, standard output and standard error."""
    # Wide, so that no table breaks a path.
    monkeypatch.setenv("COLUMNS", "400")
    # The command sets both for the processes that it starts, and later tests run in this one.
    monkeypatch.setenv("CONVOY_CACHE", os.environ.get("CONVOY_CACHE", ""))
    monkeypatch.setattr(cache_folder, "_chosen", [*cache_folder._chosen])

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["convoy", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, error = capsys.readouterr()
        assert "Traceback" not in error
        status = end.value.code
        assert isinstance(status, int)
        return status, out, error

    return run
