"""Runs measurements with a worker that returns made-up numbers. One unit of each side crashes its
worker.

    python -m tests.support.benchmarks.stand_in_gpu OUT [worker]

The worker of "torch" is a measurer's own loop. That of "convoy" is a program that imports nothing
of the project, because it is started again and again, and imports would take most of the time.
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
PLACE = {"kind": "measurement", "device": "made up", "commit": COMMIT}
CACHES = ("warm", "cold")
LIGHT = f"""
import json, os, random, sys, time
print(json.dumps({{"machine": {PLACE!r}}}), flush=True)
rows = [{{"made_up": True, "cache": cache, "p50_us": 1.0}} for cache in {CACHES!r}]
for line in sys.stdin:
    time.sleep(random.uniform(0.005, 0.03))
    if json.loads(line)["subject"] == {CRASHING!r}:
        os._exit(11)
    print(json.dumps({{"outcome": "measured", "rows": rows}}), flush=True)
"""


def measure(unit: Unit) -> list[Row]:
    """Return made-up numbers, or crash."""
    time.sleep(random.uniform(0.005, 0.03))
    if unit.subject == CRASHING:
        os._exit(11)
    return [{"made_up": True, "cache": cache, "p50_us": 1.0} for cache in CACHES]


def main() -> None:
    """Run the measurements, or one worker."""
    out = Path(sys.argv[1])
    if sys.argv[2:]:
        serve_units(measure, PLACE, lambda: None)
        return
    module = ["-m", "tests.support.benchmarks.stand_in_gpu", str(out), "worker"]
    workers = {"convoy": ["-c", LIGHT], "torch": module}
    run(out, 120, COMMIT, UNITS, lambda kind, side: [sys.executable, *workers[side]])
    print("done", flush=True)


if __name__ == "__main__":
    main()
