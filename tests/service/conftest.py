"""The command line in this process, and a server of two models that tests leave as it was."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service import cli
from tests.support.servers.several_models import convoy_serve, make_models

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def convoy(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line in this process: (exit status, standard output, standard error)."""
    # Wide, so that no table breaks a path.
    monkeypatch.setenv("COLUMNS", "400")

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


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a server of two models listens."""
    with convoy_serve(make_models(tmp_path_factory.mktemp("models"))) as port:
        yield f"127.0.0.1:{port}"
