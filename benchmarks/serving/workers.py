"""Measures what `--workers` gains: requests a second with and without it, in alternation.

    python -m benchmarks.serving.workers [--workers N ...] [--seconds S] [--record [FILE]]

Two kinds of work: none (`no-op`: no decoder and no engine, so all that is left is HTTP and the way
between the processes), and decoding a JPEG of 640×480 and 100 kB, still without an engine. The
client runs on the same cores, and is busy too; on few cores that is what bounds all of them.
"""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from socket import socket

from rich.console import Console
from rich.table import Table

from benchmarks.rows import RESULTS, add_record, append
from benchmarks.serving import targets
from benchmarks.serving.http_client import post_request
from benchmarks.serving.overhead import (
    BODY_BYTES,
    CONNECTIONS,
    Throughput,
    jpeg_of,
    measure_throughput,
    serving,
    wait_until_ready,
    where,
)

_KINDS: Mapping[str, Callable[[int], Callable[[socket], None]]] = {
    "no-op": targets.no_op,
    "decoding": targets.decoding,
}


def measure(kind: str, workers: Sequence[int], seconds: float) -> dict[int, Throughput]:
    """Return the throughput with each number of workers, for about `seconds` each, in turns."""
    request = post_request("/v1/classify", jpeg_of(BODY_BYTES), "image/jpeg")
    with ExitStack() as servers:
        addresses = {str(n): servers.enter_context(serving(_KINDS[kind](n))) for n in workers}
        for address in addresses.values():
            wait_until_ready(address)
        measure_throughput(addresses, request, CONNECTIONS, 1)  # warm
        measured = measure_throughput(addresses, request, CONNECTIONS, seconds)
    return {n: measured[str(n)] for n in workers}


def main(command_line: Sequence[str] | None = None) -> None:
    """Measure, print, and write down what is requested."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving.workers", description=__doc__
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2], help="(0 2)")
    parser.add_argument("--seconds", type=float, default=10, help="of load on each (%(default)s)")
    add_record(parser, RESULTS / "workers.jsonl")
    arguments = parser.parse_args(command_line)
    stands = {
        **where("uvicorn", "uvloop", "pillow"),
        "load_average": round(os.getloadavg()[0], 2),
        "body_bytes": BODY_BYTES,
    }
    rows = []
    table = Table(title=f"{CONNECTIONS} connections, {BODY_BYTES // 1000} kB JPEG")
    for heading in ("work", "workers", "requests/s", "ratio", "p50 ms", "p99 ms"):
        table.add_column(heading, justify="left" if heading == "work" else "right")
    for kind in _KINDS:
        measured = measure(kind, arguments.workers, arguments.seconds)
        first = measured[arguments.workers[0]].requests_a_second
        for n, row in measured.items():
            rows.append({**stands, "work": kind, "workers": n, **asdict(row)})
            numbers = (row.requests_a_second, row.requests_a_second / first)
            table.add_row(
                *(kind, str(n), f"{numbers[0]:.0f}", f"{numbers[1]:.2f}"),
                *(f"{row.p50_ms:.2f}", f"{row.p99_ms:.2f}"),
            )
    Console(highlight=False).print(table)
    if arguments.record:
        append(arguments.record, rows)


if __name__ == "__main__":
    main()
