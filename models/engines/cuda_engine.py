"""The engine on Convoy's own kernels: a plan and a captured graph for every N.

    images ─ pinned ─ upload ─ graph of plan n ─ download ─ pinned ─ scores

One batch at a time, on one stream of whatever implements `Device`: a GPU through CuPy, or in tests
the CPU. Everything is allocated, compiled and uploaded before the first request; a run allocates
nothing on the device.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from kernels.device.device import (
    Buffer,
    Device,
    DeviceError,
    FaultError,
    Graph,
    Instantiation,
    Kernel,
    OutOfMemoryError,
)
from models.arena import aligned
from models.classifier import Classifier
from models.engines.engine import Batch, Image, Scores, batch_size
from models.errors import DeviceLostError, EngineError
from models.lowering import Choose
from models.plan import Location, Plan, Region, Step, build_plan

Progress = Callable[[Collection[Instantiation]], Iterable[Instantiation]]
"""Wraps an iterable to show progress, as tqdm does."""

_Form = tuple["np.dtype[Any]", int]  # pixels or tensors, and N


class CudaEngine:
    """Runs a classifier in fp32 on a device; one thread at a time may call `run`.

    A device that is lost is DeviceLostError, whatever was asked of the engine.

    One allocation holds the weights, which all plans share, and after them the images, the scores,
    the counters and the arena, each as large as the largest plan needs. Every N has a plan for
    pixels and one for tensors; a batch of both runs one after the other.
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
    ) -> None:
        if max_batch < 1:
            raise EngineError(f"max_batch must be at least 1, got {max_batch}")
        p = classifier.preprocessing
        self._name, self._device = classifier.name, device
        self._max_batch, self._classes = max_batch, classifier.classes
        self._preprocessing = p
        graph = classifier.rewritten.graph
        self._plans: dict[_Form, Plan] = {
            (dtype, n): build_plan(graph, p, n, choose, tensors=dtype == np.float32)
            for dtype in p.forms
            for n in range(1, max_batch + 1)
        }
        self._graphs: dict[_Form, Graph] = {}
        self._buffer: Buffer | None = None
        try:
            self._kernels = self._load(progress)
            self._stream = device.stream()
            self._allocate()
        except OutOfMemoryError as error:
            self._free()
            raise EngineError(
                f"{classifier.name} at max_batch {max_batch} needs {error.needed:,} bytes on"
                f" {device.name}, where {error.free:,} are free; lower --max-batch"
            ) from error
        except DeviceError as error:
            self._free()
            raise _failure(error, f"{device.name} cannot take {classifier.name}") from error

    @property
    def max_batch(self) -> int:
        """The largest N that `run` takes."""
        return self._max_batch

    @property
    def classes(self) -> int:
        """How many scores an image gets."""
        return self._classes

    @property
    def device(self) -> str:
        """Where it runs, for display."""
        return f"{self._device.name} (Convoy's kernels, sm_{self._device.architecture})"

    @property
    def plans(self) -> Mapping[int, Plan]:
        """The plan of each N, for pixels."""
        return {n: plan for (dtype, n), plan in self._plans.items() if dtype == np.uint8}

    def warm_up(self) -> None:
        """Run every N step by step, then capture it and run that, the largest N first."""
        for form, plan in sorted(self._plans.items(), key=lambda each: -each[0][1]):
            dtype, n = form
            self._run_step_by_step(plan)
            try:
                with self._device.capture(self._stream) as graph:
                    for step in plan.steps:
                        self._launch(step)
            except DeviceError as error:
                raise _failure(error, f"{self._name} cannot be captured at N = {n}") from error
            self._graphs[form] = graph
            self.run(np.zeros((n, *self._preprocessing.forms[dtype]), dtype))

    def run(self, images: Batch) -> Scores:
        """N pixels or tensors → N×classes; EngineError for a shape the model does not take."""
        return self._run(images, lambda form: self._graphs[form].replay(self._stream))

    def run_step_by_step(self, images: Batch) -> Scores:
        """As `run`, without the captured graph: a step that fails is named."""
        return self._run(images, lambda form: self._run_step_by_step(self._plans[form]))

    def _run(self, images: Batch, compute: Callable[[_Form], None]) -> Scores:
        n = batch_size(images, self._preprocessing, self._max_batch)
        if not self._graphs:
            raise EngineError("the engine is closed or not warmed up")
        scores = np.empty((n, self._classes), np.float32)
        places: dict[np.dtype[Any], list[int]] = {}
        for place, image in enumerate(images):
            places.setdefault(image.dtype, []).append(place)
        for dtype, alike in places.items():
            scores[alike] = self._run_alike(
                (dtype, len(alike)), [images[place] for place in alike], compute
            )
        return scores

    def _run_alike(
        self, form: _Form, images: Sequence[Image], compute: Callable[[_Form], None]
    ) -> Scores:
        """The scores of images of one form, which the next run overwrites."""
        (dtype, n), plan = form, self._plans[form]
        pinned, raw = self._images[: plan.input_bytes], self._scores[: plan.output_bytes]
        places = pinned.view(dtype).reshape(n, *self._preprocessing.forms[dtype])
        for place, image in zip(places, images, strict=True):
            place[...] = image
        try:
            self._device.upload(self._begins[Region.INPUT], pinned, self._stream)
            compute(form)
            self._device.download(raw, self._begins[Region.OUTPUT], self._stream)
            self._stream.synchronize()
        except DeviceError as error:
            raise _failure(error, f"{self._name} failed on a batch of {n}") from error
        return np.lib.stride_tricks.as_strided(
            raw.view(np.float32)[plan.score_offset :],
            (n, self._classes),
            (4 * plan.score_pitch, 4),
        )

    def close(self) -> None:
        """Free the device's memory; a second call does nothing."""
        try:
            if self._buffer is not None:
                self._device.synchronize()
        except DeviceError as error:
            raise _failure(error, f"{self._name} cannot be closed") from error
        finally:
            self._free()

    def _free(self) -> None:
        self._graphs.clear()
        if self._buffer is not None:
            buffer, self._buffer = self._buffer, None
            buffer.free()

    def _run_step_by_step(self, plan: Plan) -> None:
        """Wait after every step, so that the error names the step."""
        for step in plan.steps:
            try:
                self._launch(step)
                self._stream.synchronize()
            except DeviceError as error:
                what = f"step {step.name} ({step.launch.instantiation}) of {self._name} failed"
                where = f"at N = {plan.n} on {self._device.name}"
                raise _failure(error, f"{what} {where}") from error

    # --- before the first request ---

    def _load(self, progress: Progress) -> Mapping[Instantiation, Kernel]:
        every = dict.fromkeys(
            step.launch.instantiation for plan in self._plans.values() for step in plan.steps
        )
        return {
            instantiation: self._device.load(instantiation) for instantiation in progress(every)
        }

    def _allocate(self) -> None:
        plans = self._plans.values()
        makers = {key: make for plan in plans for key, make in plan.weights.items()}
        weights = {key: make() for key, make in makers.items()}
        largest = {
            Region.INPUT: max(plan.input_bytes for plan in plans),
            Region.OUTPUT: max(plan.output_bytes for plan in plans),
            Region.COUNTERS: max(plan.counter_bytes for plan in plans),
            Region.ARENA: max(plan.arena_bytes for plan in plans),
        }
        sizes = [*(array.nbytes for array in weights.values()), *largest.values()]
        buffer = self._buffer = self._device.allocate(sum(map(aligned, sizes)))
        begins = accumulate(map(aligned, sizes), initial=buffer.address)
        self._weights = {key: next(begins) for key in weights}
        self._begins = {region: next(begins) for region in largest}
        self._images = self._device.pinned(largest[Region.INPUT])
        self._scores = self._device.pinned(largest[Region.OUTPUT])
        for key, array in weights.items():
            self._device.upload(self._weights[key], np.ascontiguousarray(array), self._stream)
        if largest[Region.COUNTERS]:
            counters = self._begins[Region.COUNTERS]
            self._device.fill(counters, largest[Region.COUNTERS], 0, self._stream)
        self._stream.synchronize()

    def _launch(self, step: Step) -> None:
        def address(at: Location) -> int:
            if at.weight is not None:
                return self._weights[at.weight]
            return self._begins[at.region] + at.offset

        launch = step.launch
        self._device.launch(
            self._kernels[launch.instantiation],
            launch.grid,
            launch.block,
            launch.shared_bytes,
            step.arguments(address),
            self._stream,
        )


def _failure(error: DeviceError, what: str) -> EngineError:
    kind = DeviceLostError if isinstance(error, FaultError) else EngineError
    return kind(f"{what}: {error}")
