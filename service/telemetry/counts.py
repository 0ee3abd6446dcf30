"""Counts the requests of one version of a model in a list of integers, called a row. A model's
totals are the sum of the rows of its versions.

Times are nanoseconds, so that sums are exact. Triton's statistics extension has other names for the
phases of a request:

    Triton   compute_input   queue   compute_infer   compute_output
    Convoy   decode          queue   compute         respond

Triton's time for a request begins when the body is complete. It excludes Convoy's phase `receive`.
"""

import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from prometheus_client.utils import floatToGoString

from models import Flag, Reason
from service.batching.queue import BatchRecord
from service.engine.ranking import NOT_DECODED
from service.errors import Code

# Triton's reasons for failed requests; it also has OTHER. A malformed request is not a failure, and
# Triton does not count it as one; `convoy_requests_total` has its status.
REASONS = {
    Code.TOO_MANY: "REJECTED",
    Code.CLIENT_LEFT: "CANCELED",
    Code.FAILED: "BACKEND",
    Code.UNAVAILABLE: "REJECTED",
    Code.TOO_LATE: "REJECTED",
}


class Phases(NamedTuple):
    """The durations of a request's phases in whole microseconds. Their sum is `total`."""

    total: int
    receive: int  # reading the body
    decode: int  # from bytes to pixels, including the wait for a thread
    queue: int  # until the batch of its last image started
    compute: int  # that batch
    respond: int  # the rest: handing over, ranking, writing the answer


def phases_of(total: float, receive: float, decode: float, queue: float, compute: float) -> Phases:
    """Convert the durations of phases from seconds to microseconds. The phase `respond` gets the
    time that remains of `total`."""
    received, decoded = int(receive * 1e6 + 0.5), int(decode * 1e6 + 0.5)
    queued, computed = int(queue * 1e6 + 0.5), int(compute * 1e6 + 0.5)
    parts = received + decoded + queued + computed
    whole = max(int(total * 1e6 + 0.5), parts)
    return Phases(whole, received, decoded, queued, computed, whole - parts)


@dataclass(frozen=True, slots=True)
class Duration:
    """The number of times that something happened, and their total duration in nanoseconds."""

    count: int = 0
    ns: int = 0

    @property
    def us(self) -> int:
        """Return the time in whole microseconds."""
        return self.ns // 1000


# The arguments of HistogramMetricFamily.add_metric: cumulative counts by bound, and the sum.
Histogram = tuple[list[tuple[str, float]], float]

_SECONDS = (
    *(0.00025, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075),
    *(0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.125, 0.15, 0.175, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5),
    *(1.0, 2.0, 5.0, 10.0),
)
_MICROSECONDS = tuple(round(seconds * 1e6) for seconds in _SECONDS)
_BOUNDS = [*map(floatToGoString, _SECONDS), "+Inf"]


STATUSES = (200, *Code)
PHASES = Phases._fields[1:]  # without the total

BY_DEVICE, NO_FILE, BESIDE_BROKEN, _ENGINE = "", "format", "beside a broken one", "engine"

# Why the CPU decoded an image although the engine decodes files: the image has another format,
# another image of its request is broken, the engine that ran it decodes no files, or the reason
# comes from its headers or the device.
_FLAGS = tuple(flag.name.lower().replace("_", " ") for flag in Flag if flag.name)
DECODED = (
    BY_DEVICE,
    NO_FILE,
    BESIDE_BROKEN,
    _ENGINE,
    *(reason.value for reason in Reason),
    *_FLAGS,
)

# The row has four numbers, requests by status, images by the reason why the CPU decoded them, and a
# histogram with its sum for each field of Phases. Then, by batch size: batches, successful batches,
# and their nanoseconds.
_IMAGES, _FAILED_BATCHES, _LAST_MS, _FAIL_NS, _STATUS = range(5)
_CODES = {status: index for index, status in enumerate(STATUSES, _STATUS)}
_DECODED = {why: index for index, why in enumerate(DECODED, _STATUS + len(STATUSES))}
_HISTOGRAMS = _STATUS + len(STATUSES) + len(DECODED)
_SUM = len(_BOUNDS)
_WIDTH = _SUM + 1
_SIZES = _HISTOGRAMS + len(Phases._fields) * _WIDTH


def why_left(flags: int) -> str:
    """Return the reason why a device did not decode a file. If the device set several flags, return
    the reason for the lowest flag."""
    return _ENGINE if flags == NOT_DECODED else _FLAGS[(flags & -flags).bit_length() - 1]


class Counts:
    """Counts the requests and batches of one version of a model."""

    def __init__(self, max_batch: int) -> None:
        self._max_batch = max_batch
        self.row = [0] * (_SIZES + 3 * max_batch)

    def answered(self, images: int, phases: Phases) -> None:
        """Count a request with status 200. If it had images, also count them and its phases."""
        own = self.row
        own[_STATUS] += 1
        if not images:
            return
        own[_IMAGES] += images
        own[_LAST_MS] = time.time_ns() // 1_000_000
        start = _HISTOGRAMS
        for microseconds in phases:
            own[start + bisect_left(_MICROSECONDS, microseconds)] += 1
            own[start + _SUM] += microseconds * 1000
            start += _WIDTH

    def decoded(self, why: str) -> None:
        """Count an image of an engine that can decode files. `why` is the reason why the CPU
        decoded the image instead, or `BY_DEVICE`."""
        self.row[_DECODED[why]] += 1

    @property
    def decoders(self) -> dict[str, int]:
        """Return the number of images by the reason why the CPU decoded them, or `BY_DEVICE`."""
        return _decoders(self.row)

    def refused(self, code: Code, seconds: float) -> None:
        """Count a request that was not answered with 200. If Triton would count the request as
        failed, also add its duration."""
        self.row[_CODES[code]] += 1
        if code in REASONS:
            self.row[_FAIL_NS] += int(seconds * 1e9 + 0.5)

    def batch(self, record: BatchRecord) -> None:
        """Count a batch, and its duration if it succeeded."""
        index = _SIZES + record.size - 1
        self.row[index] += 1
        if record.failed:
            self.row[_FAILED_BATCHES] += 1
        else:
            self.row[index + self._max_batch] += 1
            self.row[index + 2 * self._max_batch] += int(record.compute_s * 1e9 + 0.5)

    def sum(self, more: Sequence[Sequence[int]] = ()) -> "Totals":
        """Return the totals of these counts and of the rows `more`. The rows must be for the same
        maximum batch size."""
        return Totals([self.row, *more], self._max_batch)


def _decoders(cells: Sequence[int]) -> dict[str, int]:
    return {why: count for why, index in _DECODED.items() if (count := cells[index])}


def folded(rows: Sequence[Sequence[int]]) -> list[int]:
    """Return the sum of these rows as one row."""
    columns = list(zip(*rows, strict=True))
    row = [sum(column) for column in columns]
    row[_LAST_MS] = max(columns[_LAST_MS])
    return row


class Totals:
    """A model's totals at one moment, for Prometheus and for Triton's statistics extension."""

    def __init__(self, rows: Sequence[Sequence[int]], max_batch: int) -> None:
        cells = [sum(column) for column in zip(*rows, strict=True)]
        self.inferences = cells[_IMAGES]  # images answered
        self.failed_batches = cells[_FAILED_BATCHES]
        self.last_inference = max(row[_LAST_MS] for row in rows)  # ms since 1970; 0: never
        self.requests = {  # by status: 200, and the others that occurred
            status: cells[index]
            for status, index in _CODES.items()
            if status == 200 or cells[index]
        }

        self.decoded = _decoders(cells)

        starts = range(_HISTOGRAMS, _SIZES, _WIDTH)
        self.duration, *phases = (_histogram(cells[start : start + _WIDTH]) for start in starts)
        self.phases = dict(zip(PHASES, phases, strict=True))
        every, succeeded, times = (
            cells[start : start + max_batch]
            for start in range(_SIZES, _SIZES + 3 * max_batch, max_batch)
        )
        bounds = [*map(floatToGoString, range(1, max_batch + 1)), "+Inf"]
        counts = [float(count) for count in accumulate([*every, 0])]
        images = sum(size * count for size, count in enumerate(every, 1))
        self.batch_size: Histogram = list(zip(bounds, counts, strict=True)), float(images)

        ok = self.requests[200]
        total, receive, decode, queue, compute, respond = (cells[at + _SUM] for at in starts)
        self.success = Duration(ok, total - receive)  # from the last byte of the body, as Triton
        self.compute_input = Duration(ok, decode)
        self.queue = Duration(ok, queue)
        self.compute_infer = Duration(ok, compute)
        self.compute_output = Duration(ok, respond)
        self.failures = dict.fromkeys([*REASONS.values(), "OTHER"], 0)
        for status, count in self.requests.items():
            if status in REASONS:
                self.failures[REASONS[status]] += count
        self.fail = Duration(sum(self.failures.values()), cells[_FAIL_NS])
        self.batches = {  # those that succeeded, by size
            size: Duration(*ran)
            for size, ran in enumerate(zip(succeeded, times, strict=True), 1)
            if ran[0]
        }
        self.executions = sum(succeeded)


def _histogram(cells: Sequence[int]) -> Histogram:
    """Convert counts per bucket and a sum of nanoseconds to the form that prometheus_client needs:
    cumulative counts and seconds."""
    *counts, ns = cells
    return list(zip(_BOUNDS, map(float, accumulate(counts)), strict=True)), ns / 1e9
