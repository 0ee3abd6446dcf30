"""Lists the servers to compare, with their versions, settings and requests.

All settings of a server are tried. For each workload and number of connections, the server is
measured in its best setting.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Literal

from benchmarks.serving.http_client import post_request

MAX_BATCH = 8

# The decoder, the arithmetic and the runtime, which every peer uses in Convoy's versions.
SAME_AS_CONVOY = ("numpy", "onnxruntime", "pillow")

# The packages on whose versions a server's speed depends.
TOLD = ("fastapi", "httptools", "starlette", "uvicorn", "uvloop", *SAME_AS_CONVOY)

_BOUNDARY = "convoy"
_SERVERS = "benchmarks.peers.servers"

Protocol = Literal["body", "form", "v2"]
"""How the image is sent: as the body, as a file in a form, or as KServe V2's binary data."""


@dataclass(frozen=True)
class Setting:
    """The options and environment variables with which a server's program is started."""

    name: str
    choices: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    protocol: Protocol = "body"
    # The number of processes that classify. They divide the threads that one process would have.
    processes: int = 1


@dataclass(frozen=True)
class Peer:
    """Describes a server: Convoy, or a server to compare with Convoy."""

    name: str
    package: str
    requirements: tuple[str, ...]
    # A program in the peer's environment, and its arguments. {port} is replaced by the port.
    command: tuple[str, ...]
    settings: tuple[Setting, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    path: str = "/predict"
    # The command that serves a model, with Convoy's options. If it is None, `command` serves all
    # works.
    serve: tuple[str, ...] | None = None
    about: str = ""  # shown in brackets after the name


def requirements(peer: Peer) -> tuple[str, ...]:
    """Return all packages to install for a server. They are pinned to the versions that Convoy
    uses, unless the server needs other versions."""
    own = {each.partition("==")[0] for each in peer.requirements}
    same = (f"{name}=={version(name)}" for name in SAME_AS_CONVOY if name not in own)
    return (*peer.requirements, *same)


CONVOY = Peer(
    "Convoy",
    "convoy-inference",
    (),
    ("python", "-m", f"{_SERVERS}.convoy_server"),
    (Setting("as it comes", {"options": ["--device", "cpu"]}),),
    path="/v1/classify",
    serve=(
        *("python", "-c", "from service.cli import main; main()", "serve", "--port", "{port}"),
        "--no-access-log",
    ),
)

TRITON = Peer(
    "Triton",
    "nvidia-pytriton",
    # It needs NumPy 1.
    ("nvidia-pytriton==0.7.0", "numpy==1.26.4"),
    ("python", "-m", f"{_SERVERS}.triton_server"),
    (
        Setting("batch 8", {"instances": 1}, protocol="v2"),
        Setting("batch 8, waits 1 ms", {"instances": 1, "delay_us": 1000}, protocol="v2"),
        Setting("batch 8, 2 instances", {"instances": 2}, protocol="v2", processes=2),
    ),
    path="/v2/models/work/infer",
    about="tritonserver 2.51, Python backend",
)

MOSEC = Peer(
    "mosec",
    "mosec",
    ("mosec==0.9.8",),
    (
        *("python", "-m", f"{_SERVERS}.mosec_server"),
        *("--address", "127.0.0.1", "--port", "{port}", "--log-level", "warning"),
    ),
    (
        Setting("batch 8, waits 1 ms", {"num": 1, "max_batch_size": 8, "max_wait_time": 1}),
        Setting(
            "batch 8, waits 1 ms, 2 workers",
            {"num": 2, "max_batch_size": 8, "max_wait_time": 1},
            processes=2,
        ),
        Setting("no batches", {"num": 1}),
    ),
)

_BATCHED = {"max_batch_size": MAX_BATCH}

LITSERVE = Peer(
    "LitServe",
    "litserve",
    ("litserve==0.2.19", "uvloop==0.23.0", "httptools==0.9.0"),
    ("python", "-m", f"{_SERVERS}.litserve_server"),
    (
        # batch_timeout is 0 by default: a batch takes the waiting requests at once.
        Setting("batch 8, fast_queue", {**_BATCHED, "fast_queue": True}),
        # Each of the two workers has a queue and a process for HTTP.
        Setting(
            "batch 8, timeout 1 ms, fast_queue, 2 workers",
            {**_BATCHED, "batch_timeout": 0.001, "fast_queue": True, "workers_per_device": 2},
            processes=2,
        ),
        Setting("no batches, fast_queue", {"fast_queue": True}),
        Setting(
            "no batches, fast_queue, 2 workers",
            {"fast_queue": True, "workers_per_device": 2},
            processes=2,
        ),
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
        # A batchable method takes a list. Over HTTP, the list is a form of files.
        Setting("batch 8", {"batched": True}, protocol="form"),
        Setting(
            "batch 8, 2 workers", {"batched": True, "workers": 2}, protocol="form", processes=2
        ),
        Setting("no batches, 2 workers", {"batched": False, "workers": 2}, processes=2),
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
        # Without HAProxy, Ray Serve answers a fifth of the requests. Only one setting has HAProxy:
        # a second HAProxy would connect to the suspended replicas of the first, which have the same
        # ports.
        Setting(
            "batch 8, wait 0, HAProxy, throughput",
            {"batch_wait_timeout_s": 0.0},
            {**_HAPROXY, **_THROUGHPUT},
        ),
        Setting(
            "batch 8, wait 0, 2 replicas",
            {"batch_wait_timeout_s": 0.0, "num_replicas": 2},
            processes=2,
        ),
    ),
    {
        "RAY_USAGE_STATS_ENABLED": "0",
        # By default, Ray starts its workers with niceness 15.
        "RAY_worker_niceness": "0",
        # All processes run on one machine and use loopback.
        "RAY_AUTH_MODE": "disabled",
    },
)

PEERS = (TRITON, MOSEC, LITSERVE, BENTOML, RAY_SERVE)


def request_for(protocol: Protocol, path: str, image: bytes, media_type: str) -> bytes:
    """Return the bytes of an HTTP request whose body is one image."""
    if protocol == "body":
        return post_request(path, image, media_type)
    if protocol == "v2":
        data = len(image).to_bytes(4, "little") + image
        asked = {
            "inputs": [
                {
                    "name": "image",
                    "datatype": "BYTES",
                    "shape": [1, 1],
                    "parameters": {"binary_data_size": len(data)},
                }
            ],
            "outputs": [{"name": "scores", "parameters": {"classification": 5}}],
        }
        about = json.dumps(asked).encode()
        length = f"Inference-Header-Content-Length: {len(about)}"
        return post_request(path, about + data, "application/octet-stream", length)
    return form_request(path, [image], media_type)


def form_request(path: str, images: Sequence[bytes], media_type: str) -> bytes:
    """Return the bytes of an HTTP request whose body is a form with several images."""
    head = (
        f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="images"; filename="picture"\r\n'
        f"Content-Type: {media_type}\r\n\r\n"
    ).encode()
    parts = b"".join(head + image + b"\r\n" for image in images)
    body = parts + f"--{_BOUNDARY}--\r\n".encode()
    return post_request(path, body, f"multipart/form-data; boundary={_BOUNDARY}")
