"""What several engines on the CPU are worth: `--devices cpu:K` beside one engine of all threads.

    python -m benchmarks.serving.engines --model FILE --image FILE [--preset NAME] [--engines K]

One round loads both servers, each alone, in turns of half a second. Where the machine does other
work, requests a CPU second of the server tell more than requests a second: what the server needs
does not depend on what it gets.
"""

import argparse
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple
from urllib.parse import urlsplit
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from benchmarks.rows import RESULTS, append
from benchmarks.serving.http_client import post_request
from benchmarks.serving.overhead import (
    CONNECTIONS,
    Throughput,
    measure_throughput,
    wait_until_ready,
    where,
)
from benchmarks.serving.served import served

FILE = RESULTS / "engines.jsonl"


class Side(NamedTuple):
    """One server in one round."""

    engines: int
    requests_a_second: float
    requests_a_cpu_second: float
    p50_ms: float
    p99_ms: float


def measure(
    model: Path, preset: str | None, image: Path, engines: int, rounds: int, seconds: float
) -> list[tuple[Side, Side]]:
    """One engine and several, by round."""
    kind = "image/png" if image.suffix == ".png" else "image/jpeg"
    request = post_request("/v1/classify", image.read_bytes(), kind)
    urls, addresses = {}, {}
    with ExitStack() as servers:
        for side in (1, engines):
            url = servers.enter_context(served(model, preset, ["--devices", f"cpu:{side}"]))
            urls[str(side)], parts = url, urlsplit(url)
            addresses[str(side)] = parts.hostname or "", parts.port or 0
        for address in addresses.values():
            wait_until_ready(address)
        measure_throughput(addresses, request, CONNECTIONS, 2)  # warm
        measured = []
        for _ in range(rounds):
            before = {side: _cpu_s(url) for side, url in urls.items()}
            results = measure_throughput(addresses, request, CONNECTIONS, seconds)
            one, several = (
                _side(int(side), result, _cpu_s(urls[side]) - before[side])
                for side, result in results.items()
            )
            measured.append((one, several))
    return measured


def _side(engines: int, result: Throughput, cpu_s: float) -> Side:
    rates = result.requests_a_second, result.n / cpu_s
    return Side(engines, *rates, result.p50_ms, result.p99_ms)


def _cpu_s(url: str) -> float:
    """CPU seconds of the server's process so far."""
    with urlopen(f"{url}/metrics") as response:
        text = response.read().decode()
    families = text_string_to_metric_families(text)
    samples = (sample for family in families for sample in family.samples)
    return next(s.value for s in samples if s.name == "process_cpu_seconds_total")


def ratios(measured: Sequence[tuple[Side, Side]]) -> dict[str, float]:
    """The medians over the rounds of several engines over one."""
    return {
        name: round(median(getattr(many, name) / getattr(one, name) for one, many in measured), 3)
        for name in Side._fields[1:]
    }


def main(command_line: Sequence[str] | None = None) -> None:
    """Measure, show and record."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving.engines", description=__doc__
    )
    parser.add_argument("--model", type=Path, required=True, help="ONNX file")
    parser.add_argument("--preset", help="preprocessing of --model")
    parser.add_argument("--image", type=Path, required=True, help="JPEG or PNG to send")
    parser.add_argument("--engines", type=int, default=2, help="(%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(%(default)s)")
    parser.add_argument("--seconds", type=float, default=10, help="a round and side (%(default)s)")
    parser.add_argument("--record", action="store_true", help=f"append to {FILE.name}")
    arguments = parser.parse_args(command_line)
    measured = measure(
        arguments.model,
        arguments.preset,
        arguments.image,
        arguments.engines,
        arguments.rounds,
        arguments.seconds,
    )
    table = Table(title=f"{CONNECTIONS} connections", box=None)
    for heading in ("round", "engines", "requests/s", "requests/CPU s", "p50 ms", "p99 ms"):
        table.add_column(heading, justify="right")
    for number, sides in enumerate(measured, 1):
        for engines, *cells in sides:
            table.add_row(str(number), str(engines), *(f"{cell:.2f}" for cell in cells))
    console = Console(highlight=False)
    console.print(table)
    console.print(", ".join(f"{name} {value:.3f}" for name, value in ratios(measured).items()))
    if arguments.record:
        row = {
            **where("uvicorn", "uvloop", "onnxruntime", "pillow"),
            "load_average": round(os.getloadavg()[0], 2),
            "model": arguments.model.name,
            "image_bytes": arguments.image.stat().st_size,
            "engines": arguments.engines,
            "connections": CONNECTIONS,
            "ratios": ratios(measured),
            "rounds": [side._asdict() for sides in measured for side in sides],
        }
        append(FILE, [row])


if __name__ == "__main__":
    main()
