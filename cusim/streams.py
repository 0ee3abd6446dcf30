"""Implements the streams, events and graphs of the simulated device. Work runs only when the host
waits for it.

A GPU does work at some time between the host's request and the host's wait. The simulator does it
as late as possible. This reveals code that does not wait before it reads a result, or before it
overwrites memory that a copy must still read. If several nodes of a graph are ready, the device's
order decides which node runs next: the first, the last, or a random one. Launches that may overlap
on a GPU do overlap here. Before a launch runs, the next two launches begin.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from threading import Lock

from kernels.device.device import DeviceError, Event, Stream

Work = Callable[[], None]
Pick = Callable[[Sequence[int]], int]
"""Chooses one of the nodes of a graph that may be next."""


OVERLAPPING = 3  # launches, as max_overlapping in runtime/launch.h


@dataclass(slots=True)
class PendingLaunch:
    """A launch that has not run yet. If `early` is true, it may begin before the previous launch
    has run."""

    begin: Callable[[bool], None]  # argument: whether it begins before the previous launch runs
    run: Callable[[bool], None]  # argument: whether `begin` was called
    early: bool
    begun: bool = False

    def begin_once(self, ahead: bool) -> None:
        if not self.begun:
            self.begun = True
            self.begin(ahead)

    def __call__(self) -> None:
        self.run(self.begun)


class Queues:
    """Holds the streams of a device and the state that they share."""

    def __init__(self, pick: Pick = min) -> None:
        self.lock = Lock()  # one thread works at a time
        self.pick = pick
        self.streams: list[CusimStream] = []
        self.capturing: CusimStream | None = None

    def synchronize(self) -> None:
        self.refuse_capture("synchronise")
        for stream in self.streams:
            stream.synchronize()

    def refuse_capture(self, what: str) -> None:
        if self.capturing is not None:
            raise DeviceError(
                f"a device cannot {what} while a graph is captured; end the capture first"
            )


class Mark:
    """The position in a stream's queue at which an event was recorded."""

    def __init__(self, stream: "CusimStream") -> None:
        self.stream, self.graph = stream, stream.graph
        self.behind = stream.ends  # in a capture, the nodes that must run before the event
        self.seconds: float | None = None  # the time of the event, after it happened

    def happen(self) -> None:
        self.seconds = time.perf_counter()

    def bring_about(self) -> None:
        """Run all work of the stream that precedes the event."""
        while self.seconds is None:
            self.stream.next()


class CusimStream:
    """A queue of work; implements kernels.device.device.Stream."""

    def __init__(self, queues: Queues) -> None:
        self.queues = queues
        self.graph: CusimGraph | None = None  # the graph into which the stream is captured
        self.ends: frozenset[int] = frozenset()  # the nodes that the next captured node must follow
        self._work: deque[Work] = deque()
        queues.streams.append(self)

    def ask(self, work: Work) -> None:
        if self.graph is not None:
            self.graph.nodes.append(Node(work, self.ends))
            self.ends = frozenset({len(self.graph.nodes) - 1})
        else:
            self._work.append(work)

    def synchronize(self) -> None:
        self.queues.refuse_capture("synchronise")
        with self.queues.lock:
            while self._work:
                self.next()

    def next(self) -> None:
        """Run the first pending work. If this work is a launch, first begin the launches that may
        overlap with it."""
        work = self._work.popleft()
        if isinstance(work, PendingLaunch):
            for following in islice(self._work, OVERLAPPING - 1):
                if not isinstance(following, PendingLaunch) or not following.early:
                    break
                work.begin_once(ahead=False)
                following.begin_once(ahead=True)
        work()

    def wait(self, event: Event) -> None:
        mark = own_event(event).mark
        if mark is None:
            return
        if mark.graph is None:
            self.ask(mark.bring_about)
            return
        if self.queues.capturing is None or mark.graph is not self.queues.capturing.graph:
            raise DeviceError("a stream can wait only for an event of the same capture")
        self.graph = mark.graph
        self.ends |= mark.behind


class CusimEvent:
    """A point in a stream; implements kernels.device.device.Event."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self.mark: Mark | None = None

    def record(self, stream: Stream) -> None:
        own = own_stream(stream)
        self.mark = Mark(own)
        if own.graph is None:
            self._queues.refuse_capture("record an event of a stream that is not captured")
            own.ask(self.mark.happen)

    def elapsed_ms(self, since: Event) -> float:
        return (self._happened() - own_event(since)._happened()) * 1e3

    def _happened(self) -> float:
        if self.mark is None or self.mark.seconds is None:
            raise DeviceError("the event has not happened yet; synchronise its stream first")
        return self.mark.seconds


@dataclass(frozen=True, slots=True)
class Node:
    """Holds captured work and the nodes that must run before it."""

    work: Work
    after: frozenset[int]


class CusimGraph:
    """A graph of captured work; implements kernels.device.device.Graph."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.whole = False

    @property
    def early_launches(self) -> int:
        """Return how many of the graph's launches may begin before the previous launch has
        ended."""
        return sum(
            isinstance(node.work, PendingLaunch)
            and node.work.early
            and len(node.after) == 1
            and all(isinstance(self.nodes[number].work, PendingLaunch) for number in node.after)
            for node in self.nodes
        )

    def replay(self, stream: Stream) -> None:
        if not self.whole:
            raise DeviceError("a graph can be replayed only after its capture has ended")
        to = own_stream(stream)
        to.queues.refuse_capture("replay")
        done: set[int] = set()
        before: frozenset[int] | None = None  # the previous node in the queue
        left = set(range(len(self.nodes)))
        while left:
            first = to.queues.pick(
                [number for number in sorted(left) if self.nodes[number].after <= done]
            )
            left.remove(first)
            done.add(first)
            work, after = self.nodes[first].work, self.nodes[first].after
            if isinstance(work, PendingLaunch):
                work = replace(work, early=work.early and after == before)
            to.ask(work)
            before = frozenset({first})


@contextmanager
def capture(stream: Stream) -> Iterator[CusimGraph]:
    """Within the `with` block, record the stream's work into a graph instead of the stream's queue.

    Raises DeviceError if the stream does not wait for the end of a branch.
    """
    captured = own_stream(stream)
    queues = captured.queues
    queues.refuse_capture("capture")
    graph = CusimGraph()
    queues.capturing, captured.graph = captured, graph
    joined: frozenset[int] = frozenset()
    try:
        yield graph
        joined = captured.ends
    finally:
        queues.capturing = None
        for member in queues.streams:
            member.graph, member.ends = None, frozenset()
    if set(range(len(graph.nodes))) - joined.union(*(node.after for node in graph.nodes)):
        raise DeviceError("the stream must wait for the end of each branch before the capture ends")
    graph.whole = True


def own_stream(stream: Stream) -> CusimStream:
    """Return `stream` with the simulator's type. Raises TypeError for a stream of another
    device."""
    if not isinstance(stream, CusimStream):
        raise TypeError(f"{stream!r} is not a stream of the simulator")
    return stream


def own_event(event: Event) -> CusimEvent:
    """Return `event` with the simulator's type. Raises TypeError for an event of another device."""
    if not isinstance(event, CusimEvent):
        raise TypeError(f"{event!r} is not an event of the simulator")
    return event
