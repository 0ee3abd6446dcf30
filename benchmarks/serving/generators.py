"""Load generators side by side: `convoy loadtest` and Locust, against a server that does nothing.

    python -m benchmarks.serving.generators --locust FILE [--seconds S] [--turns N] [--record]

FILE is the `locust` program of an environment that has it. Cost: eight closed-loop clients post
10 kB; the server counts the requests, and the kernel the generator's CPU time. Omission: 100
requests per second for 5 s to a server that stops for 1 s. The generator and the server have one
core each, and the generators take turns.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.rows import RESULTS, ROOT, append
from benchmarks.serving.http_client import get_request
from benchmarks.serving.overhead import CONNECTIONS, jpeg_of, where
from benchmarks.serving.poisson import on_cores
from benchmarks.serving.served import CONVOY

RECORD = RESULTS / "generators.jsonl"
BODY_BYTES = 10_000

RATE = 100
USERS = 10  # of Locust, each with a tenth of the rate
LOAD_S = 5
STALL_S = 1.0
STALL_AT = 200  # the request that the server stops at

# A fifth of the requests is due while the server stops, evenly, and waits for the rest of it.
EXPECTED_MS = {
    "mean": 1e3 * STALL_S**2 / 2 / LOAD_S,
    "p90": 1e3 * (STALL_S - 0.10 * LOAD_S),
    "p99": 1e3 * (STALL_S - 0.01 * LOAD_S),
}

_WARM_S = 3.0
_BODY = b'{"results":[{"predictions":[{"index":1,"probability":1}]}]}'
_ANSWER = f"HTTP/1.1 200 OK\r\nContent-Length: {len(_BODY)}\r\n\r\n".encode() + _BODY
_NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"

Count = Any  # multiprocessing.Value's own class is private


class Answering(asyncio.Protocol):
    """Counts POSTs and answers each with one prediction; stops once, for STALL_S."""

    def __init__(self, count: Count, stall_at: int | None) -> None:
        self._count = count
        self._stall_at = stall_at
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it

    def data_received(self, data: bytes) -> None:
        """Answer a request once all of it is there."""
        self._received += data
        head, blank_line, body = self._received.partition(b"\r\n\r\n")
        if not blank_line:
            return
        if not head.startswith(b"POST "):
            self._received.clear()
            self._transport.write(_NOT_FOUND)
            return
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        if len(body) < int(length):
            return
        self._received.clear()
        self._count.value += 1
        if self._count.value == self._stall_at:
            time.sleep(STALL_S)
        self._transport.write(_ANSWER)


def answer_all(listener: socket.socket, count: Count, stall_at: int | None) -> None:
    """Serve until SIGTERM."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Answering(count, stall_at), sock=listener)
        await server.serve_forever()

    uvloop.run(main())


@contextmanager
def answering(cores: Sequence[int], stall_at: int | None = None) -> Iterator[tuple[str, Count]]:
    """The URL of such a server in a process of its own, and its count of POSTs."""
    context = multiprocessing.get_context("spawn")
    count = context.Value("q", 0, lock=False)
    with socket.create_server(("127.0.0.1", 0)) as listener, on_cores(cores):
        process = context.Process(target=answer_all, args=(listener, count, stall_at))
        process.start()
        address = listener.getsockname()
    try:
        with socket.create_connection(address) as probe:
            probe.sendall(get_request("/metrics"))
            probe.recv(100)  # from here on no request waits for the server to start
        yield f"http://127.0.0.1:{address[1]}", count
    finally:
        process.terminate()
        process.join()


def convoy(url: str, images: Path, *options: str) -> list[str]:
    """The command line of `convoy loadtest`."""
    return [*CONVOY, "loadtest", url, "--images", str(images), "--warmup", "0", *options]


def locust(program: Path, url: str, images: Path, users: int, *options: str) -> list[str]:
    """The command line of Locust with the project's locustfile, all users at once."""
    profile = ROOT / "deploy" / "loadtest" / "locustfile.py"
    command = [str(program), "-f", str(profile), "--host", url, "--images", str(images)]
    return [*command, "--headless", "--json", "-u", str(users), "-r", str(users), *options]


def cpu_s(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cost(command: Sequence[str], count: Count, seconds: float, cores: Sequence[int]) -> Any:
    """Requests per second, and per second of CPU time, of a generator that is warm."""
    with on_cores(cores):
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    try:
        while not count.value:
            if process.poll() is not None:
                raise RuntimeError(f"{command[0]} ended with status {process.returncode}")
            time.sleep(0.05)
        time.sleep(_WARM_S)
        begin, n, cpu = time.perf_counter(), count.value, cpu_s(process.pid)
        time.sleep(seconds)
        while not (used_s := cpu_s(process.pid) - cpu):  # on a busy machine
            time.sleep(seconds)
        requests = count.value - n
        wall_s = time.perf_counter() - begin
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()
    return {
        "requests": requests,
        "requests_a_second": requests / wall_s,
        "requests_a_cpu_second": requests / used_s,
        "cores_used": used_s / wall_s,
    }


def recorded_by_convoy(command: Sequence[str], file: Path) -> Mapping[str, float]:
    """EXPECTED_MS as recorded, and the requests, from the JSON report."""
    subprocess.run([*command, "--json", str(file)], cwd=ROOT, capture_output=True, check=True)
    (load,) = json.loads(file.read_text())["loads"]
    return {
        "requests": load["requests"],
        **{name: load["latency_ms"][name] for name in EXPECTED_MS},
    }


def recorded_by_locust(command: Sequence[str]) -> Mapping[str, float]:
    """EXPECTED_MS as recorded, and the requests, from the JSON on standard output."""
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    (entry,) = json.loads(run.stdout)
    n, times = entry["num_requests"], entry["response_times"]
    mean = entry["total_response_time"] / n
    return {"requests": n, "mean": mean, "p90": percentile(times, 90), "p99": percentile(times, 99)}


def percentile(histogram: Mapping[str, int], percent: int) -> float:
    """The least value that so many percent of a histogram's entries do not exceed."""
    left = -(-percent * sum(histogram.values()) // 100)
    for value, n in sorted((float(value), n) for value, n in histogram.items()):
        left -= n
        if left <= 0:
            return value
    raise ValueError("an empty histogram")


def measure(program: Path | None, images: Path, seconds: float) -> list[dict[str, Any]]:
    """One turn: each generator's cost, then what each records of a server that stops."""
    cores = sorted(os.sched_getaffinity(0))
    mine, servers = cores[:1], cores[-1:]
    lasts = f"{seconds + _WARM_S + 60:g}s"  # it is ended before
    rows = []

    def row(kind: str, generator: str, found: Mapping[str, Any]) -> None:
        rows.append({"measured": kind, "generator": generator, **found})

    with answering(servers) as (url, count):
        clients = str(CONNECTIONS)
        command = convoy(url, images, "--clients", clients, "--duration", lasts)
        row("cost", "convoy loadtest", cost(command, count, seconds, mine))
    if program:
        with answering(servers) as (url, count):
            command = locust(program, url, images, CONNECTIONS, "--run-time", lasts)
            row("cost", "locust", cost(command, count, seconds, mine))
    # The first request of `convoy loadtest` is one more, before the load.
    load = ("--rate", str(RATE), "--arrivals", "even", "--duration", f"{LOAD_S}s")
    with answering(servers, STALL_AT + 1) as (url, _), on_cores(mine):
        found = recorded_by_convoy(convoy(url, images, *load), images.parent / "it.json")
        row("omission", "convoy loadtest", found)
    if program:
        with answering(servers, STALL_AT) as (url, _), on_cores(mine):
            options = ("--rate", str(RATE / USERS), "--run-time", f"{LOAD_S}s")
            found = recorded_by_locust(locust(program, url, images, USERS, *options))
            row("omission", "locust", found)
    return rows


def show(rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    """A line for each measurement."""
    tables = (
        ("cost", "8 clients, 10 kB", ("requests_a_second", "requests_a_cpu_second", "cores_used")),
        ("omission", "a server that stops for 1 s; ms", ("requests", *EXPECTED_MS)),
    )
    for kind, title, columns in tables:
        table = Table("generator", *columns, title=title, title_justify="left")
        for each in rows:
            if each["measured"] == kind:
                table.add_row(each["generator"], *(f"{each[name]:.2f}" for name in columns))
        if kind == "omission":
            expected = (RATE * LOAD_S, *EXPECTED_MS.values())
            table.add_row("expected", *(f"{value:.2f}" for value in expected))
        console.print(table)


def main(command_line: Sequence[str] | None = None) -> None:
    """Measure, show, and record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.generators")
    parser.add_argument("--locust", type=Path, metavar="FILE", help="the program of Locust")
    parser.add_argument("--seconds", type=float, default=5, help="of each cost (%(default)s)")
    parser.add_argument("--turns", type=int, default=1, help="(%(default)s)")
    parser.add_argument("--record", action="store_true", help=f"append to {RECORD.name}")
    arguments = parser.parse_args(command_line)
    versions = where("aiohttp", "uvloop")
    if arguments.locust:
        told = subprocess.run([arguments.locust, "--version"], capture_output=True, check=True)
        versions["locust"] = told.stdout.decode().split()[1]
    rows: list[dict[str, Any]] = []
    with TemporaryDirectory() as folder:
        images = Path(folder) / "images"
        images.mkdir()
        (images / "it.jpg").write_bytes(jpeg_of(BODY_BYTES))
        for _ in range(arguments.turns):
            busy = {"load_average": round(os.getloadavg()[0], 2), "nice": os.nice(0)}
            measured = measure(arguments.locust, images, arguments.seconds)
            rows += [{**versions, **busy, "body_bytes": BODY_BYTES, **row} for row in measured]
    show(rows, Console(highlight=False))
    if arguments.record:
        append(RECORD, rows)


if __name__ == "__main__":
    main()
