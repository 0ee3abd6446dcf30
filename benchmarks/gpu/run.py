"""Measures units (units.py) until the time is over. A unit is one measurement of Convoy or of
another library. The next run continues with the remaining units.

    units without a line ─ one by one ─> measurer (kind, side) ─ reply ─> a line in OUT/gpu.jsonl

A line is written as soon as its unit is measured, so a run that is killed loses only its current
unit. A measurer is a process. If it dies or hangs, a line records this, so that the unit is not
tried again, and another measurer is started.
"""

import fcntl
import json
import os
import queue
import signal
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.gpu.units import START_S, Unit, limit_s, missing, seconds_of
from benchmarks.rows import ROOT, Row, now, read

Command = Callable[[str, str], Sequence[str]]
"""Returns the command that starts a measurer of a kind and side."""


class LostError(Exception):
    """Raised when a measuring process dies or hangs. The message says which of the two happened."""


class Measurer:
    """Runs a process that measures units of one kind with one library."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # so that the processes that it starts can be killed too
        )
        self._said: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def hello(self) -> Row:
        """Wait until the process has started. Return the properties of its machine that influence
        measurements. Raises LostError."""
        machine: Row = self._reply(10 * START_S)["machine"]
        return machine

    def measure(self, unit: Unit, limit: float) -> dict[str, Any]:
        """Let the process measure a unit, and return its reply. Raises LostError if no reply comes
        within `limit` seconds, or if the process died."""
        assert self._process.stdin is not None
        fields = {name: getattr(unit, name) for name in ("kind", "subject", "n", "side")}
        try:
            self._process.stdin.write(json.dumps(fields) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise LostError("died before it measured the unit") from error
        return self._reply(limit)

    def end(self) -> None:
        """Kill the process and all processes that it started."""
        with suppress(ProcessLookupError):  # it may have ended by itself
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _reply(self, limit: float) -> dict[str, Any]:
        deadline = time.monotonic() + limit
        while True:
            try:
                line = self._said.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty as error:
                raise LostError(f"hung for {limit:.0f} s") from error
            if line is None:
                raise LostError(f"crashed with status {self._process.wait()}")
            if line.startswith("{"):
                reply: dict[str, Any] = json.loads(line)
                return reply
            print(line, end="")  # a message from a library

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.put(line)
        self._said.put(None)


class Measurers:
    """Keeps at most one measuring process. If a unit needs another process, it replaces the current
    one."""

    def __init__(self, command: Command) -> None:
        self._command = command
        self._measurer: Measurer | None = None
        self._key = "", ""
        self._absent: set[tuple[str, str]] = set()  # measurers that could not be started here
        self.machine: Row = {}

    def start_s(self, unit: Unit) -> float:
        """Return the expected seconds until a measuring process is ready for the unit."""
        return 0.0 if self._measurer and self._key == unit.worker else START_S

    def of(self, unit: Unit) -> Measurer | None:
        """Return a process that can measure `unit`, or None if the process cannot be started."""
        key = unit.worker
        if key in self._absent:
            return None
        if self._measurer is None or self._key != key:
            self.end()
            self._measurer, self._key = Measurer(self._command(*key)), key
            try:
                self.machine = self._measurer.hello()
            except LostError as error:
                print(f"{unit.kind} by {unit.side} is not measured: the measuring process {error}")
                self._absent.add(key)
                self.end()
        return self._measurer

    def end(self) -> None:
        """Kill the measuring process if there is one."""
        if self._measurer is not None:
            self._measurer.end()
            self._measurer = None


def run(out: Path, seconds: float, commit: str, units: Sequence[Unit], command: Command) -> None:
    """Measure the units that are not yet recorded for this commit, for at most `seconds`."""
    deadline = time.monotonic() + seconds
    out.mkdir(parents=True, exist_ok=True)
    file = out / "gpu.jsonl"
    measurers = Measurers(command)
    with _alone(out):
        lines = read(file)
        takes = seconds_of(lines)
        try:
            for unit in missing(units, lines, commit):
                cost = measurers.start_s(unit) + takes[unit.kind, unit.side]
                if time.monotonic() + cost > deadline:
                    continue
                measurer = measurers.of(unit)
                if measurer is None:
                    continue
                began = time.monotonic()
                limit = min(limit_s(unit, takes), max(1.0, deadline - began))
                try:
                    reply = measurer.measure(unit, limit)
                except LostError as error:
                    measurers.end()
                    if time.monotonic() >= deadline:
                        print(f"{unit}: the time was over before the measurement ended")
                        break
                    reply = {
                        "outcome": "crashed",
                        "why": f"the measuring process {error}",
                        "rows": [],
                    }
                if reply["outcome"] == "faulted":
                    measurers.end()
                took = time.monotonic() - began
                _append(file, unit, measurers.machine, reply, took)
                print(f"{took:6.1f} s  {reply['outcome']}  {unit}  {reply.get('why', '')}".rstrip())
        finally:
            measurers.end()


def pack(out: Path, tar: Path) -> None:
    """Pack the recorded results in the folder `out` into one tar file."""
    with tarfile.open(tar, "w") as packed:
        for file in sorted(out.glob("*.json*")):
            packed.add(file, file.name)


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Hold a lock within this block, so that a second run waits for the first."""
    with (out / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _append(file: Path, unit: Unit, machine: Row, reply: Row, took: float) -> None:
    line = {
        **machine,
        "date": now(),
        "unit": str(unit),
        "n": unit.n,
        "side": unit.side,
        "seconds": round(took, 2),
        **reply,
    }
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(handle, (json.dumps(line) + "\n").encode())
    finally:
        os.close(handle)
