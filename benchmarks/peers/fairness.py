"""Finds conditions that make a comparison of servers unfair, such as a different number of threads.
The conditions are read from the servers' processes and from recorded results.

    conditions ─ from /proc/PID/{environ,cmdline,stat,status} and a process's report on its session
    request    ─ must contain the bytes of the same image
    rows       ─ of one work must have the same fields EQUAL
"""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.processes import Running
from benchmarks.rows import Row

OFF = "1"
"""The value of ORT_DISABLE_TELEMETRY that switches telemetry off."""

EQUAL = ("image", "model", "telemetry", "affinity", "priority")
"""The fields that must be the same in all rows of a work."""


class UnfairError(Exception):
    """Raised when the conditions of a server differ from the conditions of the other servers. The
    message names the conditions that differ."""


@dataclass(frozen=True)
class Conditions:
    """Holds the conditions under which a server runs, as text. If they differ between the server's
    processes, a field lists all values."""

    telemetry: str
    threads: str  # ONNX Runtime's, in each process that classifies
    affinity: str  # the cores on which it may run
    priority: str


def wanted(threads: int) -> Conditions:
    """Return the conditions that every server must have. A server must have the same cores and the
    same niceness as this process."""
    return Conditions(OFF, str(threads), *_kernel(os.getpid()))


def _kernel(pid: int) -> tuple[str, str]:
    """Return the cores on which a process may run, and its niceness."""
    status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    cores = next(line for line in status.splitlines() if line.startswith("Cpus_allowed_list:"))
    stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    return cores.split()[1], stat.rpartition(")")[2].split()[16]


def found(server: Running, default_threads: int) -> Conditions:
    """Return the conditions under which a server's processes run.

    The number of threads is read from the processes' reports or from the option `--threads`. If
    both are missing, it is `default_threads`.
    """
    telemetry, threads, cores, priority = set(), set(), set(), set()
    for pid in server.pids():
        try:
            folder = Path(f"/proc/{pid}")
            variables = _strings(folder / "environ")
            arguments = _strings(folder / "cmdline")
            own_cores, own_priority = _kernel(pid)
        except OSError:
            continue  # the process ended meanwhile
        cores.add(own_cores)
        priority.add(own_priority)
        given = dict(each.partition("=")[::2] for each in variables)
        if intact(variables):
            telemetry.add(given.get("ORT_DISABLE_TELEMETRY", "unset"))
        if "--threads" in arguments:
            threads.add(arguments[arguments.index("--threads") + 1])
        elif "CONVOY_THREADS" in given:
            threads.add(given["CONVOY_THREADS"])
    for file in server.facts.glob("*.json"):
        told = json.loads(file.read_text())
        telemetry.add(told["telemetry"])
        threads.add(told["threads"])
    return Conditions(
        *(",".join(sorted(each)) for each in (telemetry, threads or {str(default_threads)})),
        *(",".join(sorted(each)) for each in (cores, priority)),
    )


def intact(variables: Sequence[str]) -> bool:
    """Return whether /proc still shows the environment variables with which a process was started.

    Some processes, such as Ray's, change their name. The new name and zeros overwrite the variables
    in /proc. Then only the report that the process itself wrote is reliable.
    """
    return all(variables[:-1])


def _strings(file: Path) -> list[str]:
    return file.read_bytes().decode(errors="replace").split("\0")


def check(has: Conditions, must: Conditions, sent: bytes, image: bytes) -> None:
    """Raise UnfairError if a server's conditions, `has`, differ from the required conditions,
    `must`, or if the request `sent` does not contain the image's bytes."""
    reasons = [
        f"{name} must be {expected} as for the other servers, got {value or 'unknown'}"
        for name, value in vars(has).items()
        if name != "telemetry" and value != (expected := getattr(must, name))
    ]
    if has.telemetry != must.telemetry:
        reasons.append(
            "ONNX Runtime's telemetry is on: ORT_DISABLE_TELEMETRY is "
            f"{has.telemetry or 'unset'} and must be {must.telemetry}"
        )
    if image not in sent:
        reasons.append("the request must have the same image as for the other servers")
    if reasons:
        raise UnfairError("; ".join(reasons))


def differences(rows: Iterable[Row]) -> list[str]:
    """Compare the recorded conditions of all servers of a work. Return a sentence for each
    condition that differs."""
    measured: Sequence[Row] = [row for row in rows if "error" not in row]
    sentences = []
    for work in dict.fromkeys(row["work"] for row in measured):
        for name in EQUAL:
            values: dict[str, set[str]] = {}
            for row in measured:
                if row["work"] == work:
                    values.setdefault(str(row[name]), set()).add(row["server"])
            if len(values) > 1:
                said = "; ".join(f"{value}: {', '.join(sorted(v))}" for value, v in values.items())
                sentences.append(f"{work}: servers differ in {name}: {said}")
        for row in measured:
            if row["work"] == work and row["threads_each"] != row["threads_fair"]:
                about = f"{row['threads_each']} threads instead of {row['threads_fair']}"
                sentences.append(f"{work}: {row['server']} ran with {about}")
    return sentences
