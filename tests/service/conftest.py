"""The command line in this process, and a server of two models that tests leave as it was."""

from collections.abc import Iterator

import pytest

from tests.support.command_line import Run, convoy
from tests.support.servers.several_models import convoy_serve, make_models

__all__ = ["Run", "convoy"]


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a server of two models listens."""
    with convoy_serve(make_models(tmp_path_factory.mktemp("models"))) as port:
        yield f"127.0.0.1:{port}"
