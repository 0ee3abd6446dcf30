"""Runs Convoy with deploy/ray/serve.yaml on a Ray cluster. Needs the extra `ray`.

All nodes of the cluster are on this machine. Each node has its own loopback address.
"""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ray
import yaml  # type: ignore[import-untyped]  # comes with Ray, its types do not
from ray import serve
from ray.cluster_utils import Cluster
from ray.serve.context import _get_global_client

from benchmarks.rows import ROOT
from service.http.server import bind

DEPLOY = ROOT / "deploy" / "ray"
APPLICATION = DEPLOYMENT = "convoy"

_READY_S = 180.0
_LOOK_S = 0.2


class Proxy(StrEnum):
    """Names the kind of process that receives the requests on a node."""

    PYTHON = "python"
    """Ray's default."""
    HAPROXY = "haproxy"
    """Sends requests directly to the replicas."""


# deploy/ray/README.md tells users to set the same variables.
_LOST = {"RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "service.ray.proxy.middlewares"}
_ENVIRONMENT: Mapping[Proxy, Mapping[str, str]] = {
    Proxy.PYTHON: _LOST,
    Proxy.HAPROXY: {
        **_LOST,  # if no replica runs, HAProxy sends requests to Python's proxy
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response",
        "RAY_SERVE_HAPROXY_TUNE_BUFSIZE": "262144",  # requests that fit can be sent again
    },
}

# Longer time limits, because all nodes start at the same time on few cores.
_PATIENCE = {
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    "RAY_SERVE_HAPROXY_STARTUP_TIMEOUT_S": "120",
}


@dataclass(frozen=True)
class Replica:
    """Identifies a running replica."""

    pid: int
    address: str  # of its node

    def kill(self) -> None:
        """Kill the process, as a crash would."""
        os.kill(self.pid, signal.SIGKILL)


@dataclass
class RayConvoy:
    """A running cluster that serves Convoy. Each node has one CPU, and each replica needs one."""

    url: str
    cluster: Cluster
    environment: Mapping[str, str]
    _numbers: Iterator[int] = field(default_factory=lambda: count(2))

    def add_node(self) -> Any:
        """Start a node. The first node is the head."""
        return self.cluster.add_node(
            num_cpus=1,
            node_ip_address=f"127.0.0.{next(self._numbers)}",
            env_vars=dict(self.environment),
            include_dashboard=False,
        )

    def remove_node(self, node: Any) -> None:
        """Kill all processes of a node, as a power failure would."""
        self.cluster.remove_node(node, allow_graceful=False)

    def deploy(self, config: Mapping[str, Any]) -> None:
        """Deploy as `serve run` does. Raises RuntimeError if Ray refuses."""
        with TemporaryDirectory() as folder:
            file = Path(folder) / "serve.yaml"
            file.write_text(yaml.safe_dump(dict(config)))
            assignments = [f"{name}={value}" for name, value in self.environment.items()]
            run = [sys.executable, "-m", "ray.serve.scripts", "run", "--non-blocking", str(file)]
            command = ["env", *assignments, *run, "--address", self.cluster.address]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{shlex.join(command)}\n{done.stdout}{done.stderr}")

    def replicas(self) -> list[Replica]:
        """Return the replicas to which Ray sends requests."""
        deployment = self._application()["deployments"].get(DEPLOYMENT, {"replicas": []})
        running = [each for each in deployment["replicas"] if each["state"] == "RUNNING"]
        return [Replica(each["pid"], each["node_ip"]) for each in running]

    def wait_for(self, replicas: int) -> None:
        """Wait until this many replicas run. Raises RuntimeError if the deployment fails, or takes
        too long."""
        deadline = time.monotonic() + _READY_S
        while len(self.replicas()) != replicas:
            told = self._application()
            if "FAILED" in told["status"] or time.monotonic() > deadline:
                raise RuntimeError(f"{told['status']}: {told['message']}")
            time.sleep(_LOOK_S)

    def _application(self) -> dict[str, Any]:
        details = _get_global_client().get_serve_details()["applications"]
        found: dict[str, Any] = details.get(APPLICATION, {"status": "", "deployments": {}})
        return found


def configuration(
    port: int, arguments: Mapping[str, Any], replicas: tuple[int, int] = (1, 1)
) -> dict[str, Any]:
    """Return the content of deploy/ray/serve.yaml with three changes: the port, one core of the CPU
    per replica, and `replicas`, the minimum and the maximum number of replicas."""
    config: dict[str, Any] = yaml.safe_load(
        (DEPLOY / "serve.yaml").read_text().replace("convoy_inference.", "")  # as in a checkout
    )
    config["proxy_location"] = "HeadOnly"
    config["http_options"] |= {"host": "127.0.0.1", "port": port}
    (application,) = config["applications"]
    application["args"] = {"device": "cpu", **arguments}
    (deployment,) = application["deployments"]
    deployment["ray_actor_options"] = {"num_cpus": 1, "num_gpus": 0}
    least, most = replicas
    deployment["autoscaling_config"] |= {"min_replicas": least, "max_replicas": most}
    return config


@contextmanager
def ray_convoy(
    *,
    nodes: int,
    arguments: Mapping[str, Any] | None = None,
    replicas: tuple[int, int] = (1, 1),
    proxy: Proxy = Proxy.PYTHON,
    autoscaling: Mapping[str, Any] | None = None,
) -> Iterator[RayConvoy]:
    """Start a cluster with a proxy on its head node. Yield the cluster as soon as the least number
    of replicas is ready."""
    with bind("127.0.0.1", 0) as probe:
        port = probe.getsockname()[1]
    config = configuration(port, arguments or {}, replicas)
    config["applications"][0]["deployments"][0]["autoscaling_config"] |= autoscaling or {}
    environment = {
        "PYTHONPATH": str(ROOT),
        "RAY_USAGE_STATS_ENABLED": "0",
        **_PATIENCE,
        **_ENVIRONMENT[proxy],
    }
    running = RayConvoy(f"http://127.0.0.1:{port}", Cluster(), environment)
    try:
        for _ in range(nodes):
            running.add_node()
        running.deploy(config)
        ray.init(
            address=running.cluster.address,
            namespace="serve",
            log_to_driver=False,
            logging_level="error",
        )
        running.wait_for(replicas[0])
        yield running
    finally:
        if ray.is_initialized():
            serve.shutdown()  # or the next cluster is asked for this one's controller
        ray.shutdown()
        running.cluster.shutdown()
