"""Implements the engine for Convoy's own kernels, with a captured CUDA graph per batch size N.

    images ─ pinned ─┬─ graph of plan n ────────────────┬─ pinned ─ scores, ranking (replay.py)
                     └─ copy or first kernel … last one ┘

The engine runs one batch at a time, on one stream of any `Device`: a GPU through CuPy or, in tests,
the simulator on the CPU. Memory is allocated, kernels are compiled and weights are uploaded before
the first request. A batch is one replay of a graph, from images in pinned memory to results in
pinned memory.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.device.device import (
    Buffer,
    Device,
    DeviceError,
    Event,
    FaultError,
    Graph,
    Instantiation,
    Kernel,
    OutOfMemoryError,
    Stream,
)
from kernels.image.place import Kind, kind_of, kind_of_batch, write
from kernels.problems.precision import Precision
from models.arena import aligned
from models.classifier import Classifier
from models.engines.engine import (
    Batch,
    Engine,
    Fallback,
    Progress,
    Proof,
    Results,
    TopClasses,
    batch_size,
    unproved,
)
from models.engines.replay import Put, Replay, kernel_reads_host
from models.errors import DeviceLostError, EngineError
from models.layers import layers_of
from models.lowering import Choose
from models.plan import Location, Pays, Plan, Region, Step, build_plan
from models.schedule import time
from models.schedule.branches import dependents, streams
from models.schedule.timeline import Bar, Timeline

_log = logging.getLogger("convoy")

_AHEAD = 20
"""The number of replays that keep the GPU busy while the host queues the measured launches."""

_PlanKey = tuple[Kind, int]  # kind and N


class _Weights:
    """Holds weights on a device until the last engine that shares them has released them."""

    def __init__(self, device: Device, stream: Stream, arrays: Mapping[str, NDArray[Any]]) -> None:
        sizes = [aligned(array.nbytes) for array in arrays.values()]
        self._buffer = device.allocate(max(sum(sizes), 1), constant=True)
        begins = accumulate(sizes, initial=self._buffer.address)
        self.begins = dict(zip(arrays, begins, strict=False))
        self.users = 0
        for key, array in arrays.items():
            device.upload(self.begins[key], np.ascontiguousarray(array), stream)
        stream.synchronize()

    def release(self) -> None:
        """Record that one engine no longer uses the weights. If no engine uses them any more, free
        their memory."""
        self.users -= 1
        if not self.users:
            self._buffer.free()


class CudaEngine:
    """Runs a classifier on a device at the classifier's precision. One thread at a time may call
    `run`.

    Methods raise DeviceLostError if a fault has made the device unusable.

    Engines on the same device share plans, loaded kernels and weights. One allocation holds the
    weights of all plans. A second allocation holds the images, the counters and the arena, each as
    large as the largest plan needs. For each batch size N, there is one plan per kind of image
    (`Preprocessing.batch_kinds`).
    """

    fallback_reason = ""

    def __init__(
        self,
        classifier: Classifier,
        device: Device,
        *,
        max_batch: int,
        choose: Choose,
        progress: Progress = iter,
        pays: Pays | None = None,
        beside: "CudaEngine | None" = None,
        prove: Proof = unproved,
        fallback: Fallback | None = None,
        takes: Kind = Kind.TENSOR,
        threads: int = 0,
    ) -> None:
        """Open the engine. If `beside` is given, share its plans, kernels and weights.

        `beside` is an open engine of the same classifier. `prove` checks the scores at the end of
        `warm_up`. If the warm-up fails, `fallback` opens the engine that replaces this one. `pays`
        decides whether the branches of a plan run in parallel; by default, the cost model decides.
        The device accepts the model's `batch_kinds`, up to the kind `takes`. Kernels are compiled
        by `threads` threads; 0 means one thread per core.
        """
        if max_batch < 1:
            raise EngineError(f"max_batch must be at least 1, got {max_batch}")
        p = classifier.preprocessing
        self.precision = classifier.precision
        self._name, self._device, self.gpu = classifier.name, device, device
        self.max_batch, self.classes = max_batch, classifier.classes
        self._forms, self._image_shape = p.forms, p.image_shape
        self._inner, self._origins = classifier.inner, classifier.origins
        self._kinds = p.batch_kinds(takes)
        self.takes = self._kinds[-1]
        self.on_cpu = False
        self._prove, self._fallback = prove, fallback
        graph = classifier.rewritten.graph
        self.layers = str(layers_of(graph)) if self.precision is Precision.INT8 else ""
        self._plans: Mapping[_PlanKey, Plan] = (
            beside._plans
            if beside
            else {
                (kind, n): build_plan(
                    graph,
                    p,
                    n,
                    choose,
                    kind=kind,
                    pays=pays or partial(time.pays, machine=device),
                )
                for kind, n in self._plan_keys()
            }
        )
        self._replays: dict[_PlanKey, Replay] = {}
        self._kernels: Mapping[Instantiation, Kernel]
        self._side_streams: Sequence[Stream] = ()  # for steps that run in parallel to `_stream`
        self._buffer: Buffer | None = None
        self._weights: _Weights | None = None
        try:
            self._kernels = beside._kernels if beside else self._load(progress, threads)
            self._stream = device.stream()
            branches = max(max(streams(plan.after)) for plan in self._plans.values())
            # All streams are created before the captures, in which a driver may refuse to create
            # one.
            self._side_streams = [device.stream() for _ in range(branches)]
            self._allocate(beside)
        except OutOfMemoryError as error:
            self._free()
            raise EngineError(
                f"{classifier.name} at max_batch {max_batch} needs {error.needed:,} bytes on"
                f" {device.name}, where {error.free:,} are free; lower --max-batch"
            ) from error
        except DeviceError as error:
            self._free()
            raise _failure(error, f"{device.name} cannot load {classifier.name}") from error

    @property
    def device(self) -> str:
        """Return the name of the device for display, including its architecture."""
        return f"{self._device.name} (Convoy's kernels, sm_{self._device.architecture})"

    @property
    def plans(self) -> Mapping[int, Plan]:
        """Return the plans for batches of pixels, by batch size N."""
        return {n: plan for (kind, n), plan in self._plans.items() if kind is Kind.PIXELS}

    def warm_up(self) -> Engine:
        """Run the plan of every batch size, launch by launch and then as a captured graph. Then
        check the scores with `prove`.

        The largest N runs first. Returns the engine that will serve: this engine, or the fallback
        if this engine failed.
        """
        try:
            self._capture()
            self.max_batch = self._prove(self)
        except EngineError as failure:
            if self._fallback is None:
                raise
            try:
                self.close()
            except EngineError as error:  # on a lost device; the CPU engine does not need it
                _log.warning("the GPU's memory could not be freed: %s", error)
            return self._fallback(failure).warm_up()
        return self

    def _capture(self) -> None:
        for key, plan in sorted(self._plans.items(), key=lambda item: -item[0][1]):
            kind, n = key
            blank = np.zeros(self._image_shape, np.uint8)
            put: Put = np.copyto if kind is Kind.PIXELS else write
            shape = blank.shape if kind is Kind.PIXELS else (-1,)
            places = self._images[: plan.input_bytes].reshape(n, *shape)
            for place in places:
                put(place, blank)
            self._run_step_by_step(plan)
            try:
                with self._device.capture(self._stream) as graph:
                    self._upload(plan)
                    self._launch_side_by_side(plan)
            except DeviceError as error:
                what = f"{self._name} at batch size {n} cannot be captured in a CUDA graph"
                raise _failure(error, what) from error
            results = self._results[: plan.output_bytes].view(np.float32)
            self._replays[key] = Replay(graph, self._stream, places, results.reshape(n, -1), put)
            self._run_batch(key, [blank] * n)

    def run(self, images: Batch, inner: Collection[str] = ()) -> Results:
        """Return the results of N images. Raises EngineError if the images have a wrong shape.

        The values named in `inner` are copied from the arena after the replay.
        """
        n = batch_size(images, self._forms, self.max_batch)
        if not self._replays:
            raise EngineError("the engine is closed or not warmed up; warm up a new engine")
        kind = kind_of_batch(images)
        if kind > self.takes:
            images = [
                np.asarray(image) if kind_of(image) > self.takes else image for image in images
            ]
            kind = kind_of_batch(images)
        key = next(other for other in self._kinds if other >= kind), n
        rows = self._run_batch(key, images)
        ranked = rows[:, self.classes : -1]
        k = ranked.shape[1] // 2
        return Results(
            rows[:, : self.classes],
            TopClasses(ranked[:, :k], ranked[:, k:]),
            {name: self._read(key, name) for name in inner},
            (rows[:, -1] - 1).astype(np.int32) if key[0] is Kind.JPEG else None,
        )

    def early_launches(self, n: int) -> tuple[int, int]:
        """Return how many launches may begin before the previous launch ends, for n images of
        pixels.

        The first number is for the plan, the second for its captured graph. The second may be
        smaller, because the capture may add dependencies. Raises DeviceError.
        """
        key = Kind.PIXELS, n
        planned = sum(dependents(self._plans[key].after)) if self._device.overlaps else 0
        return planned, self._device.early_launches(self._replays[key].graph)

    def timeline(self, n: int, runs: int = 20) -> Timeline:
        """Return the times at which each launch of a batch of n images of pixels runs.

        The times are medians of `runs` runs. The input is the images of the last batch. Raises
        EngineError.
        """
        key = Kind.PIXELS, n
        plan, graph = self._plans[key], self._replays[key].graph
        try:
            times_us = 1e3 * np.median([self._times_ms(plan, graph) for _ in range(runs)], axis=0)
        except DeviceError as error:
            raise _failure(error, f"{self._name} at batch size {n} could not be timed") from error
        replay_us, *between = times_us.tolist()
        spans = zip(between[::2], between[1::2], strict=True)
        launches = zip(plan.steps, spans, plan.after, strict=True)
        bars = [Bar(step.name, *span, sorted(after)) for step, span, after in launches]
        return Timeline(self._name, n, self._device.name, bars, replay_us)

    def _times_ms(self, plan: Plan, graph: Graph) -> list[float]:
        """Return the time of a replay, and then the start and end of each launch, in ms.

        The times of launches are counted from the start of the first launch.
        """
        begin, end = self._device.event(), self._device.event()
        for _ in range(_AHEAD):
            graph.replay(self._stream)
        begin.record(self._stream)
        graph.replay(self._stream)
        end.record(self._stream)
        begins, ends = self._launch_side_by_side(plan, timed=True)
        self._stream.synchronize()
        return [
            end.elapsed_ms(begin),
            *(
                event.elapsed_ms(begins[0])
                for pair in zip(begins, ends, strict=True)
                for event in pair
            ),
        ]

    def _run_batch(self, key: _PlanKey, images: Batch) -> NDArray[np.float32]:
        try:
            return self._replays[key].run(images)
        except DeviceError as error:
            raise _failure(error, f"{self._name} failed on a batch of size {key[1]}") from error

    def _read(self, key: _PlanKey, name: str) -> NDArray[np.float32]:
        """Return a value inside the network, which the last batch has computed."""
        kept, shape = self._plans[key].kept[self._origins[name]], self._inner[name].shape
        try:
            data = self._kept[: kept.nbytes]
            self._device.download(data, self._begins[Region.ARENA] + kept.offset, self._stream)
            self._stream.synchronize()
        except DeviceError as error:
            what = f"the value {name} of {self._name} cannot be read from {self._device.name}"
            raise _failure(error, what) from error
        return kept.array(data).astype(np.float32, order="C").reshape(key[1], *shape)

    def close(self) -> None:
        """Free the device's memory. Further calls have no effect."""
        try:
            if self._buffer is not None:
                self._stream.synchronize()
        except DeviceError as error:
            raise _failure(error, f"{self._name} cannot be closed") from error
        finally:
            self._free()

    def _free(self) -> None:
        self._replays.clear()
        self._side_streams = ()
        if self._buffer is not None:
            buffer, self._buffer = self._buffer, None
            buffer.free()
        if self._weights is not None:
            weights, self._weights = self._weights, None
            weights.release()

    def _run_step_by_step(self, plan: Plan) -> None:
        """Run a plan and wait after every launch, so that an error message can name the launch that
        failed."""
        self._upload(plan)
        for step in plan.steps:
            try:
                self._launch(step, plan, self._stream)
                self._stream.synchronize()
            except DeviceError as error:
                what = f"step {step.name} ({step.launch.instantiation}) of {self._name} failed"
                where = f"at batch size {plan.n} on {self._device.name}"
                raise _failure(error, f"{what} {where}") from error

    # --- before the first request ---

    def _plan_keys(self) -> Iterable[_PlanKey]:
        return product(self._kinds, range(1, self.max_batch + 1))

    def _load(self, progress: Progress, threads: int) -> Mapping[Instantiation, Kernel]:
        every = dict.fromkeys(
            step.launch.instantiation for plan in self._plans.values() for step in plan.steps
        )
        for _ in zip(progress(every), self._device.compile(every, threads), strict=True):
            pass  # each step of the progress bar is a compiled kernel
        return {instantiation: self._device.load(instantiation) for instantiation in every}

    def _allocate(self, beside: "CudaEngine | None") -> None:
        plans = self._plans.values()
        makers = {key: make for plan in plans for key, make in plan.weights.items()}
        weights = beside._weights if beside else None
        if weights is None:
            arrays = {key: make() for key, make in makers.items()}
            weights = _Weights(self._device, self._stream, arrays)
        weights.users += 1
        self._weights = weights
        largest = {
            Region.INPUT: max(0 if _reads_host(plan) else plan.input_bytes for plan in plans),
            Region.COUNTERS: max(plan.counter_bytes for plan in plans),
            Region.ARENA: max(plan.arena_bytes for plan in plans),
        }
        sizes = [aligned(size) for size in largest.values()]
        buffer = self._buffer = self._device.allocate(sum(sizes))
        begins = accumulate(sizes, initial=buffer.address)
        self._begins = dict(zip(largest, begins, strict=False))
        self._images = self._device.pinned(max(plan.input_bytes for plan in plans))
        self._results = self._device.pinned(max(plan.output_bytes for plan in plans))
        kept_bytes = (kept.nbytes for plan in plans for kept in plan.kept.values())
        self._kept = self._device.pinned(max(kept_bytes, default=1))
        self._begins[Region.OUTPUT] = self._device.address(self._results)
        if largest[Region.COUNTERS]:
            counters = self._begins[Region.COUNTERS]
            self._device.fill(counters, largest[Region.COUNTERS], 0, self._stream)
        self._stream.synchronize()

    def _launch_side_by_side(
        self, plan: Plan, *, timed: bool = False
    ) -> tuple[list[Event], list[Event]]:
        """Launch every step on its stream, after the steps on which it depends.

        An event is recorded only after a step for which another stream waits, because more events
        could prevent launches from overlapping. If `timed`, events are recorded before and after
        each launch, and returned. In that case, launches do not overlap.
        """
        chosen = streams(plan.after)
        on = [(self._stream, *self._side_streams)[number] for number in chosen]
        awaited = [
            sorted(other for other in after if chosen[other] != stream)
            for stream, after in zip(chosen, plan.after, strict=True)
        ]
        recorded = {other for events in awaited for other in events}
        overlap = dependents(plan.after)
        begins: list[Event] = []
        ends: dict[int, Event] = {}
        for index, (step, stream) in enumerate(zip(plan.steps, on, strict=True)):
            for other in awaited[index]:
                stream.wait(ends[other])
            if timed:
                begins.append(self._record(stream))
            self._launch(step, plan, stream, dependent=overlap[index] and not timed)
            if timed or index in recorded:
                ends[index] = self._record(stream)
        return begins, list(ends.values())

    def _record(self, stream: Stream) -> Event:
        event = self._device.event()
        event.record(stream)
        return event

    def _upload(self, plan: Plan) -> None:
        if not _reads_host(plan):
            images = self._images[: plan.input_bytes]
            self._device.upload(self._begins[Region.INPUT], images, self._stream)

    def _launch(self, step: Step, plan: Plan, stream: Stream, *, dependent: bool = False) -> None:
        def address(at: Location) -> int:
            if at.weight is not None and self._weights is not None:
                return self._weights.begins[at.weight]
            if at.region is Region.INPUT and _reads_host(plan):
                return self._device.address(self._images)
            return self._begins[at.region] + at.offset

        launch = step.launch
        self._device.launch(
            self._kernels[launch.instantiation],
            launch.grid,
            launch.block,
            launch.shared_bytes,
            step.arguments(address),
            stream,
            dependent=dependent,
            cluster=launch.cluster,
        )


def _reads_host(plan: Plan) -> bool:
    """Return whether the first kernel reads images directly from pinned memory.

    It does so if the images have few bytes, or if they are not plain pixels.
    """
    return plan.kind is not Kind.PIXELS or kernel_reads_host(plan.input_bytes)


def _failure(error: DeviceError, what: str) -> EngineError:
    kind = DeviceLostError if isinstance(error, FaultError) else EngineError
    return kind(f"{what}: {error}")
