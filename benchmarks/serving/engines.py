"""What several engines on the CPU are worth: `--devices cpu:K` beside one engine of all threads.

    python -m benchmarks.serving.engines --model FILE --image FILE [--preset NAME] [--engines K]

One round loads both servers, each alone, in turns of half a second. The rounds' ratios tell how far
the numbers can be trusted where the machine does other work.
"""

import argparse
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

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


def measure(
    model: Path, preset: str | None, image: Path, engines: int, rounds: int, seconds: float
) -> list[tuple[Throughput, Throughput]]:
    """One engine and several, by round."""
    kind = "image/png" if image.suffix == ".png" else "image/jpeg"
    request = post_request("/v1/classify", image.read_bytes(), kind)
    sides = {"one": ["--device", "cpu"], "several": ["--devices", f"cpu:{engines}"]}
    with ExitStack() as servers:
        addresses = {}
        for side, options in sides.items():
            url = urlsplit(servers.enter_context(served(model, preset, options)))
            addresses[side] = url.hostname or "", url.port or 0
        for address in addresses.values():
            wait_until_ready(address)
        measure_throughput(addresses, request, CONNECTIONS, 2)  # warm
        measured = []
        for _ in range(rounds):
            results = measure_throughput(addresses, request, CONNECTIONS, seconds)
            measured.append((results["one"], results["several"]))
    return measured


def ratio(measured: Sequence[tuple[Throughput, Throughput]], field: str) -> float:
    """The median over the rounds of several engines over one."""
    return float(median(getattr(several, field) / getattr(one, field) for one, several in measured))


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
    for heading in ("round", "engines", "requests/s", "p50 ms", "p99 ms"):
        table.add_column(heading, justify="right")
    for number, sides in enumerate(measured, 1):
        for engines, side in zip((1, arguments.engines), sides, strict=True):
            cells = side.requests_a_second, side.p50_ms, side.p99_ms
            table.add_row(str(number), str(engines), *(f"{cell:.2f}" for cell in cells))
    console = Console(highlight=False)
    console.print(table)
    ratios = {name: ratio(measured, name) for name in ("requests_a_second", "p50_ms", "p99_ms")}
    console.print(", ".join(f"{name} {value:.3f}" for name, value in ratios.items()))
    if arguments.record:
        row = {
            **where("uvicorn", "uvloop", "onnxruntime", "pillow"),
            "load_average": round(os.getloadavg()[0], 2),
            "model": arguments.model.name,
            "image_bytes": arguments.image.stat().st_size,
            "engines": arguments.engines,
            "ratios": {name: round(value, 3) for name, value in ratios.items()},
            "one": [asdict(one) for one, _ in measured],
            "several": [asdict(several) for _, several in measured],
        }
        append(FILE, [row])


if __name__ == "__main__":
    main()
