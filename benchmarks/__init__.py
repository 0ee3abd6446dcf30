"""Contains all benchmarks; each package says in its first lines which claim rests on it."""

import os

# Before a benchmark imports ONNX Runtime, here, in a process that it starts or in a peer's server:
# nothing reports its use, and no side pays for it alone.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # noqa: TID251  set, not read
