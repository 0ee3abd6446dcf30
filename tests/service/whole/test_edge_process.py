"""`convoy serve` as users run it: API keys from a file, their rotation, and logs on standard
error."""

import fcntl
import http.client
import json
import re
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from models import BUILT_IN_MODEL
from tests.support import PATIENCE_S
from tests.support.command_line import Run
from tests.support.servers.asked import AskedServer, ServerProcess
from tests.support.servers.control import until
from tests.support.servers.forked import CONVOY, Forked

_SAMPLE = min((BUILT_IN_MODEL.parent / "samples").glob("*")).read_bytes()
_FIRST = {"x-api-key": "first"}


class Serving(AskedServer):
    """A running server, and its log."""

    def __init__(self, process: ServerProcess, port: int, grpc_port: int | None = None) -> None:
        super().__init__(process, port)
        self.grpc_port = grpc_port

    def read(self, path: str) -> str:
        """Return the body of an answer."""
        return self.ask("GET", path).body.decode()

    def classify(self, image: bytes) -> tuple[int, str]:
        """Return the status, and the label or the error's message, for an image."""
        status, answer = self.exchange("POST", "/v1/classify?top_k=1", image)
        if status != 200:
            return status, answer["error"]
        return 200, answer["results"][0]["predictions"][0]["label"]

    def logged(self, pattern: str) -> str:
        """Return the group of a pattern in the first line of the log that matches it."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if found := re.search(pattern, line):
                return found[1]
        raise AssertionError(pattern)

    def stop(self) -> list[str]:
        """Terminate the server, check that it exits normally, and return its log."""
        self.process.terminate()
        _, log = self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode == 0, log
        return log.splitlines()


@contextmanager
def serving(
    *flags: object,
    files: int | None = None,
    environment: Mapping[str, str] | None = None,
    module: str = CONVOY,
) -> Iterator[Serving]:
    """Yield a server. It may open at most `files` files."""
    asked = ("serve", "--port", "0", "--threads", "1", *flags)
    process = Forked(module, *asked, environ=environment, files=files)
    try:
        assert process.stdout is not None
        announced = process.stdout.readline()
        found = re.search(
            r" at http://127\.0\.0\.1:(\d+) (?:and over gRPC at 127\.0\.0\.1:(\d+) )?", announced
        )
        assert found, process.communicate()
        yield Serving(process, int(found[1]), int(found[2]) if found[2] else None)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    file.write_text("first\n")
    file.chmod(0o600)
    return file


@pytest.mark.parametrize(
    ("level", "probes"), [("info", []), ("debug", [("/v2/health/ready", 200, "DEBUG")])]
)
def test_keys_and_a_log_of_json_and_a_hangup_reads_the_keys_again(
    keys: Path, level: str, probes: list[tuple[str, int, str]]
) -> None:
    flags = ("--api-key-file", keys, "--log-format", "json", "--log-level", level)
    with serving(*flags) as server:
        assert server.ask("GET", "/v2/health/ready").status == 200
        assert server.ask("POST", "/v1/classify", _SAMPLE).status == 401
        named = {**_FIRST, "x-request-id": "mine"}
        answer = server.ask("POST", "/v1/classify?top_k=1", _SAMPLE, named)
        assert (answer.status, answer.headers["x-request-id"]) == (200, "mine")
        keys.write_text("second\n")
        server.process.send_signal(signal.SIGHUP)
        until(lambda: server.ask("GET", "/v2", headers=_FIRST).status == 401)
        assert server.ask("GET", "/v2", headers={"authorization": "Bearer second"}).status == 200
        lines: list[dict[str, Any]] = [json.loads(line) for line in server.stop()]
    requests = [line for line in lines if line["logger"] == "convoy.access"]
    first = [(line["path"], line["status"], line["level"]) for line in requests]
    assert first[: len(probes) + 2] == [
        *probes,
        ("/v1/classify", 401, "INFO"),
        ("/v1/classify", 200, "INFO"),
    ]
    (scored,) = [line for line in requests if "model" in line]
    assert (scored["id"], scored["model"], scored["images"]) == ("mine", "digits", 1)
    said = [line["message"] for line in lines if line["logger"] == "convoy"]
    assert any("read 1 API keys" in message for message in said)
    assert any("shutting down" in message for message in said)


def test_the_log_can_do_without_requests() -> None:
    with serving("--no-access-log", environment={"CONVOY_LOG_FORMAT": "json"}) as server:
        server.ask("GET", "/v2")
        loggers = {json.loads(line)["logger"] for line in server.stop()}
    assert "convoy.access" not in loggers


def test_a_log_that_nobody_reads_holds_nothing_up() -> None:
    with serving() as server:
        path = "/" + "x" * 180
        assert server.process.stderr is not None
        size = 65_536
        if sys.platform == "linux":  # elsewhere a pipe has its usual size
            size = fcntl.fcntl(server.process.stderr, fcntl.F_SETPIPE_SZ, 8192)
        asked = 2 * size // len(path)  # requests, whose lines are twice what the pipe takes
        with closing(
            http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
        ) as one:
            for _ in range(asked):
                one.request("GET", path)
                assert one.getresponse().read()
        log = server.stop()  # reads it at last
    line = r'\S+Z INFO convoy.access: "\S+" "127.0.0.1" GET "/x{180}" 404 in=0 out=\d+ us=\d+'
    assert sum(bool(re.fullmatch(line, one)) for one in log) == asked  # text, unless said otherwise


def test_connections_are_bounded_by_what_the_system_allows() -> None:
    with serving("--max-connections-per-address", 1000, files=64) as server:
        kept = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
        until(lambda: server.ask("GET", "/v2/health/live").status == 200)
        for connection in kept:
            connection.close()
        log = server.stop()
    found = re.search(r"at most (\d+) connections are allowed: .* open files to 64", "\n".join(log))
    assert found
    assert 8 <= int(found[1]) <= 40
    assert not any("Too many open files" in line for line in log)


@pytest.mark.parametrize(
    ("text", "problem"), [("", "has no key"), ("# none\n", "has no key"), ("two words\n", "line 1")]
)
def test_a_file_of_keys_that_makes_no_sense_ends_with_status_2(
    convoy: Run, keys: Path, text: str, problem: str
) -> None:
    keys.write_text(text)
    status, out, error = convoy("serve", "--port", "0", "--api-key-file", keys)
    assert (status, out) == (2, "")
    assert error.startswith("Error: --api-key-file: ")
    assert problem in error


def test_a_file_of_keys_that_is_not_there_ends_with_status_2(convoy: Run, tmp_path: Path) -> None:
    status, _, error = convoy("serve", "--port", "0", "--api-key-file", tmp_path / "none")
    assert (status, error) == (
        2,
        f"Error: --api-key-file: cannot read {tmp_path / 'none'}: No such file or directory\n",
    )


def test_a_hangup_without_keys_is_noted_and_no_more() -> None:
    with serving() as server:
        server.process.send_signal(signal.SIGHUP)
        assert server.ask("POST", "/v1/classify", _SAMPLE).status == 200
        log = server.stop()
    assert any("SIGHUP: there is no file to read again" in line for line in log)


def test_a_hangup_while_models_are_loaded_ends_nothing() -> None:
    with serving(module="tests.support.servers.hung_up_server") as server:
        assert server.ask("POST", "/v1/classify", _SAMPLE).status == 200
        server.stop()


def test_metrics_may_have_a_port_of_their_own(keys: Path) -> None:
    flags = ("--metrics-port", "0", "--api-key-file", keys)
    with serving(*flags) as server:
        assert server.ask("POST", "/v1/classify", _SAMPLE, _FIRST).status == 200
        assert server.ask("GET", "/metrics", headers=_FIRST).status == 404
        port = int(server.logged(r"metrics are on port (\d+)"))
        silent = socket.create_connection(("127.0.0.1", port))  # does not keep others waiting
        scraped = Serving(server.process, port)
        # A request is counted after its answer is sent.
        for line in (
            'convoy_requests_total{model="digits",status="200"} 1.0',
            'nv_inference_request_success{model="digits",version="1"} 1',
        ):
            until(lambda line=line: line in scraped.read("/metrics"))  # type: ignore[misc]
        assert scraped.ask("GET", "/v1/classify").status == 404
        silent.close()
        server.stop()


def test_a_metrics_port_that_is_taken_is_said_at_once(convoy: Run) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        status, _, error = convoy("serve", "--port", 0, "--metrics-port", port)
    assert status == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in error
    assert "--metrics-port" in error
