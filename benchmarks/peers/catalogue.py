"""Lists the servers to compare, with their versions, settings and requests.

Each peer has several settings; Convoy is compared with its best.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Literal

from benchmarks.serving.http_client import post_request

MAX_BATCH = 8

# The same decoder, arithmetic and runtime as Convoy's own, in Convoy's versions.
SAME_AS_CONVOY = ("numpy", "onnxruntime", "pillow")

# Of an environment's packages, those that a server's speed depends on.
TOLD = (
    *("fastapi", "httptools", "litserve", "bentoml", "ray", "starlette", "uvicorn", "uvloop"),
    *SAME_AS_CONVOY,
)

_BOUNDARY = "convoy"
_SERVERS = "benchmarks.peers.servers"

Protocol = Literal["body", "form"]
"""How the image is sent: as the body, or as a file in a form."""

PROTOCOL = {"body": "image as body", "form": "multipart form"}


@dataclass(frozen=True)
class Setting:
    """Describes one way to run a peer, by its program's options and environment variables."""

    name: str
    choices: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    protocol: Protocol = "body"


@dataclass(frozen=True)
class Peer:
    """Describes a server to compare with."""

    name: str
    package: str
    requirements: tuple[str, ...]
    # A program of the peer's environment, and its arguments, in which {port} is filled in.
    command: tuple[str, ...]
    settings: tuple[Setting, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


def requirements(peer: Peer) -> tuple[str, ...]:
    """Return everything that is installed for a peer, pinned."""
    return (*peer.requirements, *(f"{name}=={version(name)}" for name in SAME_AS_CONVOY))


_BATCHED = {"max_batch_size": MAX_BATCH}

LITSERVE = Peer(
    "LitServe",
    "litserve",
    ("litserve==0.2.19", "uvloop==0.23.0", "httptools==0.9.0"),
    ("python", "-m", f"{_SERVERS}.litserve_server"),
    (
        # The default of batch_timeout is 0: what waits is taken at once.
        Setting("batch 8", _BATCHED),
        Setting("batch 8, timeout 1 ms", {**_BATCHED, "batch_timeout": 0.001}),
        Setting("batch 8, fast_queue", {**_BATCHED, "fast_queue": True}),
        Setting(
            "batch 8, timeout 1 ms, fast_queue",
            {**_BATCHED, "batch_timeout": 0.001, "fast_queue": True},
        ),
        # Two workers have a queue each, and a process each for HTTP.
        Setting(
            "batch 8, timeout 1 ms, fast_queue, 2 workers",
            {**_BATCHED, "batch_timeout": 0.001, "fast_queue": True, "workers_per_device": 2},
        ),
        Setting("no batches, fast_queue", {"fast_queue": True}),
        Setting("no batches, fast_queue, 2 workers", {"fast_queue": True, "workers_per_device": 2}),
    ),
)

BENTOML = Peer(
    "BentoML",
    "bentoml",
    ("bentoml==1.4.39", "uvicorn==0.54.0", "uvloop==0.23.0", "httptools==0.9.0"),
    (
        "bentoml",
        "serve",
        f"{_SERVERS}.bentoml_server:Classifier",
        *("--host", "127.0.0.1", "--port", "{port}"),
    ),
    (
        # A batchable method takes a list, which over HTTP is a form of files.
        Setting("batch 8", {"batched": True}, protocol="form"),
        Setting(
            "batch 8, max_latency 100 ms", {"batched": True, "max_latency_ms": 100}, protocol="form"
        ),
        Setting("batch 8, 2 workers", {"batched": True, "workers": 2}, protocol="form"),
        Setting("no batches", {"batched": False}),
        Setting("no batches, 2 threads", {"batched": False, "threads": 2}),
        Setting("no batches, 2 workers", {"batched": False, "workers": 2}),
    ),
    {"BENTOML_DO_NOT_TRACK": "True"},
)

# User code and router share a thread, and logs are buffered.
_THROUGHPUT = {"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"}

# HAProxy sends requests straight to the replicas.
_HAPROXY = {"RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_SERVE_HAPROXY_STARTUP_TIMEOUT_S": "120"}

RAY_SERVE = Peer(
    "Ray Serve",
    "ray",
    ("ray[serve]==2.60.0",),
    ("python", "-m", f"{_SERVERS}.ray_server"),
    (
        Setting("batch 8, wait 0", {"batch_wait_timeout_s": 0.0}),
        Setting("batch 8, wait 10 ms (default)", {"batch_wait_timeout_s": 0.01}),
        Setting("batch 8, wait 0, 2 replicas", {"batch_wait_timeout_s": 0.0, "num_replicas": 2}),
        Setting("batch 8, wait 0, throughput", {"batch_wait_timeout_s": 0.0}, _THROUGHPUT),
        Setting("batch 8, wait 0, HAProxy", {"batch_wait_timeout_s": 0.0}, _HAPROXY),
        Setting(
            "batch 8, wait 0, HAProxy, throughput",
            {"batch_wait_timeout_s": 0.0},
            {**_HAPROXY, **_THROUGHPUT},
        ),
        Setting(
            "batch 8, wait 0, HAProxy, throughput, 2 replicas",
            {"batch_wait_timeout_s": 0.0, "num_replicas": 2},
            {**_HAPROXY, **_THROUGHPUT},
        ),
    ),
    {
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray would run what serves at the lowest priority but four.
        "RAY_worker_niceness": "0",
        # Between processes of one machine, on loopback.
        "RAY_AUTH_MODE": "disabled",
    },
)

PEERS = (LITSERVE, BENTOML, RAY_SERVE)


def request_for(protocol: Protocol, path: str, image: bytes, media_type: str) -> bytes:
    """Return the bytes of the request that asks for one image's classes."""
    if protocol == "body":
        return post_request(path, image, media_type)
    head = (
        f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="images"; filename="picture"\r\n'
        f"Content-Type: {media_type}\r\n\r\n"
    )
    body = head.encode() + image + f"\r\n--{_BOUNDARY}--\r\n".encode()
    return post_request(path, body, f"multipart/form-data; boundary={_BOUNDARY}")
