"""Runs a worker, which reads units and writes results as lines of JSON.

A unit may crash the worker, or the worker may lose its device. The run (run.py) records such a
unit, and starts another worker.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.gpu.clocks import clocks
from benchmarks.gpu.units import Unit
from benchmarks.rows import Row
from kernels.device.device import FaultError

Measure = Callable[[Unit], list[Row]]


class RefusedError(Exception):
    """Raised when a side cannot run a unit. Says why."""


def serve_units(measurer: Measure, device_row: Row, check: Callable[[], None]) -> None:
    """Measure the units that arrive on standard input, until the input ends or `check` says that
    the device is lost.

    A library's error does not show that the device is lost, so the device is checked after each
    unit.
    """
    _say({"machine": device_row})
    for line in sys.stdin:
        unit = Unit(**json.loads(line))
        try:
            reply: dict[str, Any] = {"outcome": "measured", "rows": measurer(unit)}
        except Exception as error:  # noqa: BLE001  it is written; the next unit may succeed
            reply = {"outcome": "refused", "why": f"{type(error).__name__}: {error}", "rows": []}
        try:
            check()
        except FaultError as error:
            _say({"outcome": "faulted", "why": str(error), "rows": []})
            sys.exit(1)
        _say({**reply, "clocks": clocks()})


def _say(line: Row) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
