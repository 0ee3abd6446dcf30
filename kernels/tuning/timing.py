"""Times launches on a device by replaying graphs of many copies between two events.

    launches × operand sets ─ capture ─> graphs of 20 to 50 copies ─ replay ─> µs per copy ─> Timing

With many copies per graph, the cost of a replay and the clock's resolution hardly affect the
result. The number of operand sets decides whether the operands are in the second-level cache. With
n sets, copy i runs on set i modulo n, across all graphs and replays. A single set stays in the
cache (warm). If all sets together exceed the cache, each set has left the cache before its next use
(cold). `sets_needed` returns the number of sets for a cold cache, and `operand_sets` returns their
addresses.

    warm  A A A A A A          cold  A B C D ... A B C D ...
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import accumulate, pairwise

from kernels.device.device import ALIGNMENT, Device, Event, Graph, Stream
from kernels.device.gpus import GPUS
from kernels.device.launch import Launch

COPIES = 20
"""The number of copies of the launches in a graph."""

REPLAYS = 200
"""The number of replays of graphs for a median."""

REUSE_BYTES = 3 * max(gpu.l2_mb for gpu in GPUS.values()) * 2**20
"""With a cold cache, the bytes between two uses of the same byte: three times the largest
second-level cache of a listed GPU."""

_WARM_UP_MS = 0.1
"""Milliseconds of work before the counted replays, per counted replay. An idle GPU's clock is a
fifth of its highest clock, and takes milliseconds to rise. REPLAYS get 20 ms; shorter probes get
less."""

_AHEAD = 3
"""The number of replays before the counted replays. The host does not wait for these replays, so
that it gets ahead of the device."""

Addresses = Mapping[str, int]
"""Device addresses by operand name."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Holds percentiles of the time in µs that one run of some launches takes."""

    p20_us: float
    p50_us: float
    p80_us: float

    @classmethod
    def of(cls, samples_us: Sequence[float]) -> "Timing":
        """Return the percentiles of times in µs. There must be at least two times."""
        cuts = statistics.quantiles(samples_us, n=10, method="inclusive")
        return cls(cuts[1], cuts[4], cuts[7])


class Copies:
    """Captures graphs with many copies of some work, such as a launch, and times their replays.

    `run(stream, i)` enqueues the work on operand set i of `sets`. The addresses of the sets must
    not change. The work first runs once on set 0, so that errors occur before the capture.
    `capture` replaces `device.capture` if given. Raises DeviceError.
    """

    def __init__(
        self,
        device: Device,
        run: Callable[[Stream, int], None],
        sets: int,
        *,
        copies: int = COPIES,
        capture: Callable[[Stream], AbstractContextManager[Graph]] | None = None,
    ) -> None:
        self._device = device
        self._stream = device.stream()
        device.synchronize()  # the writes of the operands, on any stream
        run(self._stream, 0)
        self._stream.synchronize()
        self._graphs: list[Graph] = []
        self._copies = graph_sizes(sets, copies)
        for begin, size in zip(accumulate(self._copies, initial=0), self._copies, strict=False):
            with (capture or device.capture)(self._stream) as graph:
                for copy in range(begin, begin + size):
                    run(self._stream, copy % sets)
            self._graphs.append(graph)
        self._next = 0

    def samples_us(self, replays: int = REPLAYS) -> list[float]:
        """Replay the graphs in turn, `replays` times in all. For each replay, return the time of
        one copy of the work in µs."""
        # The last graph alone: the other graphs' operands stay cold.
        last = self._graphs[-1]
        began, ended = self._device.event(), self._device.event()
        began.record(self._stream)
        warm_up_ms, count = 0.0, 1
        while warm_up_ms < _WARM_UP_MS * replays:
            for _ in range(count):
                last.replay(self._stream)
            ended.record(self._stream)
            self._stream.synchronize()
            warm_up_ms, count = ended.elapsed_ms(began), 2 * count
        for _ in range(_AHEAD):
            last.replay(self._stream)
        self._next = 0
        events: list[Event] = [self._device.event() for _ in range(replays + 1)]
        events[0].record(self._stream)
        copies = []
        for event in events[1:]:
            copies.append(self._replay())
            event.record(self._stream)
        self._stream.synchronize()
        return [
            end.elapsed_ms(begin) * 1e3 / size
            for (begin, end), size in zip(pairwise(events), copies, strict=True)
        ]

    def _replay(self) -> int:
        """Replay the next graph, and return how many copies it has."""
        index = self._next
        self._next = (index + 1) % len(self._graphs)
        self._graphs[index].replay(self._stream)
        return self._copies[index]


def launcher(
    device: Device,
    launches: Sequence[Launch],
    operands: Sequence[Addresses],
    *,
    dependent: bool = False,
) -> Callable[[Stream, int], None]:
    """Return a function that enqueues all launches in order on the operand set with a given index.

    If `dependent`, a launch may begin before the previous launch has ended.
    """
    kernels = [device.load(launch.instantiation) for launch in launches]

    def run(stream: Stream, index: int) -> None:
        for kernel, launch in zip(kernels, launches, strict=True):
            device.launch(
                kernel,
                launch.grid,
                launch.block,
                launch.shared_bytes,
                launch.bind(operands[index]),
                stream,
                dependent=dependent,
                cluster=launch.cluster,
            )

    return run


def launch_copies(
    device: Device,
    launches: Sequence[Launch],
    operands: Sequence[Addresses],
    *,
    copies: int = COPIES,
    dependent: bool = False,
) -> Copies:
    """Capture graphs with many copies of a sequence of launches. The copies use the operand sets in
    turn.

    Counters must be zero. Raises DeviceError.
    """
    run = launcher(device, launches, operands, dependent=dependent)
    return Copies(device, run, len(operands), copies=copies)


def time_launches(
    device: Device,
    launches: Sequence[Launch],
    operands: Sequence[Addresses],
    *,
    copies: int = COPIES,
    replays: int = REPLAYS,
    dependent: bool = False,
) -> Timing:
    """Time a sequence of launches. The copies use one operand set (warm), or several sets in turn
    (cold).

    Counters must be zero. Raises DeviceError.
    """
    made = launch_copies(device, launches, operands, copies=copies, dependent=dependent)
    return Timing.of(made.samples_us(replays))


def graph_sizes(sets: int, copies: int) -> list[int]:
    """Return the number of copies in each graph, which is about `copies`. All graphs together use
    every operand set equally often. The sets therefore stay in order when the first graph follows
    the last."""
    if sets <= copies:
        return [-(-copies // sets) * sets]
    graphs = -(-sets // copies)
    return [sets // graphs + (index < sets % graphs) for index in range(graphs)]


def sets_needed(
    nbytes: int, reuse_bytes: int = REUSE_BYTES, *, copies: int = COPIES, replays: int = REPLAYS
) -> int:
    """Return the number of operand sets of `nbytes` each that a cold cache needs. At least
    `reuse_bytes` of other data are used between two uses of a set.

    With a warm-up, `replays` + 1 graphs run, and each runs the kernel `copies` times. Sets beyond
    this number of runs would not be used.
    """
    return min(reuse_bytes // nbytes + 2, copies * (replays + 1))


def operand_sets(begin: int, sizes: Mapping[str, int], count: int) -> list[dict[str, int]]:
    """Return the addresses of `count` operand sets, which lie one after another from the aligned
    address `begin`.

    `sizes` are in bytes. All sets together occupy `count * set_bytes(sizes)` bytes.
    """
    step = set_bytes(sizes)
    offsets = accumulate(map(_aligned, sizes.values()), initial=0)
    first = {name: begin + offset for name, offset in zip(sizes, offsets, strict=False)}
    return [
        {name: address + index * step for name, address in first.items()} for index in range(count)
    ]


def set_bytes(sizes: Mapping[str, int]) -> int:
    """Return the bytes of one operand set. Each operand is aligned like a Buffer."""
    return sum(map(_aligned, sizes.values()))


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
