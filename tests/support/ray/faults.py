"""Injects faults into Convoy on Ray Serve under load. Needs the extra `ray`."""

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.rows import ROOT
from benchmarks.serving.served import CONVOY
from tests.support.ray.cluster import Proxy, RayConvoy

CLIENTS = 8

# Clients may send these requests again, because Ray or Convoy refused them. Ray restarts HAProxy
# after every change, which may close the connection of a request.
RETRYABLE = {
    Proxy.PYTHON: frozenset({"429", "503"}),
    Proxy.HAPROXY: frozenset({"429", "503", "disconnected by the server"}),
}

Load = dict[str, Any]


@contextmanager
def load(url: str, seconds: float) -> Iterator[list[Load]]:
    """Run clients for `seconds`. Yield a list, which contains their results after the block."""
    results: list[Load] = []
    with TemporaryDirectory() as folder:
        file = Path(folder) / "loadtest.json"
        options = ["--clients", str(CLIENTS), "--duration", f"{seconds}s", "--verify"]
        options += ["--warmup", "1s", "--timeout", "60s", "--max-errors", "1", "--json", str(file)]
        command = [*CONVOY, "loadtest", url, *options]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            yield results
            told, _ = process.communicate()
        # The status is 1 if an answer was wrong. `errors` in the results then says so.
        if process.returncode not in (0, 1) or not file.exists():
            raise RuntimeError(f"the load generator failed: {told}")
        results += json.loads(file.read_text())["loads"]


def faults(running: RayConvoy, seconds: float) -> Load:
    """Put load on the cluster. Meanwhile, kill a replica, remove a node and add another node.
    Return the results of the clients.

    At the begin, there are two nodes with one replica each. At the end, there are two replicas
    again.
    """
    (lost,) = running.cluster.worker_nodes
    (on_head,) = (each for each in running.replicas() if each.address != lost.node_ip_address)
    with load(running.url, seconds) as results:
        time.sleep(seconds / 4)
        on_head.kill()
        time.sleep(seconds / 4)
        # The clients wait while there is no replica.
        running.remove_node(lost)
        running.add_node()
    running.wait_for(2)
    (found,) = results
    return found


def unexpected(found: Load, proxy: Proxy) -> dict[str, int]:
    """Return the errors of requests that got neither an answer nor a refusal that allows a
    retry."""
    return {name: n for name, n in found["errors"].items() if name not in RETRYABLE[proxy]}
