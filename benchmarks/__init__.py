"""Contains all benchmarks. The first lines of each package name the claims that it supports."""

import os

# Before a benchmark imports ONNX Runtime, here, in a process that it starts or in a peer's server:
# nothing reports its use, and no side pays for it alone.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # noqa: TID251  set, not read
