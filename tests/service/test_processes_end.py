"""How a service with workers ends: by signals, without its engine, or as workers cannot live."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from tests.service.real_workers import WORKERS, Service, children, is_there, running, until


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_what_is_inside_finish_and_the_exit_status_is_0(
    number: signal.Signals, tmp_path: Path
) -> None:
    with running(tmp_path) as service, ThreadPoolExecutor(WORKERS) as pool:
        with service.one_each() as each:
            workers = service.workers
            with service.holding():
                inside = [pool.submit(c.classify, n) for n, c in enumerate(each.values())]
                until(lambda: service.metric("convoy_images_inside") == WORKERS)
                if number == signal.SIGINT:  # as Ctrl-C: to all of them
                    for process in (*workers, *children(service.process.pid)):
                        os.kill(process, number)
                service.process.send_signal(number)
                with closing(service.connect()) as asking:
                    until(lambda: asking.exchange("GET", "/v2/health/ready")[0] == 503)
                    status, error = asking.exchange("POST", "/v1/classify", b"1")
                    assert status == 503, error
            assert [request.result() for request in inside] == list(range(WORKERS))
        assert service.process.wait(10) == 0
        assert not any(is_there(worker) for worker in workers)
        with pytest.raises(ConnectionRefusedError):
            service.connect()


def test_a_second_signal_gives_up_what_is_inside(tmp_path: Path) -> None:
    with running(tmp_path) as service, ThreadPoolExecutor(WORKERS) as pool:
        with service.one_each() as each, service.holding():
            inside = [pool.submit(c.classify, n) for n, c in enumerate(each.values())]
            until(lambda: service.metric("convoy_images_inside") == WORKERS)
            service.process.terminate()
            with closing(service.connect()) as asking:
                until(lambda: asking.exchange("GET", "/v2/health/ready")[0] == 503)
            service.process.terminate()
            for request in inside:
                answer = request.result()
                assert isinstance(answer, tuple)
                assert answer[0] == 503
        assert service.process.wait(15) == 1


def test_workers_leave_when_the_engines_process_is_gone(tmp_path: Path) -> None:
    with running(tmp_path) as service, ThreadPoolExecutor(1) as pool:
        with service.one_each() as each:
            workers = service.workers
            processes = workers | children(service.process.pid)
            with service.holding():
                inside = pool.submit(next(iter(each.values())).classify, 1)
                until(lambda: service.metric("convoy_images_inside") == 1)
                service.process.kill()
                answer = inside.result()
                assert isinstance(answer, tuple)
                assert answer[0] == 503
                assert "the engine's process ended" in answer[1]
        until(lambda: not any(is_there(process) for process in processes))


def test_workers_that_cannot_live_end_the_service_with_a_reason(tmp_path: Path) -> None:
    service = Service(tmp_path, "--die")
    out, error = service.process.communicate(timeout=60)
    assert service.process.returncode == 1
    assert out == ""
    assert "as soon as it was started, 5 times in a row" in error


def test_an_engine_that_cannot_be_warmed_up_ends_the_service_with_its_reason(
    tmp_path: Path,
) -> None:
    service = Service(tmp_path, "--cannot-warm-up")
    out, error = service.process.communicate(timeout=60)
    assert service.process.returncode == 1
    assert out == ""
    assert error.rstrip().endswith("EngineError: fake: no memory")
