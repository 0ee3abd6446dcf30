"""Real workers on loopback: batches across them, their metrics, one that is killed."""

import http.client
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from tests.support.servers.control import until
from tests.support.servers.real_workers import (
    WORKERS,
    Connection,
    Service,
    children,
    is_there,
    running,
)
from tests.support.service.client import metric_in


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One for all the tests that leave it as it was."""
    with running(tmp_path_factory.mktemp("control"), "--max-queue", "8") as shared:
        yield shared


def test_all_answers_are_right_and_the_metrics_of_all_workers_add_up(service: Service) -> None:
    before = [service.metric(f"convoy_{name}") for name in SUMS]

    def client(number: int) -> int:
        with closing(service.connect()) as connection:
            for step in range(30):
                digit = (number + step) % 10
                other = step % 3 == 0
                model, expected = ("other", 9 - digit) if other else ("fake", digit)
                assert connection.classify(digit, model) == expected
            return service.worker_of(connection)

    with ThreadPoolExecutor(6) as pool:
        used = set(pool.map(client, range(6)))
    assert used == service.workers
    with service.one_each() as each:
        told = []
        for connection in each.values():  # either tells of both
            text = connection.exchange("GET", "/metrics")[1]
            told.append([metric_in(text, f"convoy_{name}") for name in SUMS])
            status, stats = connection.exchange("GET", "/v2/models/stats")
            assert status == 200
            done = {model["name"]: model["inference_count"] for model in stats["model_stats"]}
            told.append([float(sum(done.values())), 0, 0, 0])
            assert metric_in(text, "nv_inference_count_total") == sum(done.values())
            assert metric_in(text, "convoy_workers") == WORKERS
    assert [now - then for now, then in zip(told[0], before, strict=True)] == [180] * len(SUMS)
    assert told[2] == told[0]
    assert told[1][0] == told[3][0] == told[0][0]


SUMS = (
    "images_total",
    'requests_total{status="200"}',
    "request_duration_seconds_count",
    "batch_size_sum",
)


def test_batches_form_across_workers(service: Service) -> None:
    with service.one_each() as each, ThreadPoolExecutor(8) as pool:
        (_, one), (_, two) = each.items()
        batches = service.metric("convoy_batch_size_count")
        with service.holding(), closing(service.connect()) as first:
            running = pool.submit(first.classify, 1)
            service.until_held()
            waiting = [pool.submit(one.classify, 2), pool.submit(two.classify, 3)]
            until(lambda: service.metric("convoy_queue_depth") == 2)
            assert service.metric("nv_inference_pending_request_count") == 2
        assert running.result() == 1
        assert [request.result() for request in waiting] == [2, 3]
        assert service.metric("convoy_batch_size_count") == batches + 2


def test_the_bound_on_images_is_all_workers_together(service: Service) -> None:
    """Each worker has its share inside, for a worker below its share would let one more in."""
    with service.some_each(16 // WORKERS + 1) as each, ThreadPoolExecutor(16) as pool:
        with service.holding():
            busy = [connection for connections in each.values() for connection in connections[1:]]
            inside = [pool.submit(c.classify, n % 10) for n, c in enumerate(busy)]
            until(lambda: service.metric("convoy_images_inside") == 16)
            for idle, *_ in each.values():
                answer = idle.classify(1)
                assert isinstance(answer, tuple)
                assert answer[0] == 429
                assert "16 of at most 16 are queued" in answer[1]
        assert [request.result() for request in inside] == [n % 10 for n in range(16)]
    until(lambda: service.metric("convoy_images_inside") == 0)


def test_deadlines_are_known_in_every_worker(service: Service) -> None:
    with service.one_each() as each, ThreadPoolExecutor(1) as pool:
        with service.holding(), closing(service.connect()) as first:
            running = pool.submit(first.classify, 1)
            service.until_held()
            for connection in each.values():
                begin = time.monotonic()
                answer = connection.classify(2, x_timeout_ms="200")
                assert isinstance(answer, tuple)
                assert answer[0] == 504, answer
                assert time.monotonic() - begin < 5
        assert running.result() == 1


def test_an_engine_that_fails_fails_the_requests_of_all_workers(service: Service) -> None:
    with service.one_each() as each:
        failed = service.metric("convoy_failed_batches_total")
        with service.failing():
            for connection in each.values():
                assert connection.classify(1) == (500, "the engine failed on this batch; try again")
        assert [connection.classify(1) for connection in each.values()] == [1] * WORKERS
        assert service.metric("convoy_failed_batches_total") == failed + WORKERS


def test_a_request_whose_client_left_is_not_computed(service: Service) -> None:
    images = service.metric("convoy_batch_size_sum")
    with service.one_each() as each, ThreadPoolExecutor(1) as pool:
        (_, one), (_, two) = each.items()
        with service.holding():
            running = pool.submit(one.classify, 1)
            service.until_held()
            two.putrequest("POST", "/v1/models/fake/classify")
            two.putheader("Content-Type", "image/png")
            two.putheader("Content-Length", "1")
            two.endheaders(b"2")
            until(lambda: service.metric("convoy_queue_depth") == 1)
            two.close()
            until(lambda: service.metric("convoy_queue_depth") == 0)
        assert running.result() == 1
    assert service.metric("convoy_batch_size_sum") == images + 1


def test_a_killed_worker_loses_its_own_requests_and_nothing_else(service: Service) -> None:
    """Under load on both, one is killed: the other answers all, and another takes its place."""
    stop = threading.Event()
    replaced = service.metric("convoy_workers_replaced_total")

    def client(connection: Connection) -> tuple[int, Exception | None]:
        answered = 0
        while not stop.is_set():
            try:
                assert connection.classify(answered % 10) == answered % 10
            except (OSError, http.client.HTTPException) as error:
                return answered, error
            answered += 1
        return answered, None

    with service.one_each() as each, ThreadPoolExecutor(3) as pool, ExitStack() as stack:
        stack.callback(stop.set)  # the clients end, however this does
        (victim, lost), (_, kept) = each.items()
        before = service.workers
        scrapes: list[tuple[float, ...]] = []
        clients = [pool.submit(client, connection) for connection in (lost, kept)]
        until(lambda: service.metric("convoy_images_total") > 50)
        with closing(service.connect()) as doomed:  # inside as its worker dies, perhaps
            pool.submit(client, doomed)
            scrapes.append(counters(service))
            os.kill(victim, signal.SIGKILL)
            until(lambda: len(service.workers) == WORKERS and victim not in service.workers)
            with service.one_each():  # both accept
                scrapes.append(counters(service))
                stop.set()
        answered, error = clients[0].result()
        assert error is not None
        assert answered > 0
        answered, error = clients[1].result()
        assert error is None
        assert answered > 0
        assert len(service.workers & before) == WORKERS - 1
        scrapes.append(counters(service))
    for earlier, later in pairwise(scrapes):
        assert all(a <= b for a, b in zip(earlier, later, strict=True)), scrapes
    # Nothing is left of what was inside the one that died, and all have all their room again.
    until(lambda: service.metric("convoy_images_inside") == 0)
    assert service.metric("convoy_workers_replaced_total") == replaced + 1
    test_the_bound_on_images_is_all_workers_together(service)


def test_the_process_that_forks_workers_may_die(tmp_path: Path) -> None:
    """Workers live on; one that dies later is replaced, by another that forks."""
    with running(tmp_path) as service, service.one_each() as each:
        (victim, _), (kept, connection) = each.items()
        (forker,) = (p for p in children(service.process.pid) if children(p))
        os.kill(forker, signal.SIGKILL)
        until(lambda: not is_there(forker))
        assert [connection.classify(4) for connection in each.values()] == [4] * WORKERS
        os.kill(victim, signal.SIGKILL)
        until(lambda: service.metric("convoy_workers_replaced_total") == 1)
        until(lambda: service.metric("convoy_workers") == WORKERS)
        assert connection.classify(5) == 5
        service.process.terminate()
        assert service.process.wait(30) == 0
        until(lambda: not is_there(kept))


def test_a_worker_that_is_stopped_is_replaced(tmp_path: Path) -> None:
    with running(tmp_path, "--patience", "20") as service, service.one_each() as each:
        (victim, lost), (_, kept) = each.items()
        os.kill(victim, signal.SIGSTOP)
        until(lambda: not is_there(victim))
        assert kept.classify(4) == 4
        with pytest.raises((OSError, http.client.HTTPException)):
            lost.classify(5)
        until(lambda: service.metric("convoy_workers") == WORKERS)
        assert service.metric("convoy_workers_replaced_total") == 1
        service.process.terminate()
        assert service.process.wait(30) == 0
        assert service.process.stderr is not None
        assert "does not answer" in service.process.stderr.read()


def test_what_was_inside_a_killed_worker_is_forgotten(service: Service) -> None:
    with service.one_each() as each, ThreadPoolExecutor(2) as pool:
        (victim, lost), (_, kept) = each.items()
        with service.holding():
            gone = pool.submit(lost.classify, 1)
            service.until_held()
            stays = pool.submit(kept.classify, 2)
            until(lambda: service.metric("convoy_images_inside") == 2)
            os.kill(victim, signal.SIGKILL)
            with pytest.raises((OSError, http.client.HTTPException)):
                gone.result()
            until(lambda: service.metric("convoy_images_inside") == 1)
        assert stays.result() == 2
    until(lambda: service.metric("convoy_workers") == WORKERS)


def counters(service: Service) -> tuple[float, ...]:
    """Every counter there is, in one order."""
    with closing(service.connect()) as connection:
        text = connection.exchange("GET", "/metrics")[1]
    names = (*SUMS, "workers_replaced_total")
    own = (metric_in(text, f"convoy_{name}") for name in names)
    return (*own, metric_in(text, "process_cpu_seconds_total"))


def test_connections_are_shared(service: Service) -> None:
    """Also those that a client with a pool opens at once. A worker leaves them to another for 20 ms
    at most, and on a busy machine the other may not run meanwhile: so the median counts."""
    largest = []
    for _ in range(5):
        opened = [service.connect() for _ in range(12)]
        for connection in opened:
            assert connection.exchange("GET", "/v2/health/live")[0] == 200
        largest.append(max(Counter(map(service.worker_of, opened)).values()))
        for connection in opened:
            connection.close()
    assert median(largest) <= 7, largest


def test_a_signal_to_a_worker_ends_nothing(service: Service) -> None:
    """Workers ignore SIGTERM and SIGINT: only the main process acts on them."""
    with service.one_each() as each:
        for worker, connection in each.items():
            os.kill(worker, signal.SIGTERM)
            os.kill(worker, signal.SIGINT)
            assert connection.classify(3) == 3
        assert service.workers == set(each)
