"""Contains all benchmarks. The docstring of each package names the documents whose claims the
package supports."""

import os

# Switches off ONNX Runtime's telemetry before any benchmark imports ONNX Runtime. Processes and
# servers that a benchmark starts inherit the variable, so the same holds for all of them.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # noqa: TID251  set, not read
