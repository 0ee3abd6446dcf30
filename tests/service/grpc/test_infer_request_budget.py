"""The worst known messages take time and memory in proportion to their length, like bodies over
HTTP.

A test with the corpus of tests/fuzz limits for how long reading a message blocks other threads.
"""

import time
import tracemalloc
from contextlib import suppress

import pytest

from service.errors import ServiceError
from service.grpc.infer_request import infer_request, read_message
from tests.fuzz import lock
from tests.service.whole.attacks.test_parser_budget import check_budget

# Beside the message: its tensor or its files, and which of its floats are finite.
MOST_TIMES = 1.6

WORST = {name: long for name, (kind, long) in lock.KNOWN.items() if kind == b"protobuf"}


@pytest.mark.parametrize("name", WORST)
def test_a_message_takes_time_and_memory_in_proportion(name: str) -> None:
    body = WORST[name].body()

    def read() -> None:
        with suppress(ServiceError):
            infer_request(read_message(body), lock.INFO, 8)

    def timed() -> float:
        started = time.thread_time()
        read()
        return time.thread_time() - started

    check_budget(timed, len(body))
    tracemalloc.start()
    try:
        read()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MOST_TIMES * len(body), f"{peak / 1e6:.1f} MB"
