"""Measured timelines, on a device with a simulated clock, and on the simulator."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from cusim.device import CusimDevice, Order
from kernels.device.device import NO_CLUSTERS, Argument, Dim3, Event, Kernel, Stream
from kernels.tuning.heuristic import heuristic
from models import BUILT_IN_MODEL, EngineError, load_classifier, measure_timeline
from models.engines.cuda_engine import CudaEngine
from models.schedule.branches import streams
from models.schedule.time import Estimate, spans
from tests.support.kernels.null_device import NullDevice, NullGraph
from tests.support.models.engines import branching, pixels

LAUNCH_US, REPLAY_US = 2.0, 50.0


@dataclass(eq=False)
class ClockStream:
    """A stream that knows when its work ends, in µs."""

    now: float = 0.0

    def synchronize(self) -> None:
        """See Stream."""

    def wait(self, event: Event) -> None:
        """See Stream."""
        assert isinstance(event, ClockEvent)
        self.now = max(self.now, event.at)


@dataclass(eq=False)
class ClockEvent:
    """See Event."""

    at: float = 0.0

    def record(self, stream: Stream) -> None:
        """See Event."""
        self.at = clock(stream).now

    def elapsed_ms(self, since: Event) -> float:
        """See Event."""
        assert isinstance(since, ClockEvent)
        return (self.at - since.at) / 1e3


class ClockGraph(NullGraph):
    """See Graph."""

    def replay(self, stream: Stream) -> None:
        """See Graph."""
        super().replay(stream)
        clock(stream).now += REPLAY_US


class ClockDevice(NullDevice):
    """A device on which every launch takes the same time on its stream, and nothing else takes
    time."""

    def stream(self) -> ClockStream:  # type: ignore[override]  # one that has a clock
        """See Device."""
        return ClockStream()

    def event(self) -> ClockEvent:  # type: ignore[override]
        """See Device."""
        return ClockEvent()

    def launch(
        self,
        kernel: Kernel,
        grid: Dim3,
        block: Dim3,
        shared_bytes: int,
        arguments: Sequence[Argument],
        stream: Stream,
        *,
        dependent: bool = False,
        cluster: Dim3 = NO_CLUSTERS,
    ) -> None:
        """See Device."""
        super().launch(kernel, grid, block, shared_bytes, arguments, stream, cluster=cluster)
        assert not (dependent and self._graph is None), "launches between events do not overlap"
        clock(stream).now += LAUNCH_US

    @contextmanager
    def capture(self, stream: Stream) -> Iterator[NullGraph]:
        """See Device."""
        self._graph = graph = ClockGraph()
        yield graph
        self._graph = None


def clock(stream: Stream) -> ClockStream:
    assert isinstance(stream, ClockStream)
    return stream


@pytest.mark.parametrize("together", [True, False])
def test_launches_are_timed_on_their_streams_and_the_graph_beside_them(together: bool) -> None:
    device = ClockDevice()
    engine = CudaEngine(
        branching(), device, max_batch=2, choose=heuristic(device), pays=lambda *_: together
    )
    engine.warm_up()
    measured, plan = engine.timeline(2, runs=3), engine.plans[2]
    steps = [Estimate(LAUNCH_US, 0.0)] * len(plan.steps)
    expected = spans(steps, plan.after, [0.0] * len(steps))
    for bar, step, after, span in zip(measured.bars, plan.steps, plan.after, expected, strict=True):
        assert (bar.name, bar.after) == (step.name, sorted(after))
        assert (bar.start_us, bar.end_us) == pytest.approx((span.start_us, span.end_us))
    assert measured.replay_us == pytest.approx(REPLAY_US)
    assert (measured.us < LAUNCH_US * len(steps) - 1) == together
    assert measured.gaps_us == pytest.approx(0.0)
    engine.close()


@pytest.mark.parametrize("together", [True, False])
def test_a_capture_records_events_only_where_another_stream_waits(
    together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[ClockEvent] = []
    record = ClockEvent.record

    def counted(self: ClockEvent, stream: Stream) -> None:
        recorded.append(self)
        record(self, stream)

    monkeypatch.setattr(ClockEvent, "record", counted)
    device = ClockDevice()
    engine = CudaEngine(
        branching(), device, max_batch=1, choose=heuristic(device), pays=lambda *_: together
    )
    engine.warm_up()
    plans = engine._plans.values()
    awaited = {
        (id(plan), other)
        for plan in plans
        for chosen in [streams(plan.after)]
        for step, after in enumerate(plan.after)
        for other in after
        if chosen[other] != chosen[step]
    }
    assert bool(awaited) is together
    assert len(recorded) == len(awaited)
    engine.close()


@pytest.mark.parametrize("order", Order)
def test_a_measurement_waits_as_the_graph_does_and_leaves_the_engine_as_it_was(
    order: Order,
) -> None:
    classifier, cusim = branching(), CusimDevice(order=order)
    engine = CudaEngine(
        classifier, cusim, max_batch=1, choose=heuristic(cusim), pays=lambda *_: True
    )
    engine.warm_up()
    images = pixels(classifier, 1)
    right = engine.run(images).scores
    measured = engine.timeline(1, runs=1)
    for bar in measured.bars:
        assert bar.end_us > bar.start_us
        assert all(measured.bars[other].end_us <= bar.start_us for other in bar.after)
    assert (engine.run(images).scores == right).all()
    engine.close()
    cusim.close()


def test_a_classifier_is_measured_on_this_machines_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.device.cuda_device.CudaDevice", lambda *_: ClockDevice())
    monkeypatch.setattr("models.tuning.measured.DEFAULT_STORE", Path("no/such/tuning.json"))
    measured = measure_timeline(load_classifier(BUILT_IN_MODEL), 2)
    assert (measured.name, measured.n, measured.gpu) == ("digits", 2, "null device")
    assert measured.us == pytest.approx(LAUNCH_US * len(measured.bars))


def test_without_a_gpu_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(EngineError, match="Without --measure, the timeline is modelled"):
        measure_timeline(load_classifier(BUILT_IN_MODEL), 1)
