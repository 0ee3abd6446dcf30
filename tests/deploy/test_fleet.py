"""The Compose profile `fleet`: Debian's HAProxy with Convoy's configuration in front of two real
servers."""

import itertools
import json
import re
import shutil
import signal
import socket
import statistics
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest

from benchmarks.rows import commit, now, versions
from models import BUILT_IN_MODEL
from service.http.server import bind
from service.settings import load_settings
from tests.deploy.container_files import ROOT, compose_services
from tests.support import PATIENCE_S
from tests.support.servers.control import until
from tests.support.servers.forked import CONVOY, Forked

CONFIGURATION = ROOT / "deploy" / "haproxy" / "haproxy.cfg"
SAMPLES = sorted((BUILT_IN_MODEL.parent / "samples").iterdir())
CLIENTS = 4
LOAD = 0.7
OTHERS = ("/v2/health/ready", "/v1/models")
METRICS = (
    "/metrics",
    "/metrics?x=1",
    "/%6detrics",
    "/%6D%65trics",
    "/metric%73/",
    "//metrics",
    "/./metrics",
    "/%2fmetrics",
    "http://127.0.0.1/%6detrics",
)

needs_haproxy = pytest.mark.skipif(
    shutil.which("haproxy") is None, reason="there is no haproxy; Debian: haproxy"
)


def replica_environment() -> dict[str, str]:
    """Return the settings that Compose passes to a replica."""
    environ = compose_services()["replica"]["environment"]
    return {key: str(value) for key, value in environ.items() if value is not None}


def test_a_replica_gives_notice_for_longer_than_the_checks_take_and_stops_in_time() -> None:
    text = CONFIGURATION.read_text()
    ((interval_ms, checks),) = re.findall(r" check inter (\d+)ms fall (\d+) ", text)
    noticed_s = (1 + int(checks)) * int(interval_ms) / 1e3
    settings = load_settings(environ=replica_environment())
    assert settings.notice_s >= 2 * noticed_s
    replica = compose_services()["replica"]
    grace_s = float(replica["stop_grace_period"].removesuffix("s"))
    assert settings.notice_s + settings.drain_s < grace_s
    assert settings.connections_per_address == settings.max_connections
    (template,) = re.findall(r"server-template replica (\d+)", text)
    assert replica["scale"] <= int(template)
    assert not replica["ports"]


@dataclass
class Replica:
    """A server that can be stopped and restarted on its port, and the logs of its runs."""

    folder: Path
    port: int
    process: Forked = field(init=False)
    runs: int = 0

    def start(self, **environ: str) -> None:
        """Start, and wait until it is ready; `environ` overrides Compose's settings."""
        settings = {
            **replica_environment(),
            "CONVOY_LOG_FORMAT": "json",
            "CONVOY_METRICS_PORT": "0",  # all on one machine
            **environ,
        }
        command = ["serve", "--device", "cpu", "--threads", "1"]
        place = ["--host", "127.0.0.1", "--port", self.port]
        with (self.folder / f"{self.port}-{self.runs}.log").open("w") as log:
            self.process = Forked(
                CONVOY, *command, *place, environ=settings, stdout=subprocess.DEVNULL, stderr=log
            )
        self.runs += 1
        until(lambda: self.process.poll() is not None or self.status() == 200)
        assert self.process.poll() is None

    def kill(self) -> None:
        """Kill it, if it was started."""
        if self.runs:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        """Stop as Compose does; it must exit with status 0 within the grace period."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE_S) == 0

    def status(self) -> int:
        """Return the status of a health check; 0: no connection."""
        address = f"http://127.0.0.1:{self.port}/v2/health/ready"
        try:
            return httpx.get(address, verify=False, timeout=PATIENCE_S).status_code
        except httpx.TransportError:
            return 0

    def answered(self) -> Counter[int]:
        """Return the statuses of all classifications in its access logs."""
        lines = [
            json.loads(line)
            for log in self.folder.glob(f"{self.port}-*.log")
            for line in log.read_text().splitlines()
        ]
        return Counter(line["status"] for line in lines if line.get("method") == "POST")


@dataclass
class Fleet:
    """Two replicas behind HAProxy."""

    replicas: list[Replica]
    url: str

    def wait_until_up(self) -> None:
        """Wait until HAProxy has checked again that all replicas are ready."""
        assert [replica.status() for replica in self.replicas] == [200] * len(self.replicas)
        time.sleep(1)


@contextmanager
def haproxy(folder: Path, ports: Sequence[int]) -> Iterator[str]:
    """Yield the address of HAProxy with Convoy's configuration, in front of these servers instead
    of Compose's."""
    (port,) = free_ports(1)
    servers = "\n".join(f"    server r{p} 127.0.0.1:{p}" for p in ports)
    text, replaced = re.subn(r" +server-template .*", servers, CONFIGURATION.read_text())
    assert replaced == 1
    configuration = folder / "haproxy.cfg"
    configuration.write_text(text.replace("bind :8000", f"bind 127.0.0.1:{port}"))
    with (folder / "haproxy.log").open("wb") as log:
        command = ["haproxy", "-db", "-f", str(configuration)]
        proxy = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        time.sleep(1)  # for a first check of each server
        yield f"http://127.0.0.1:{port}"
    finally:
        proxy.kill()
        proxy.wait()


@contextmanager
def fleet(folder: Path) -> Iterator[Fleet]:
    """Two replicas behind HAProxy."""
    replicas = [Replica(folder, port) for port in free_ports(2)]
    try:
        for replica in replicas:
            replica.start()
        with haproxy(folder, [replica.port for replica in replicas]) as url:
            yield Fleet(replicas, url)
    finally:
        for replica in replicas:
            replica.kill()


def free_ports(count: int) -> list[int]:
    """Return ports that are free now."""
    with ExitStack() as stack:
        bound = [stack.enter_context(bind("127.0.0.1", 0)) for _ in range(count)]
        return [listener.getsockname()[1] for listener in bound]


class Load:
    """Clients that send requests until they are stopped, with pauses of `pause_s`."""

    def __init__(self, url: str, pause_s: float = 0.0) -> None:
        self._url = url
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(CLIENTS)
        self._clients: list[Future[Counter[str]]] = []
        self.durations_s: list[float] = []  # of all requests

    def __enter__(self) -> "Load":
        self._clients = [self._pool.submit(self._ask) for _ in range(CLIENTS)]
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown()

    def outcomes(self) -> Counter[str]:
        """Return the number of requests by outcome: `right`, or the error."""
        return sum((client.result() for client in self._clients), Counter())

    def _ask(self) -> Counter[str]:
        ended: Counter[str] = Counter()
        due = time.monotonic()
        with httpx.Client(timeout=PATIENCE_S, trust_env=False) as client:
            for sample in itertools.cycle(SAMPLES):
                if self._stop.is_set():
                    return ended
                time.sleep(max(0.0, due - time.monotonic()))
                due += self._pause_s
                began = time.monotonic()
                ended[self._one(client, sample)] += 1
                self.durations_s.append(time.monotonic() - began)
        raise AssertionError("the samples never end")

    def _one(self, client: httpx.Client, sample: Path) -> str:
        try:
            answer = client.post(f"{self._url}/v1/classify?top_k=1", content=sample.read_bytes())
        except httpx.TransportError as error:
            return repr(error)
        if answer.status_code != 200:
            return f"{answer.status_code} {answer.text}"
        label = answer.json()["results"][0]["predictions"][0]["label"]
        return "right" if label == sample.name[0] else f"{label} for {sample.name}"


def check(running: Fleet, outcomes: Counter[str]) -> None:
    """Check that every request was answered, and computed once."""
    assert list(outcomes) == ["right"]
    computed = sum((replica.answered() for replica in running.replicas), Counter())
    assert computed[200] == outcomes["right"]
    assert set(computed) <= {200, 503}


@needs_haproxy
def test_nothing_is_lost_or_computed_twice_where_a_server_stops_under_load(tmp_path: Path) -> None:
    with fleet(tmp_path) as running:
        leaving, staying = running.replicas
        with Load(running.url) as load:
            until(lambda: len(load.durations_s) > 40)  # each has about half of them
            leaving.stop()
            time.sleep(1)
        outcomes = load.outcomes()
        staying.stop()  # writes the rest of its log
        assert leaving.answered()[200] > 0
        check(running, outcomes)


@contextmanager
def faulty_servers(fault: int) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the ports of two ready servers, and the statuses of all their POSTs.

    The first POST, to either server, gets the status `fault`; 0: the server closes the connection
    without an answer.
    """
    statuses: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            statuses.append(200 if statuses else fault)
            if statuses[-1]:
                self.send_response(statuses[-1])
                self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ExitStack() as stack:
        servers = [stack.enter_context(HTTPServer(("127.0.0.1", 0), Handler)) for _ in range(2)]
        for server in servers:
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
        yield [server.server_port for server in servers], statuses


@needs_haproxy
@pytest.mark.parametrize(
    ("fault", "size", "status", "computed"),
    [
        pytest.param(503, 1000, 200, [503, 200], id="refused: the other answers"),
        pytest.param(503, 10**6, 503, [503], id="refused, but larger than a buffer"),
        pytest.param(429, 1000, 429, [429], id="a full queue: the client waits"),
        pytest.param(500, 1000, 500, [500], id="failed: not computed again"),
        pytest.param(504, 1000, 504, [504], id="too late: not computed again"),
        pytest.param(0, 1000, 502, [0], id="no answer: not computed again"),
    ],
)
def test_only_what_was_refused_goes_to_another_server(
    tmp_path: Path, fault: int, size: int, status: int, computed: list[int]
) -> None:
    with faulty_servers(fault) as (ports, statuses), haproxy(tmp_path, ports) as url:
        assert httpx.post(url, content=bytes(size), timeout=PATIENCE_S).status_code == status
        assert statuses == computed


def get(url: str, path: str) -> int:
    """Return the status of a GET whose path is sent without normalisation."""
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode())
        with connection.makefile("rb") as answer:
            return int(answer.readline().split()[1])


@needs_haproxy
def test_metrics_of_a_replica_are_not_for_clients(tmp_path: Path) -> None:
    """In every spelling of the path, both the proxy's rule and the separate port keep the metrics
    from clients."""
    replica = Replica(tmp_path, *free_ports(1))
    direct = f"http://127.0.0.1:{replica.port}"
    try:
        replica.start(CONVOY_METRICS_PORT="")
        assert {"/metrics", "/%6detrics"} <= set(found(direct))
        with haproxy(tmp_path, [replica.port]) as proxied:
            assert found(proxied) == list(OTHERS)
        replica.stop()
        replica.start()
        assert found(direct) == list(OTHERS)
    finally:
        replica.kill()


def found(url: str) -> list[str]:
    """Return the paths that are answered with 200."""
    return [path for path in (*METRICS, *OTHERS) if get(url, path) == 200]


@needs_haproxy
@pytest.mark.slow
@pytest.mark.parametrize("most", [16, 200])
def test_rolling_restarts_at_70_percent_load_lose_nothing(
    tmp_path: Path, record_property: Callable[[str, object], None], most: int
) -> None:
    """The summary of this test is a row of benchmarks/results/fleet.jsonl."""
    with fleet(tmp_path) as running:
        began = time.monotonic()
        with Load(running.url) as closed:
            time.sleep(5)
        capacity = closed.outcomes()["right"] / (time.monotonic() - began)
        began = time.monotonic()
        with Load(running.url, pause_s=CLIENTS / (LOAD * capacity)) as load:
            for number in range(most):
                time.sleep(0.5)
                replica = running.replicas[number % len(running.replicas)]
                replica.stop()
                replica.start()
                running.wait_until_up()
            seconds = time.monotonic() - began
        for replica in running.replicas:
            replica.stop()  # writes the rest of its log
        outcomes, restarts = load.outcomes(), sum(each.runs for each in running.replicas) - 2
        row = {
            "at": now(),
            "commit": commit(),
            "versions": versions("uvicorn", "onnxruntime"),
            "proxy": subprocess.check_output(["haproxy", "-v"], text=True).split(" ")[2],
            "seconds": round(seconds, 1),
            "capacity": round(capacity, 1),
            "rate": round(sum(outcomes.values()) / seconds, 1),
            "restarts": restarts,
            "outcomes": outcomes,
            "p50_ms": round(1e3 * statistics.median(load.durations_s), 1),
            "p99_ms": round(1e3 * statistics.quantiles(load.durations_s, n=100)[-1], 1),
        }
        record_property("summary", json.dumps(row))
        assert restarts == most
        check(running, closed.outcomes() + outcomes)
