"""Measures how much time Convoy adds to an HTTP request, by comparing Convoy with simpler servers.

    python -m benchmarks.serving.overhead [--requests N] [--beside CHECKOUT] [--record [FILE]]

Convoy's engine and decoder are replaced by versions that do nothing. So the measured time is spent
on the server's other work: limits, threads, batcher, metrics and JSON. Three other
servers read the same body and answer with some JSON. Two of them, an ASGI route and a FastAPI
route, use Convoy's HTTP connections. They show how much the application and the framework add. The
third is a FastAPI route served by `uvicorn module:app`. Each server is a separate process on a
loopback port, and this process is the client. Requests are sent to the servers alternately (A B C,
C B A, ...), so other programs on the machine affect all servers equally. `--beside` adds the Convoy
of another checkout.
"""

import argparse
import io
import multiprocessing
import os
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

from benchmarks.rows import RESULTS, add_record, append, commit, now, versions
from benchmarks.serving.http_client import (
    Address,
    Connection,
    answers,
    closed_loop,
    get_request,
    post_request,
)
from benchmarks.serving.targets import BESIDE, CONVOY, TARGETS, UVICORN, serve_checkout
from service.machine.cores import available_cores, cpu_model

BODY_BYTES = 100_000
BODIES = (10_000, BODY_BYTES)
CONNECTIONS = 8
RECORD = RESULTS / "service.jsonl"

# The server with which the others are compared.
YARDSTICK = next(iter(TARGETS))

# The project promises, compared with the first target: this much overhead for one request at a
# time, and this share of its requests per second under load.
MOST_ADDED_MS = 0.3
LEAST_SHARE = 0.8


@dataclass(frozen=True)
class Latency:
    """Holds latency percentiles, measured on one connection with one request at a time."""

    n: int
    p20_ms: float
    p50_ms: float
    p80_ms: float
    p99_ms: float


@dataclass(frozen=True)
class Throughput:
    """Holds the throughput and latencies with several connections. Each connection sends its next
    request when the previous request is answered."""

    connections: int
    n: int
    requests_a_second: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True)
class Measurement:
    """Holds the measurements of one server."""

    target: str
    body_bytes: int
    latency: Latency
    throughput: Throughput


def jpeg_of(size: int) -> bytes:
    """Return a valid JPEG of exactly `size` bytes. It shows smooth noise, and a comment pads the
    file. The number of pixels is proportional to the size: a JPEG of 100 kB has 640×480 pixels."""
    scale = (size / 100_000) ** 0.5
    width, height = round(640 * scale), round(480 * scale)
    pixels = np.random.default_rng(0).integers(0, 256, (24, 32, 3), np.uint8)
    smooth = Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC)
    grain = np.random.default_rng(1).normal(0, 12, (height, width, 3))
    noisy = Image.fromarray(np.clip(np.asarray(smooth) + grain, 0, 255).astype(np.uint8))
    for quality in range(95, 5, -5):
        file = io.BytesIO()
        noisy.save(file, "JPEG", quality=quality)
        data = file.getvalue()
        filling = size - len(data) - 4
        if 0 <= filling <= 0xFFFF - 2:
            comment = b"\xff\xfe" + (filling + 2).to_bytes(2) + bytes(filling)
            return data[:2] + comment + data[2:]
    raise ValueError(f"no JPEG of this kind has {size} bytes; choose a larger size")


@contextmanager
def serving(target: Callable[[socket.socket], None]) -> Iterator[Address]:
    """Start a server in a separate process, and yield its address. End the server after the
    block."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = multiprocessing.get_context("spawn").Process(target=target, args=(listener,))
        process.start()
        address: Address = listener.getsockname()
    try:
        yield address
    finally:
        process.terminate()
        process.join(10)
        if process.is_alive():
            process.kill()
            process.join()


def wait_until_ready(address: Address, timeout_s: float = 60.0) -> None:
    """Wait until the server reports that it is ready."""
    deadline = time.monotonic() + timeout_s
    while not answers(address, get_request("/v2/health/ready")):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the server is not ready within {timeout_s:g} s")
        time.sleep(0.05)


def measure_latency(addresses: Mapping[str, Address], request: bytes, n: int) -> dict[str, Latency]:
    """Send `n` requests to each server, alternating between the servers, on one connection per
    server. Return the latencies."""
    connections = {target: Connection(address) for target, address in addresses.items()}
    for connection in connections.values():
        for _ in range(max(50, n // 20)):
            connection.exchange(request)
    took_ns: dict[str, list[int]] = {target: [] for target in addresses}
    order = list(connections)
    for _ in range(n):
        for target in order:
            took_ns[target].append(connections[target].exchange_ns(request))
        order.reverse()
    for connection in connections.values():
        connection.close()
    return {target: Latency(n, *percentiles_ms(times, 1e-6)) for target, times in took_ns.items()}


def measure_throughput(
    addresses: Mapping[str, Address], request: bytes, connections: int, seconds: float
) -> dict[str, Throughput]:
    """Return the throughput of each server. The servers are measured in turn, half a second each,
    until each was measured for about `seconds`."""
    turn_s = 0.5
    took: dict[str, list[float]] = {target: [] for target in addresses}
    spent = dict.fromkeys(addresses, 0.0)
    order = list(addresses)
    for _ in range(max(1, round(seconds / turn_s))):
        for target in order:
            begin = time.perf_counter()
            took[target] += closed_loop(addresses[target], request, connections, turn_s)
            spent[target] += time.perf_counter() - begin
        order.reverse()
    summary = {}
    for target, times in took.items():
        _, p50, _, p99 = percentiles_ms(times, 1e3)
        summary[target] = Throughput(connections, len(times), len(times) / spent[target], p50, p99)
    return summary


def percentiles_ms(times: Sequence[float], to_ms: float) -> tuple[float, float, float, float]:
    """Return p20, p50, p80 and p99 of the times in ms. `to_ms` converts the times to ms."""
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    return cuts[19] * to_ms, cuts[49] * to_ms, cuts[79] * to_ms, cuts[98] * to_ms


def measure(
    addresses: Mapping[str, Address], body_bytes: int, n: int, seconds: float
) -> list[Measurement]:
    """Measure the latency and then the throughput of all servers."""
    request = post_request("/v1/classify", jpeg_of(body_bytes), "image/jpeg")
    latency = measure_latency(addresses, request, n)
    throughput = measure_throughput(addresses, request, CONNECTIONS, seconds)
    return [
        Measurement(target, body_bytes, latency[target], throughput[target]) for target in addresses
    ]


def where(*packages: str) -> dict[str, str | int]:
    """Return the facts on which measured numbers depend: the time, the code, the processor and the
    versions."""
    return {
        "date": now(),
        "commit": commit(),
        "cpu": cpu_model(),
        "cores": available_cores(),
        **versions(*packages),
    }


def show(measured: Sequence[Measurement], console: Console) -> None:
    """Print the latencies and the throughput for one body size. Also print whether Convoy's
    overhead stays within the promised limits."""
    yardstick = measured[0]
    body = f"{yardstick.body_bytes // 1000} kB JPEG"
    latency = Table(title=f"one connection, {body}, ms", title_justify="left")
    for heading in ("", "p20", "p50", "p80", "p99", "added at p50", "ratio"):
        latency.add_column(heading, justify="right" if heading else "left")
    load = Table(title=f"{CONNECTIONS} connections, {body}", title_justify="left")
    for heading in ("", "requests/s", "of the first", "p50 ms", "p99 ms"):
        load.add_column(heading, justify="right" if heading else "left")
    for row in measured:
        one, many = row.latency, row.throughput
        latency.add_row(
            row.target,
            *(f"{p:.3f}" for p in (one.p20_ms, one.p50_ms, one.p80_ms, one.p99_ms)),
            f"{one.p50_ms - yardstick.latency.p50_ms:+.3f}",
            f"{one.p50_ms / yardstick.latency.p50_ms:.2f}",
        )
        load.add_row(
            row.target,
            f"{many.requests_a_second:.0f}",
            f"{many.requests_a_second / yardstick.throughput.requests_a_second:.0%}",
            f"{many.p50_ms:.3f}",
            f"{many.p99_ms:.3f}",
        )
    console.print(latency, load)
    convoy = next((row for row in measured if row.target == CONVOY), None)
    if convoy is None:
        return
    added_ms = convoy.latency.p50_ms - yardstick.latency.p50_ms
    share = convoy.throughput.requests_a_second / yardstick.throughput.requests_a_second
    for other in measured:
        if other.target in (UVICORN, BESIDE):
            later_ms = convoy.latency.p50_ms - other.latency.p50_ms
            rate = convoy.throughput.requests_a_second / other.throughput.requests_a_second
            console.print(
                f"compared with {other.target}: {later_ms:+.3f} ms "
                f"({later_ms / other.latency.p50_ms:+.1%}) at p50, {rate:.1%} of its requests/s"
            )
    verdict = {True: "met", False: "NOT MET"}
    console.print(
        f"{verdict[added_ms <= MOST_ADDED_MS]}: Convoy adds {added_ms:.3f} ms at p50 "
        f"(promised: at most {MOST_ADDED_MS} ms)\n"
        f"{verdict[share >= LEAST_SHARE]}: Convoy answers {share:.0%} of the requests per second "
        f"of {yardstick.target} (promised: at least {LEAST_SHARE:.0%})"
    )


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving.overhead",
        description="Measure the time that the service adds to HTTP.",
    )
    parser.add_argument(
        "--requests",
        type=int,
        default=2000,
        help="requests to each server for latency (%(default)s)",
    )
    parser.add_argument(
        "--seconds", type=float, default=4, help="seconds of load on each server (%(default)s)"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=list(TARGETS)[1:],
        default=list(TARGETS),
        metavar="SERVER",
        help="servers besides the first; more servers make caches colder (all: %(choices)s)",
    )
    parser.add_argument("--beside", type=Path, help="also measure another checkout of Convoy")
    add_record(parser, RECORD)
    parsed = parser.parse_args(arguments)
    if parsed.requests < 2:
        parser.error("--requests must be at least 2")
    return parsed


def main(command_line: Sequence[str] | None = None) -> None:
    """Measure, print, and record if requested."""
    arguments = parse_arguments(command_line)
    with ExitStack() as servers:
        addresses = {
            name: servers.enter_context(serving(target))
            for name, target in TARGETS.items()
            if name == YARDSTICK or name in arguments.only
        }
        if arguments.beside is not None:
            other = partial(serve_checkout, arguments.beside.resolve())
            addresses[BESIDE] = servers.enter_context(serving(other))
        for address in addresses.values():
            wait_until_ready(address)
        measured = [
            measure(addresses, size, arguments.requests, arguments.seconds) for size in BODIES
        ]
    for round_ in measured:
        show(round_, Console(highlight=False))
    busy = {"load_average": round(os.getloadavg()[0], 2)}
    stands = {**where("uvicorn", "fastapi", "uvloop", "httptools"), **busy}
    rows = [{**stands, **asdict(row)} for round_ in measured for row in round_]
    if arguments.record:
        append(arguments.record, rows)


if __name__ == "__main__":
    main()
