"""Starts a stand-in for a peer (another server). The stand-in uses only the standard library."""

import json
import sys
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.environments import Environment
from benchmarks.peers.comparison import settings_of
from benchmarks.peers.processes import Running, running
from benchmarks.peers.works import NOOP, Case, Task
from benchmarks.serving.http_client import Connection, answers, free_port, post_request
from tests.support import PATIENCE_S

COMMAND = ("python", "-m", "tests.support.benchmarks.stand_in_peer")

NOTHING = Task([Case(b"an image", "image/jpeg", (None, 0.001))], 1)


def run(
    folder: Path, start_s: float = PATIENCE_S, **choices: Any
) -> AbstractContextManager[Running]:
    """Start the stand-in with the no-op, a work without a model."""
    port = free_port()
    settings = asdict(settings_of(NOOP, NOTHING, 1, port, folder, choices))
    request = post_request("/predict", b"1", "image/jpeg")
    return running(
        [sys.executable, *COMMAND[1:]],
        {"PEER_SETTINGS": json.dumps(settings)},
        folder,
        port,
        lambda address: answers(address, request),
        start_s,
    )


def ask(server: Running) -> bytes:
    """Return a peer's answer to an image."""
    connection = Connection(server.address)
    try:
        return connection.exchange(post_request("/predict", b"1", "image/jpeg"))
    finally:
        connection.close()


HERE = Environment(Path(sys.prefix), {})


def row(server: str, rate: float, p99_ms: float = 3, **changes: Any) -> dict[str, Any]:
    """Return an artificial row of two rounds. Each number is a tenth smaller in the second round
    than in the first."""
    numbers = {
        "requests_a_second": rate,
        "p50_ms": p99_ms / 2,
        "p99_ms": p99_ms,
        "cpu_ms": 1000 / rate,
        "switches": 4.0,
        "memory_mb": 100.0,
        "threads": 8,
    }
    conditions = {
        "image": "cat",
        "model": "",
        "telemetry": "off",
        "affinity": "0-1",
        "priority": "0",
        "threads_each": "1",
        "threads_fair": "1",
    }
    about = {
        "date": "2026-11-27T23:26:24",
        "cpu": "EPYC",
        "cores": 2,
        "commit": "abc",
        "onnxruntime": "1.31",
        "load_average": 0.5,
        "rounds": 2,
        "seconds_a_round": 1.0,
        "start_s": 1.5,
        "idle_mb": 90.0,
        "installed_mb": 200.0,
    }
    measured = {name: [value, value * 0.9] for name, value in numbers.items()}
    named = {"server": server, "setting": "batch 8", "version": "", "work": NOOP, "connections": 8}
    return {**about, **conditions, **named, **measured, **changes}
