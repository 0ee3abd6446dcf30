"""The number of messages that may arrive at the same time. It bounds their bytes before any message
is read."""

import pytest

import service.grpc
from service.grpc import max_arriving
from service.settings import Settings

GB = 10**9


@pytest.mark.parametrize(
    ("memory", "options", "most"),
    [
        (64 * GB, {}, 136),  # --max-queue and --max-batch
        (64 * GB, {"max_queue": 8}, 16),
        (2 * GB, {}, 25),  # of 20 MB in a quarter
        (2 * GB, {"max_body_mb": 1}, 136),
        (2 * GB, {"max_body_mb": 1000}, 1),
    ],
)
def test_as_many_arrive_as_a_quarter_of_the_memory_holds_of_the_longest(
    monkeypatch: pytest.MonkeyPatch, memory: int, options: dict[str, float], most: int
) -> None:
    monkeypatch.setattr(service.grpc, "available_memory", lambda: memory)
    settings = Settings.model_validate(options)
    assert max_arriving(settings) == most
    assert most == 1 or most * settings.max_body_bytes <= memory / 4
