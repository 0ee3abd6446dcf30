"""Fixtures of every folder."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """Tests marked `anyio` are coroutines and run on asyncio, as the server does."""
    return "asyncio"
