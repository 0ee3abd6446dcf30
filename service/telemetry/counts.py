"""One model's counts, as a row of whole numbers; rows add up.

    answered   refused       by the event loop that answers requests
    batch                    by the one that runs the engine

Times are nanoseconds, so sums are exact.
"""

import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.utils import floatToGoString

from service.batching.batcher import BatchRecord
from service.errors import ServiceError
from service.telemetry.statistics import REASONS, Duration, Phases, Statistics, reason_of

# What a HistogramMetricFamily takes: bounds with cumulative counts, and the sum.
Told = tuple[list[tuple[str, float]], float]

# From what a small model on a GPU takes to what nobody waits for any longer.
_SECONDS = (
    *(0.00025, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075),
    *(0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
)
_MICROSECONDS = tuple(round(seconds * 1e6) for seconds in _SECONDS)
_SUM = len(_SECONDS) + 1  # behind the counts
_WIDTH = _SUM + 1


def _statuses(error: type[ServiceError]) -> Iterator[int]:
    yield error.status
    for kind in error.__subclasses__():
        yield from _statuses(kind)


# How requests end: 499 is for those whose client left before the answer.
STATUSES = (200, *sorted({499, *_statuses(ServiceError)}))
_PLACES = {status: place for place, status in enumerate(STATUSES)}

PHASES = Phases._fields[1:]  # without the whole

_IMAGES, _FAILED_BATCHES, _LAST, _FAIL_NS, _STATUS = range(5)
_DURATION = _STATUS + len(STATUSES)
_RECEIVE, _DECODE, _QUEUE, _COMPUTE, _RESPOND, _SIZES = (
    _DURATION + place * _WIDTH for place in range(1, 7)
)


class Counts:
    """What happened to one model; `answered`, `refused` and `batch` are for one event loop."""

    def __init__(self, max_batch: int) -> None:
        self._max_batch = max_batch
        self.row = [0] * (_SIZES + 3 * max_batch)

    def rows(self) -> Sequence[Sequence[int]]:
        """All that add up."""
        return [self.row]

    def answered(self, images: int, phases: Phases) -> None:
        """Count a request answered 200."""
        own = self.row
        own[_STATUS] += 1
        own[_IMAGES] += images
        own[_LAST] = time.time_ns() // 1_000_000
        start = _DURATION
        for microseconds in phases:  # in the order of the cells
            own[start + bisect_left(_MICROSECONDS, microseconds)] += 1
            own[start + _SUM] += microseconds * 1000
            start += _WIDTH

    def refused(self, status: int, seconds: float) -> None:
        """Count a request answered anything else, after so long."""
        self.row[_STATUS + _PLACES[status]] += 1
        self.row[_FAIL_NS] += int(seconds * 1e9 + 0.5)

    def batch(self, record: BatchRecord) -> None:
        """Count a batch that the engine ran: its size, whether it succeeded, how long it took."""
        place = _SIZES + record.size - 1
        self.row[place] += 1
        if record.failed:
            self.row[_FAILED_BATCHES] += 1
        else:
            self.row[place + self._max_batch] += 1
            self.row[place + 2 * self._max_batch] += int(record.compute_s * 1e9 + 0.5)

    def sum(self) -> "Sum":
        """All of it."""
        return Sum(self.rows(), self._max_batch)


class Sum:
    """What was counted of a model up to some moment."""

    def __init__(self, rows: Sequence[Sequence[int]], max_batch: int) -> None:
        self._cells: list[int] = [sum(column) for column in zip(*rows, strict=True)]
        self._last = max(row[_LAST] for row in rows)
        self._max_batch = max_batch

    @property
    def images(self) -> int:
        """Images that were answered."""
        return self._cells[_IMAGES]

    @property
    def failed_batches(self) -> int:
        """Batches on which the engine failed."""
        return self._cells[_FAILED_BATCHES]

    @property
    def requests(self) -> dict[int, int]:
        """Requests by the status of their answer; 200, and what there was of others."""
        ended = zip(STATUSES, self._cells[_STATUS:_DURATION], strict=True)
        return {status: count for status, count in ended if count or status == 200}

    @property
    def duration(self) -> Told:
        """How long the requests took that were answered 200."""
        return self._histogram(_DURATION)

    def phase(self, name: str) -> Told:
        """How long one of the PHASES took of them."""
        return self._histogram(_RECEIVE + PHASES.index(name) * _WIDTH)

    @property
    def batch_size(self) -> Told:
        """Images in a batch."""
        sizes = self._cells[_SIZES : _SIZES + self._max_batch]
        counts = [float(count) for count in accumulate(sizes)]
        bounds = map(floatToGoString, range(1, self._max_batch + 1))
        images = sum(size * count for size, count in enumerate(sizes, 1))
        return [*zip(bounds, counts, strict=True), ("+Inf", counts[-1])], float(images)

    @property
    def statistics(self) -> Statistics:
        """The same, as Triton's statistics extension has it."""
        cells, most = self._cells, self._max_batch
        requests = self.requests
        failures = dict.fromkeys(REASONS, 0)
        for status, count in requests.items():
            if status != 200:
                failures[reason_of(status)] += count
        runs = cells[_SIZES + most : _SIZES + 2 * most]
        times = cells[_SIZES + 2 * most : _SIZES + 3 * most]
        ran = zip(runs, times, strict=True)
        count = requests[200]
        return Statistics(
            inferences=self.images,
            # A request's time begins when its body is there.
            success=Duration(count, cells[_DURATION + _SUM] - cells[_RECEIVE + _SUM]),
            fail=Duration(sum(failures.values()), cells[_FAIL_NS]),
            compute_input=Duration(count, cells[_DECODE + _SUM]),
            queue=Duration(count, cells[_QUEUE + _SUM]),
            compute_infer=Duration(count, cells[_COMPUTE + _SUM]),
            compute_output=Duration(count, cells[_RESPOND + _SUM]),
            batches={size: Duration(*each) for size, each in enumerate(ran, 1) if each[0]},
            failures=failures,
            last_inference=self._last,
        )

    def _histogram(self, start: int) -> Told:
        counts = accumulate(self._cells[start : start + _SUM])
        bounds = [*map(floatToGoString, _SECONDS), "+Inf"]
        return list(zip(bounds, map(float, counts), strict=True)), self._cells[start + _SUM] / 1e9
