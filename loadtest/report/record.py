"""Writes the results of a load test as JSON, and reads such files to compare earlier results with
later ones."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from loadtest import LoadTestError
from loadtest.subject import Subject
from loadtest.summary import Summary
from loadtest.sweep import SweepResult
from models import __version__


@dataclass(frozen=True)
class Run:
    """Holds the results of one load test, with its name and the server that was measured."""

    name: str
    subject: Subject
    found: SweepResult


def as_json(conditions: Mapping[str, Any], images: int, run: Run) -> bytes:
    """Return the load test as indented JSON. For each load, the JSON has the fields and properties
    of its `Summary`."""
    found = run.found
    loads = [
        {
            **asdict(step),
            "latency_ms": step.shown_ms,
            "error_share": step.error_share,
            "client_limited": step.client_limited,
        }
        for step in found.steps
    ]
    content = {
        **conditions,
        "subject": asdict(run.subject),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "convoy": __version__,
        "images": images,
        "highest_rate": found.best.load.rate if found.best else None,
        "limited_by_client": found.limited_by_client,
        "loads": loads,
    }
    return msgspec.json.format(msgspec.json.encode(content))


@dataclass(frozen=True)
class _File:
    """Lists the parts of the JSON file that `read_run` reads."""

    subject: Subject
    highest_rate: float | None
    limited_by_client: bool
    loads: list[Summary]


def read_run(path: Path) -> Run:
    """Return the run that `as_json` wrote to a file. The run is named after the file. Raises
    LoadTestError if the file has another form."""
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_File)
    except (OSError, ValueError) as error:
        raise LoadTestError(f"{path} is not a result written by --json: {error}") from error
    best = [load for load in file.loads if load.load.rate == file.highest_rate is not None]
    found = SweepResult(file.loads, best[0] if best else None, file.limited_by_client)
    return Run(path.stem, file.subject, found)
