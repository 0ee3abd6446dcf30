"""Fixtures for the tests of the comparison."""

import pytest

from benchmarks.peers.works import DIGITS, Task, tasks


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Task:
    """Return the task of the built-in model."""
    return tasks([DIGITS], tmp_path_factory.mktemp("digits"))[DIGITS]
