"""How a service with workers ends: by signals, without its engine, or as workers cannot live."""

import json
import os
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

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
from tests.support.servers.several_models import CHANNELS, SAMPLES, convoy_serve, make_models


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


def test_readiness_of_every_worker_fails_before_requests_are_refused(tmp_path: Path) -> None:
    with running(tmp_path, "--notice-s", "1.5") as service, service.one_each() as each:
        service.process.terminate()
        for worker in each.values():
            while worker.exchange("GET", "/v2/health/ready")[0] != 503:
                time.sleep(0.01)
        assert [worker.classify(n) for n, worker in enumerate(each.values())] == [*range(WORKERS)]
        assert service.process.wait(10) == 0
        assert service.process.stderr is not None
        # Workers do not wait a second time.
        assert service.process.stderr.read().count("shutting down in") == 1


def test_the_answers_of_every_worker_end_connections_from_the_start_of_the_notice(
    tmp_path: Path,
) -> None:
    with running(tmp_path, "--notice-s", "2") as service, service.one_each() as each:
        service.process.terminate()
        for connection in each.values():
            while True:
                connection.request("GET", "/v2/health/ready")
                answer = connection.getresponse()
                answer.read()
                if answer.status == 503:
                    break
            assert answer.getheader("connection") == "close"
            connection.request("POST", "/v1/classify", b"7")
            answer = connection.getresponse()
            assert (answer.status, answer.getheader("connection")) == (200, "close")
            answer.read()
        assert service.process.wait(10) == 0


def test_connections_that_wait_as_workers_leave_are_answered(tmp_path: Path) -> None:
    with running(tmp_path, "--notice-s", "0.2") as service:
        service.process.terminate()
        statuses = Counter[int]()
        resets = 0
        with suppress(ConnectionRefusedError):
            while True:
                with closing(service.connect()) as connection:
                    try:
                        statuses[connection.exchange("POST", "/v1/classify", b"1")[0]] += 1
                    except ConnectionResetError:
                        resets += 1
        assert set(statuses) <= {200, 503}
        # One that comes between a worker's last look and the end of its socket, the kernel resets.
        assert resets <= 1
        assert service.process.wait(10) == 0


def test_a_sigterm_to_every_process_lets_what_is_inside_finish_too(tmp_path: Path) -> None:
    with running(tmp_path) as service, ThreadPoolExecutor(WORKERS) as pool:
        with service.one_each() as each:
            workers = service.workers
            with service.holding():
                inside = [pool.submit(c.classify, n) for n, c in enumerate(each.values())]
                until(lambda: service.metric("convoy_images_inside") == WORKERS)
                # As systemd does it, and timeout(1).
                for process in (*workers, *children(service.process.pid), service.process.pid):
                    os.kill(process, signal.SIGTERM)
                with closing(service.connect()) as asking:
                    until(lambda: asking.exchange("GET", "/v2/health/ready")[0] == 503)
            assert [request.result() for request in inside] == list(range(WORKERS))
        assert service.process.wait(10) == 0
        assert not any(is_there(worker) for worker in workers)


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


def test_a_worker_that_does_not_leave_is_ended(tmp_path: Path) -> None:
    with running(tmp_path, "--drain-s", "0.1") as service:
        workers = service.workers
        os.kill(min(workers), signal.SIGSTOP)
        service.process.terminate()
        assert service.process.wait(20) == 1
        until(lambda: not any(is_there(worker) for worker in workers))
        assert service.process.stderr is not None
        assert "Traceback" not in service.process.stderr.read()


def test_a_worker_that_is_killed_just_before_the_signal_is_logged(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        os.kill(min(service.workers), signal.SIGKILL)
        service.process.terminate()
        status = service.process.wait(20)
        assert service.process.stderr is not None
        error = service.process.stderr.read()
    assert "ended with status -9" in error
    assert status == (0 if "another takes its place" in error else 1)
    assert "Traceback" not in error


def test_without_the_process_that_forked_the_workers_all_is_answered_and_the_status_is_0(
    tmp_path: Path,
) -> None:
    with running(tmp_path) as service, ThreadPoolExecutor(WORKERS) as pool:
        (forker,) = (child for child in children(service.process.pid) if children(child))
        with service.one_each() as each:
            with service.holding():
                inside = [pool.submit(c.classify, n) for n, c in enumerate(each.values())]
                until(lambda: service.metric("convoy_images_inside") == WORKERS)
                os.kill(forker, signal.SIGKILL)
                until(lambda: not is_there(forker))
                service.process.terminate()
            assert [request.result() for request in inside] == list(range(WORKERS))
        assert service.process.wait(20) == 0
        assert service.process.stderr is not None
        assert "ended with" not in service.process.stderr.read()


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


def test_every_worker_says_why_a_model_is_not_served(tmp_path: Path) -> None:
    with running(tmp_path, "--cannot-warm-up", "--lenient") as service:
        with service.one_each() as each:
            for connection in each.values():
                _, body = connection.exchange("GET", "/v1/models")
                told = {model["name"]: (model["state"], model["error"]) for model in body["models"]}
                assert told["fake"] == ("broken: its engine did not warm up", "no memory")
                assert told["other"] == ("ready", "")
                _, index = connection.exchange("POST", "/v2/repository/index", b"{}")
                assert {entry["name"]: entry["reason"] for entry in index} == {
                    "fake": "no memory",
                    "other": "",
                }
                assert connection.classify(3, "other") == 6
        service.process.terminate()
        assert service.process.wait(30) == 0


def test_the_command_serves_several_models_with_workers(tmp_path: Path) -> None:
    models = make_models(tmp_path)
    (models / "broken").mkdir()
    with convoy_serve(models, "--workers", str(WORKERS), "--default-model", "digits") as port:
        for path in ("/v1/classify", "/v1/models/digits/classify"):
            with closing(Connection(port)) as connection:
                picture = SAMPLES[7].read_bytes()
                headers = {"Content_Type": "image/png"}
                status, body = connection.exchange("POST", path, picture, **headers)
                assert (status, body["results"][0]["predictions"][0]["label"]) == (200, "7")
        with closing(Connection(port)) as connection:
            pixels = {"name": "image", "datatype": "UINT8", "shape": [1, 4, 6, 3]}
            asked = json.dumps({"inputs": [{**pixels, "data": list(range(72))}]}).encode()
            status, body = connection.exchange("POST", f"/v2/models/{CHANNELS}/infer", asked)
            assert status == 200, body
            (output,) = body["outputs"]
            assert output["shape"] == [1, 3]
            assert output["data"] == pytest.approx([34.5, 35.5, 36.5])
            status, body = connection.exchange("GET", "/v2/models/stats")
            told = {model["name"]: model["inference_count"] for model in body["model_stats"]}
            assert told == {CHANNELS: 1, "digits": 2}
            status, body = connection.exchange("GET", "/v2/health/ready")
            assert status == 200
        with closing(Connection(port)) as connection:
            status, body = connection.exchange("GET", "/v2/models/broken/ready")
            assert (status, "has no model.onnx" in body["error"]) == (503, True)
