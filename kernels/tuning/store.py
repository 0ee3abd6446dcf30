"""Stores measured times of convolutions in a JSON file. Any number of processes may read the file
and add to it.

    {"schema": 1, "measurements": [
    {"device": "NVIDIA H200", "architecture": "90a", "driver": "CUDA 13.0",
     "compiler": "NVRTC 13.0", "precision": "fp32", "sources": "9f86d081",
     "problem": "N1 C64 56x56 K64 3x3 p1,1,1,1",
     "candidates": {
      "direct 64x64x16/2": {"screened_us": 14.3, "warm_us": [14, 14.1, 14.3], "cold_us": [17, ...],
                            "trigger": "EPILOGUE"},
      "direct 64x64x16": {"screened_us": 21.8},
      "gemm 32x32x32": {"failure": "..."}}},
    ...

A writer holds a lock file, reads the file, adds its rows, and replaces the file by renaming.
Therefore a reader sees either the old or the new file. A writer that is killed loses only the rows
that it was adding. Times are in microseconds. A list has the 20th, 50th and 80th percentile.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

from kernels.device.cache_folder import placed
from kernels.device.compile import DEFAULT_CACHE
from kernels.device.device import Trigger
from kernels.tuning.timing import Timing

SCHEMA = 1
DEFAULT_STORE = DEFAULT_CACHE.with_name("tuning.json")


class TuningStoreError(Exception):
    """Raised when a file cannot be read or written; gives the reason and a remedy."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """Holds the conditions of a measurement. The measured times are valid only for this device,
    driver and compiler."""

    device: str
    architecture: str
    driver: str
    compiler: str


@dataclass(frozen=True, slots=True)
class Key:
    """Identifies a problem and the conditions of its measurement. `sources` is a digest (a hash) of
    the sources of all kernels that can compute the problem."""

    conditions: Conditions
    precision: str
    sources: str
    problem: str


@dataclass(frozen=True, slots=True)
class Times:
    """Holds a candidate's times in µs: `warm` with all operands in the second-level cache, and
    `cold` with no operand in this cache."""

    warm: Timing
    cold: Timing

    @property
    def us(self) -> float:
        """Return the mean of the warm and the cold median, in µs. Candidates are compared by this
        time.

        In a network, a layer reads its activations mostly from the cache, and its weights from
        memory. Therefore its time lies between the warm and the cold time.
        """
        return (self.warm.p50_us + self.cold.p50_us) / 2


@dataclass(frozen=True, slots=True)
class Outcome:
    """Holds the result of a candidate: its time from a few runs, its times from many runs, or the
    reason for its failure.

    `trigger` is set only for the fastest candidate. With this trigger, overlapping launches take
    the least time.
    """

    screened_us: float | None = None
    times: Times | None = None
    failure: str | None = None
    trigger: Trigger | None = None


Outcomes = Mapping[str, Outcome]
"""The outcomes of candidates by their `str`."""

Measurements = Mapping[Key, Outcomes]


class TuningStore:
    """A file of measurements. The file need not exist yet, and several processes may share it."""

    def __init__(self, path: Path = DEFAULT_STORE) -> None:
        self.path = placed(path).resolve()

    def read(self) -> Measurements:
        """Return all measurements, or none if there is no file. Raises TuningStoreError."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise TuningStoreError(f"cannot read {self.path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise self._not_one(str(error)) from error
        return self._parse(text)

    def add(self, key: Key, outcomes: Outcomes, *, anew: bool = False) -> None:
        """Add outcomes to the stored outcomes of `key`. If `anew`, replace all stored outcomes of
        `key`.

        Otherwise, an outcome replaces the stored outcome of the same candidate, except if the new
        outcome has only a time from a few runs. Raises TuningStoreError.
        """
        try:
            with self._locked():
                known = dict(self.read())
                known[key] = outcomes if anew else merged(known.get(key, {}), outcomes)
                self._write(known)
        except OSError as error:
            raise TuningStoreError(f"cannot write {self.path}: {error.strerror}") from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        import fcntl  # noqa: PLC0415  (Windows has none, and serves on its CPU without)

        self.path.parent.mkdir(parents=True, exist_ok=True)
        # A separate file: the measurements' file is replaced, and its lock with it.
        with self.path.with_name(self.path.name + ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _write(self, measurements: Measurements) -> None:
        # One name for all writers: only the lock's holder writes, over a killed writer's rest.
        temporary = self.path.with_name(self.path.name + ".new")
        with temporary.open("w", encoding="utf-8") as file:
            file.write(_text(measurements))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)

    def _parse(self, text: str) -> Measurements:
        try:
            data = json.loads(text)
            schema = data["schema"]
            if schema == SCHEMA:
                return dict(map(_measurement, data["measurements"]))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise self._not_one(f"{type(error).__name__}: {error}") from error
        raise TuningStoreError(
            f"{self.path} holds measurements of schema {schema}, but this version of Convoy reads"
            f" schema {SCHEMA}; name another file with --tuning, or delete this file and measure"
            " again"
        )

    def _not_one(self, reason: str) -> TuningStoreError:
        return TuningStoreError(
            f"{self.path} holds no measurements of `convoy tune` ({reason}); name another file with"
            " --tuning, or delete this file and measure again"
        )


def merged(known: Outcomes, later: Outcomes) -> Outcomes:
    """Return the outcomes of both sets. If both have an outcome of the same candidate, take the
    later outcome. If the later outcome has only a time from a few runs, take the earlier outcome
    instead."""

    def worth_more(name: str) -> bool:
        outcome = later[name]
        return name not in known or outcome.times is not None or outcome.failure is not None

    return {**known, **{name: later[name] for name in later if worth_more(name)}}


def _text(measurements: Measurements) -> str:
    """Return the measurements as the text of a JSON file. Each candidate has one line, so that
    people can read the file."""
    rows = []
    for key, outcomes in measurements.items():
        head = asdict(key)
        head = {**head.pop("conditions"), **head}
        candidates = ",\n  ".join(
            f"{json.dumps(name)}: {json.dumps(_fields(outcome))}"
            for name, outcome in outcomes.items()
        )
        rows.append(f'{json.dumps(head)[:-1]}, "candidates": {{\n  {candidates}}}}}')
    body = ",\n".join(rows)
    return f'{{"schema": {SCHEMA}, "measurements": [\n{body}]}}\n'


def _fields(outcome: Outcome) -> dict[str, Any]:
    """Convert an outcome to a dictionary for JSON, without fields that are None. Times are rounded
    to the nanosecond."""
    fields: dict[str, Any] = {}
    if outcome.screened_us is not None:
        fields["screened_us"] = round(outcome.screened_us, 3)
    if outcome.times is not None:
        fields["warm_us"] = _rounded(outcome.times.warm)
        fields["cold_us"] = _rounded(outcome.times.cold)
    if outcome.failure is not None:
        fields["failure"] = outcome.failure
    if outcome.trigger is not None:
        fields["trigger"] = outcome.trigger.name
    return fields


def _rounded(timing: Timing) -> list[float]:
    return [round(us, 3) for us in astuple(timing)]


def _measurement(row: Mapping[str, Any]) -> tuple[Key, Outcomes]:
    """Convert a row of the JSON file to a key and its outcomes, and return them.

    Raises KeyError, TypeError, ValueError or AttributeError if the row is not a measurement.
    """
    fields = dict(row)
    candidates = fields.pop("candidates")
    own = [_str(fields.pop(name)) for name in ("precision", "sources", "problem")]
    conditions = Conditions(**{name: _str(value) for name, value in fields.items()})
    outcomes = {name: _outcome(**candidate) for name, candidate in candidates.items()}
    return Key(conditions, *own), outcomes


def _outcome(
    screened_us: float | None = None,
    warm_us: list[float] | None = None,
    cold_us: list[float] | None = None,
    failure: str | None = None,
    trigger: str | None = None,
) -> Outcome:
    if (warm_us is None) != (cold_us is None):
        raise ValueError("an outcome must have both warm_us and cold_us, or neither")
    times = None
    if warm_us is not None and cold_us is not None:
        times = Times(Timing(*map(float, warm_us)), Timing(*map(float, cold_us)))
    return Outcome(
        None if screened_us is None else float(screened_us),
        times,
        None if failure is None else _str(failure),
        None if trigger is None else Trigger[trigger],
    )


def _str(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} must be a string")
    return value
