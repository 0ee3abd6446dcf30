"""Runs measurements with a worker that returns random numbers. One unit of each side crashes its
worker.

    python -m tests.support.benchmarks.stand_in_gpu OUT [worker]
"""

import os
import random
import sys
import time
from pathlib import Path

from benchmarks.gpu.run import run
from benchmarks.gpu.units import Unit
from benchmarks.gpu.worker import serve_units
from benchmarks.rows import Row

UNITS = [
    Unit("layer", f"made up {index}", 1, side)
    for side in ("convoy", "torch")
    for index in range(20)
]
CRASHING = "made up 7"
COMMIT = "0"


def measure(unit: Unit) -> list[Row]:
    """Return random numbers, or crash."""
    time.sleep(random.uniform(0.005, 0.03))
    if unit.subject == CRASHING:
        os._exit(11)
    return [{"made_up": True, "cache": cache, "p50_us": 1.0} for cache in ("warm", "cold")]


def main() -> None:
    """Run the measurements, or one worker."""
    out = Path(sys.argv[1])
    if sys.argv[2:]:
        place = {"kind": "measurement", "device": "made up", "commit": COMMIT}
        serve_units(measure, place, lambda: None)
        return
    command = [sys.executable, "-m", "tests.support.benchmarks.stand_in_gpu", str(out), "worker"]
    run(out, 120, COMMIT, UNITS, lambda kind, side: command)
    print("done", flush=True)


if __name__ == "__main__":
    main()
