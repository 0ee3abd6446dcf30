"""Serves the model with Triton's HTTP server, scheduler and Python backend.

The package `nvidia-pytriton` contains the original `tritonserver`, but only its Python backend.
Therefore ONNX Runtime is called from Python, as in the other servers.
"""

import os
import shutil
import sys
import sysconfig
from pathlib import Path

from benchmarks.peers.servers.work import MAX_BATCH, Settings, settings_given

NAME = "work"

_STUB = "triton_python_backend_stub"

# Triton's backend runs this file in a separate process. Its Python does not use the environment.
_MODEL = """
import sys
sys.path[:0] = {path!r}
from benchmarks.peers.servers.triton_model import TritonPythonModel
"""


def configuration(settings: Settings) -> str:
    """Return the model's configuration for requests whose body is one image."""
    waits = settings.choices.get("delay_us", 0)
    return f"""
backend: "python"
max_batch_size: {MAX_BATCH}
input [{{name: "image" data_type: TYPE_STRING dims: [1]}}]
output [{{name: "scores" data_type: TYPE_FP32 dims: [-1]}}]
instance_group [{{kind: KIND_CPU count: {settings.choices["instances"]}}}]
dynamic_batching {{max_queue_delay_microseconds: {waits}}}
"""


def main() -> None:
    """Write a model repository with one model, and replace this process by Triton."""
    settings = settings_given()
    packages = Path(sysconfig.get_path("purelib"))
    triton = packages / "pytriton" / "tritonserver"
    folder = Path(settings.facts)
    model = folder / "models" / NAME
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(configuration(settings))
    (model / "1" / "model.py").write_text(_MODEL.format(path=[str(packages), *_given_path()]))
    backends = folder / "backends"
    shutil.copytree(triton / "backends", backends)
    python = "{}.{}".format(*sys.version_info)
    shutil.copy(triton / "python_backend_stubs" / python / _STUB, backends / "python")
    os.environ["LD_LIBRARY_PATH"] = str(packages / "nvidia_pytriton.libs")  # noqa: TID251  set
    program = str(triton / "bin" / "tritonserver")
    options = {
        "model-repository": folder / "models",
        "backend-directory": backends,
        "http-address": "127.0.0.1",
        "http-port": settings.port,
        "allow-grpc": "false",
        "allow-metrics": "false",
        "log-info": "false",
    }
    os.execv(program, [program, *(f"--{name}={value}" for name, value in options.items())])


def _given_path() -> list[str]:
    """Return the folders of `sys.path` that contain the benchmarks. Triton's Python backend does
    not read PYTHONPATH, so it needs this list."""
    return [folder for folder in sys.path if (Path(folder) / "benchmarks").is_dir()]


if __name__ == "__main__":
    main()
