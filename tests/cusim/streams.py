"""Streams, events and graphs of the simulated device: work put off until the host waits for it.

A GPU does the work some time between the asking and the waiting. Doing it as late as can be shows
who reads a result, or reuses what a copy is still to read, without having waited.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

from kernels.device.device import DeviceError, Event, Stream

Work = Callable[[], None]


class Queues:
    """What the streams of one device have in common."""

    def __init__(self) -> None:
        self.lock = Lock()  # one thread works at a time
        self.streams: list[CusimStream] = []
        self.capturing: CusimStream | None = None

    def synchronize(self) -> None:
        self.refuse_capture("synchronise")
        for stream in self.streams:
            stream.synchronize()

    def refuse_capture(self, what: str) -> None:
        if self.capturing is not None:
            raise DeviceError(f"cannot {what} while a graph is captured")


class Mark:
    """One recording of an event."""

    seconds: float | None = None  # when it happened

    def happen(self) -> None:
        self.seconds = time.perf_counter()


class CusimStream:
    """A queue of work; see kernels.device.device.Stream."""

    def __init__(self, queues: Queues) -> None:
        self.queues = queues
        self.graph: CusimGraph | None = None  # into which it is captured
        self._work: deque[Work] = deque()
        queues.streams.append(self)

    def ask(self, work: Work) -> None:
        if self.graph is not None:
            self.graph.work.append(work)
        else:
            self._work.append(work)

    def synchronize(self) -> None:
        self.queues.refuse_capture("synchronise")
        with self.queues.lock:
            while self._work:
                self._work.popleft()()


class CusimEvent:
    """A point in a stream; see kernels.device.device.Event."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._mark: Mark | None = None

    def record(self, stream: Stream) -> None:
        self._queues.refuse_capture("record an event")
        self._mark = Mark()
        own_stream(stream).ask(self._mark.happen)

    def elapsed_ms(self, since: Event) -> float:
        return (self._happened() - own_event(since)._happened()) * 1e3

    def _happened(self) -> float:
        if self._mark is None or self._mark.seconds is None:
            raise DeviceError("the event has not happened")
        return self._mark.seconds


class CusimGraph:
    """Captured work; see kernels.device.device.Graph."""

    def __init__(self) -> None:
        self.work: list[Work] = []
        self.whole = False

    def replay(self, stream: Stream) -> None:
        if not self.whole:
            raise DeviceError("a graph can be replayed once its capture has ended")
        to = own_stream(stream)
        to.queues.refuse_capture("replay")
        for work in self.work:
            to.ask(work)


@contextmanager
def capture(stream: Stream) -> Iterator[CusimGraph]:
    captured = own_stream(stream)
    queues = captured.queues
    queues.refuse_capture("capture")
    graph = CusimGraph()
    queues.capturing, captured.graph = captured, graph
    try:
        yield graph
    finally:
        queues.capturing, captured.graph = None, None
    graph.whole = True


def own_stream(stream: Stream) -> CusimStream:
    if not isinstance(stream, CusimStream):
        raise TypeError(f"{stream!r} is a stream of another device")
    return stream


def own_event(event: Event) -> CusimEvent:
    if not isinstance(event, CusimEvent):
        raise TypeError(f"{event!r} is an event of another device")
    return event
