"""Runs a worker process, which reads the measurements to make (units) from standard input, and
writes the results to standard output as lines of JSON.

A unit may crash the worker, or may break the device. run.py then records the unit as crashed or
faulted, and starts another worker.
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
    """Raised when a library cannot compute the unit's problem. The message says why."""


def serve_units(measurer: Measure, device_row: Row, check: Callable[[], None]) -> None:
    """Measure the units that arrive on standard input. Stop when the input ends, or when `check`
    raises FaultError because the device is broken.

    The error of a measurement does not show whether the device is broken. Therefore `check` is
    called after each unit.
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
