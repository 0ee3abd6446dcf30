"""A server of two models, for the tests that leave it as it was."""

from collections.abc import Iterator

import pytest

from tests.service.several_models import convoy_serve, make_models


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a server of two models listens."""
    with convoy_serve(make_models(tmp_path_factory.mktemp("models"))) as port:
        yield f"127.0.0.1:{port}"
