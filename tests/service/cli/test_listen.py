"""The server starts in the order that forked processes need."""

import threading

import pytest

from service.cli.listen import listen
from service.engine.job_processes import JobParent
from service.hosting.reads import read_models
from service.settings import Settings


class StopError(Exception):
    """An exception that ends the start."""


def test_the_parent_of_processes_is_forked_before_the_server_has_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = threading.enumerate()
    begun: list[threading.Thread] = []

    def fork() -> JobParent:
        begun.extend(thread for thread in threading.enumerate() if thread not in before)
        raise StopError

    monkeypatch.setattr(JobParent, "fork", fork)
    monkeypatch.setattr(Settings, "processes", 2)
    settings = Settings()
    with pytest.raises(StopError):
        listen(settings, None, read_models(settings, None), verbose=False, browse=False)
    assert begun == []
