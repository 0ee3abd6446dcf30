"""What every process may know of a model without asking: in memory that all of them share.

    line     how the model is      written by the engine's process
    inside   images, a worker      written by the worker; by the engine's process once it is dead
    counts   a row a process       see `service/telemetry/counts.py`

Each number is one aligned word, so nobody ever reads half of one; that two of them are of different
moments does no harm, for the batcher has the last word. Everything begins at a cache line, so that
no two processes write to one. A worker in another's place goes on counting where that one stopped,
so counters never go down.
"""

from collections.abc import Sequence
from math import inf
from time import perf_counter
from typing import Any

from service.batching.batcher import Load
from service.batching.dispatcher import Dispatcher
from service.batching.latency import Latency
from service.batching.policy import Urgency
from service.engine.runner import State
from service.errors import DeadlineError
from service.hosting.admission import Inside
from service.processes.memory import Memory
from service.telemetry.counts import Cells, Counts

_WORD = 8
_LINE = 64 // _WORD  # words of a cache line

_STATES = tuple(State)
_STATE, _DEPTH, _RUNNING, _SINCE, _OTHERS, _SHARE, _RESTARTS, _ERROR, _SECONDS = range(9)


class Line:
    """One model, as the engine's process last wrote it."""

    def __init__(self, cells: "memoryview[float]", max_batch: int) -> None:
        """`cells` are `width` doubles."""
        self._cells = cells
        self._max_batch = max_batch
        self._latency: Latency | None = None  # as written last

    @staticmethod
    def width(max_batch: int) -> int:
        """How many doubles a line has."""
        return _SECONDS + max_batch

    def write(self, state: State, load: Load, latency: Latency, restarts: int) -> None:
        """Say how it is now."""
        cells = self._cells
        cells[_STATE] = _STATES.index(state)
        cells[_DEPTH] = load.depth
        cells[_RUNNING] = load.running
        cells[_SINCE] = load.since
        cells[_OTHERS] = load.others_until
        cells[_SHARE] = load.share
        cells[_RESTARTS] = restarts
        if latency is not self._latency:
            self._latency = latency
            cells[_ERROR] = latency.error
            for place, seconds in enumerate(latency.seconds, _SECONDS):
                cells[place] = seconds

    @property
    def state(self) -> State:
        """What it can do for a new request."""
        return _STATES[int(self._cells[_STATE])]

    @property
    def depth(self) -> int:
        """How many images wait for a batch."""
        return int(self._cells[_DEPTH])

    @property
    def restarts(self) -> int:
        """How often its engine was restarted."""
        return int(self._cells[_RESTARTS])

    @property
    def latency(self) -> Latency:
        """How long batches take."""
        seconds = self._cells[_SECONDS : _SECONDS + self._max_batch]
        return Latency(tuple(seconds), self._cells[_ERROR])

    def expected_wait_s(self) -> float:
        """Seconds until all that is waiting or running now will have been run."""
        share = self._cells[_SHARE]
        wait_s = self._dispatcher().wait_s(perf_counter(), self.depth)
        return wait_s / share if share else wait_s

    def check_deadline(self, count: int, urgency: Urgency) -> None:
        """Raise DeadlineError if `count` images that came now could not be expected in time.

        Who would go before them is the batcher's to know; here nobody does.
        """
        if urgency.deadline == inf:
            return
        now, others_until = perf_counter(), self._cells[_OTHERS]
        done = self._dispatcher().completion(now, 0, count, others_until or None)
        if done > urgency.deadline:
            raise DeadlineError(done - now, urgency.deadline - now)

    def _dispatcher(self) -> Dispatcher:
        """One that is as busy as the batcher's; made for the few who ask."""
        dispatcher = Dispatcher(self.latency)
        running = int(self._cells[_RUNNING])
        if running:
            dispatcher.dispatched(self._cells[_SINCE], running)
        return dispatcher


class SharedInside(Inside):
    """How many images of a model are inside, counted by several processes."""

    def __init__(self, every: "Sequence[memoryview[int]]", own: int) -> None:
        """Each process has the first number of its own cells."""
        self._every = every
        self._own = every[own]

    def forget(self) -> None:
        """This process is gone, and its images with it."""
        self._own[0] = 0

    def add(self, images: int) -> None:
        """Count more in this process, or fewer."""
        self._own[0] += images

    @property
    def images(self) -> int:
        """How many there are in all processes."""
        return sum(cells[0] for cells in self._every)


class Board:
    """All that processes share of one model, but for its images."""

    def __init__(self, workers: int, own_max_batch: int, max_batch: int) -> None:
        """`own_max_batch` is the model's, `max_batch` what its metrics are made for."""
        self._workers = workers
        self._own_max_batch = own_max_batch
        self._lines = _whole(Line.width(own_max_batch))
        self._row = _whole(Counts.width(max_batch))
        words = self._lines + workers * _LINE + (workers + 1) * self._row
        self._memory = Memory(words * _WORD)

    def line(self) -> Line:
        """How the model is."""
        return Line(self._memory.view.cast("d")[: self._lines], self._own_max_batch)

    def inside(self, worker: int) -> SharedInside:
        """The images inside, counted in a worker."""
        words = self._memory.view.cast("q")
        places = range(self._lines, self._lines + self._workers * _LINE, _LINE)
        return SharedInside([words[place : place + 1] for place in places], worker)

    def rows(self, width: int, worker: int | None = None) -> tuple[Cells, Sequence[Cells]]:
        """The rows of counts, and of them a worker's, or the engine's process'."""
        words = self._memory.view.cast("q")
        first = self._lines + self._workers * _LINE
        # A memoryview cannot insert or remove as a MutableSequence should, which nobody does here.
        rows: list[Any] = [
            words[first + number * self._row :][:width] for number in range(self._workers + 1)
        ]
        return rows[self._workers if worker is None else worker], rows


def _whole(words: int) -> int:
    """In whole cache lines."""
    return -(-words // _LINE) * _LINE
