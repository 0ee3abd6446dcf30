"""The engine on Convoy's own kernels: a plan and a captured graph for every N.

    images ─ pinned ─ upload ─ graph of plan n ─ download ─ pinned ─ scores

It runs on whatever implements `Device`: a GPU through CuPy, or in tests the CPU. Everything is
allocated, compiled and uploaded before the first request; a run allocates nothing.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack

import numpy as np
from numpy.typing import NDArray

from kernels.device import Device, DeviceError, Graph, Instantiation, Kernel, OutOfMemoryError
from models.arena import aligned
from models.classifier import Classifier
from models.engine import Images, Scores
from models.errors import EngineError
from models.lowering import Choose
from models.plan import Location, Plan, Region, Step, build_plan
from models.rewrite import rewrite

Progress = Callable[[Collection[Instantiation]], Iterable[Instantiation]]
"""Wraps what is worked through one by one, to show how far it is."""


class CudaEngine:
    """Runs a classifier in fp32 on a device; `run` is called from one thread at a time.

    One allocation holds the weights, which all plans share, and after them the images, the scores,
    the counters and the arena, each as large as its largest plan wants it: plans run one at a time.
    """

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
        self._image_shape = (p.height, p.width, len(p.mean))
        graph = rewrite(classifier.network.graph).graph
        self._plans = {n: build_plan(graph, p, n, choose) for n in range(1, max_batch + 1)}
        self._graphs: dict[int, Graph] = {}
        self._closed = False
        try:
            self._kernels = self._load(progress)
            self._stream = device.stream()
            self._images = device.pinned(max(plan.input_bytes for plan in self._plans.values()))
            self._scores = device.pinned(max(plan.output_bytes for plan in self._plans.values()))
            self._allocate()
        except OutOfMemoryError as error:
            raise EngineError(
                f"{classifier.name} at max_batch {max_batch} needs {error.needed:,} bytes on"
                f" {device.name}, where {error.free:,} are free; lower --max-batch"
            ) from error
        except DeviceError as error:
            raise EngineError(f"{device.name} cannot take {classifier.name}: {error}") from error

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
        """Where it runs, for people."""
        return f"{self._device.name} (sm_{self._device.architecture})"

    @property
    def plans(self) -> Mapping[int, Plan]:
        """The plan of each N."""
        return self._plans

    def warm_up(self) -> None:
        """Run every N step by step, then capture it and run that, the largest N first."""
        for n, plan in sorted(self._plans.items(), reverse=True):
            for step in plan.steps:
                try:
                    self._launch(step)
                    self._stream.synchronize()
                except DeviceError as error:
                    raise EngineError(
                        f"step {step.name} ({step.launch.instantiation}) of {self._name} failed"
                        f" at N = {n} on {self._device.name}: {error}"
                    ) from error
            with self._device.capture(self._stream) as graph:
                for step in plan.steps:
                    self._launch(step)
            self._graphs[n] = graph
            self.run(np.zeros((n, *self._image_shape), np.uint8))

    def run(self, images: Images) -> Scores:
        """N×H×W×C uint8 → N×classes; EngineError for a shape the model does not take."""
        n = len(images)
        if images.shape[1:] != self._image_shape or not 1 <= n <= self._max_batch:
            raise EngineError(
                f"got images of shape {images.shape}; the engine takes 1 to {self._max_batch}"
                f" images of {self._image_shape}"
            )
        if n not in self._graphs:
            raise EngineError("the engine is closed, or was not warmed up")
        plan = self._plans[n]
        pinned = self._images[: plan.input_bytes]
        np.copyto(pinned.reshape(images.shape), images)
        raw = self._scores[: plan.output_bytes]
        try:
            self._device.upload(self._address(Location(Region.INPUT, 0)), pinned, self._stream)
            self._graphs[n].replay(self._stream)
            self._device.download(raw, self._address(Location(Region.OUTPUT, 0)), self._stream)
            self._stream.synchronize()
        except DeviceError as error:
            raise EngineError(f"{self._name} failed on a batch of {n}: {error}") from error
        rows = np.lib.stride_tricks.as_strided(
            raw.view(np.float32)[plan.score_offset :],
            (n, self._classes),
            (4 * plan.score_pitch, 4),
        )
        return rows.copy()

    def close(self) -> None:
        """Free the device's memory; closing twice is closing once."""
        self._graphs.clear()
        if not self._closed:
            self._closed = True
            self._device.synchronize()
            self._buffer.free()

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
        weights: dict[str, NDArray[np.float32]] = {key: make() for key, make in makers.items()}
        self._weights: dict[str, int] = {}
        end = 0
        for key, array in weights.items():
            self._weights[key] = end
            end += aligned(array.nbytes)
        sizes = {
            Region.INPUT: max(plan.input_bytes for plan in plans),
            Region.OUTPUT: max(plan.output_bytes for plan in plans),
            Region.COUNTERS: max(plan.counter_bytes for plan in plans),
            Region.ARENA: max(plan.arena_bytes for plan in plans),
        }
        self._regions: dict[Region, int] = {Region.WEIGHTS: 0}
        for region, nbytes in sizes.items():
            self._regions[region] = end
            end += aligned(nbytes)
        with ExitStack() as undo:
            self._buffer = self._device.allocate(end)
            undo.callback(self._buffer.free)
            for key, array in weights.items():
                at = self._address(Location(Region.WEIGHTS, 0, key))
                self._device.upload(at, np.ascontiguousarray(array), self._stream)
            if sizes[Region.COUNTERS]:
                at = self._address(Location(Region.COUNTERS, 0))
                self._device.fill(at, sizes[Region.COUNTERS], 0, self._stream)
            self._stream.synchronize()
            undo.pop_all()

    def _address(self, at: Location) -> int:
        begin = self._weights[at.weight] if at.weight is not None else 0
        return self._buffer.address + self._regions[at.region] + begin + at.offset

    def _launch(self, step: Step) -> None:
        launch = step.launch
        self._device.launch(
            self._kernels[launch.instantiation],
            launch.grid,
            launch.block,
            launch.shared_bytes,
            step.arguments(self._address),
            self._stream,
            cooperative=launch.cooperative,
        )
