"""Loads a model in a separate process, and prints the time and memory (python -m ... FILE).

`convoy inspect` loads a file in the same way. The memory is the peak minus the memory of the
imports. The process may use at most 4 GiB of addresses and two minutes of CPU time, so a failing
test cannot harm the machine.
"""

import json
import logging
import resource
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from time import process_time

from models import ModelError, load_classifier, report
from tests.support.models.slowness import idle_core

ADDRESSES = 4 * 2**30
SECONDS = 120  # of CPU time


@dataclass(frozen=True)
class LoadCost:
    """Holds the time and memory of loading a file."""

    error: str  # the class of the error, or "" if the file was loaded
    message: str
    seconds: float  # of an idle core
    mebibytes: float


def measure(path: Path) -> LoadCost:
    """Load the file in a separate process, and return its time and memory."""
    result = subprocess.run(
        [sys.executable, "-m", "tests.support.models.measured_load", str(path)],
        capture_output=True,
        text=True,
        timeout=10 * SECONDS,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return LoadCost(**json.loads(result.stdout))


def _peak() -> float:
    # ru_maxrss would include the parent's memory, because it is inherited.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def _main(path: Path) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    logging.disable()
    before, error, message = _peak(), "", ""
    with idle_core(process_time) as spent:
        try:
            report(load_classifier(path))
        except ModelError as caught:
            error, message = type(caught).__name__, str(caught)
    measured = LoadCost(error, message, spent.seconds, _peak() - before)
    sys.stdout.write(json.dumps(asdict(measured)))


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
