"""MLPerf's four scenarios, by its own LoadGen, against a server over HTTP and its engine alone.

Run by `python -m benchmarks.serving.overhead --mlperf`. These are no submissions: those run each
scenario for 600 seconds and more, on a data set and to an accuracy that MLPerf prescribes.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.rows import RESULTS, ROOT
from benchmarks.serving.served import served_on_cpu

RECORD = RESULTS / "mlperf.jsonl"

# Server's rate is the scenario's own to choose: these shares of Offline's, until one is in bound.
SHARES = (0.9, 0.75, 0.6, 0.45, 0.3, 0.15)

# What the numbers depend on beside Convoy.
PACKAGES = ("onnxruntime", "numpy", "pillow", "uvicorn", "uvloop", "mlcommons-loadgen")

OVER_HTTP, ENGINE = "HTTP", "engine"
MEANING = {
    "SingleStream": "p90 {:.2f} ms",
    "MultiStream": "p99 {:.2f} ms",
    "Server": "{:.1f} samples/s",
    "Offline": "{:.1f} samples/s",
}


@dataclass(frozen=True)
class Served:
    """What is measured."""

    model: Path
    preset: str | None
    images: Path


class NotInstalledError(Exception):
    """LoadGen is not installed."""


def run_job(**job: Any) -> dict[str, Any]:
    """One scenario in a process of its own; its Result."""
    command = [sys.executable, "-m", "benchmarks.serving.mlperf_scenario", json.dumps(job)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def measure(served: Served, seconds: float, bound_ms: float) -> list[dict[str, Any]]:
    """A row a target and scenario. NotInstalledError where LoadGen is missing."""
    if find_spec("mlperf_loadgen") is None:
        raise NotInstalledError("LoadGen is not installed: pip install mlcommons-loadgen")
    with served_on_cpu(served.model, served.preset) as url:
        over_http = scenarios(served, url, seconds, bound_ms)
    return over_http + scenarios(served, None, seconds, bound_ms)


def scenarios(
    served: Served, url: str | None, seconds: float, bound_ms: float
) -> list[dict[str, Any]]:
    """A row a scenario, over HTTP where there is a URL; of Server a row a rate that was tried."""
    rows = []

    def run(scenario: str, rate: float = 1.0) -> dict[str, Any]:
        result = run_job(
            scenario=scenario,
            url=url,
            model=str(served.model),
            preset=served.preset,
            images=str(served.images),
            seconds=seconds,
            bound_ms=bound_ms,
            rate=rate,
        )
        rows.append(
            {
                "model": served.model.stem,
                "target": OVER_HTTP if url else ENGINE,
                "scenario": scenario,
                "seconds": seconds,
                **({"bound_ms": bound_ms, "rate": rate} if scenario == "Server" else {}),
                **result,
            }
        )
        return result

    run("SingleStream")
    run("MultiStream")
    capacity = run("Offline")["value"]
    for share in SHARES:
        if run("Server", share * capacity)["in_bound"]:
            break
    return rows


def show(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """A table, and what it is not."""
    table = Table(title=f"MLPerf LoadGen, {rows[0]['model']}", title_justify="left")
    for heading in ("target", "scenario", "result"):
        table.add_column(heading, no_wrap=True)
    for heading in ("queries/s", "p50 ms", "p99 ms", "queries"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("LoadGen says")
    for row in rows:
        latency = row["latency_ms"] if row["scenario"] != "Offline" else {}
        table.add_row(
            row["target"],
            row["scenario"],
            MEANING[row["scenario"]].format(row["value"]),
            f"{row['rate']:.1f}" if "rate" in row else "-",
            *(f"{latency[q]:.2f}" if q in latency else "-" for q in ("p50", "p99")),
            f"{row['queries']}",
            row["verdict"],
        )
    console.print(table)
    console.print(
        f"{rows[0]['seconds']:g} s a scenario. No submission: MLPerf wants 600 s, its own data set "
        "and its accuracy. MultiStream's queries are 8 images. Server must keep p99 within "
        f"{rows[-1]['bound_ms']:g} ms. Over HTTP the server decodes; the engine is given pixels."
    )
