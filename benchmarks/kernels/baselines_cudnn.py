"""Measures cuDNN, to compare it with Convoy. cuDNN's plans are built with nvidia-cudnn-frontend; a
plan is one engine of cuDNN with settings.

Plans that compute in float32 throughout are taken from all heuristics of cuDNN (A, B and FALLBACK).
But the heuristics favour engines that compute in TF32. So plans are also built from all engines
with all values of their settings (knobs). Every plan that can be built is run twice: on tensors
stored as N×C×H×W, and on tensors stored as N×H×W×C. A plan that computes with less than float32 is
detected by its error. cuDNN is an optional dependency, which is imported only when it is measured.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from benchmarks.kernels.baselines_torch import BaselineError, Tensors, failures
from benchmarks.kernels.contest import Cache, Candidate, CandidateError
from kernels.device.device import Device, Stream
from kernels.tuning.timing import Copies, Timing

MOST_WORKSPACE_BYTES = 1 << 30
"""The most bytes of workspace, as in Jordà et al. 2021 (cuConv), section 4."""

MOST_KNOBS = 64
"""The most combinations of an engine's knobs. If an engine has more, only its default is tried."""


class Cudnn:
    """Holds cuDNN and its handle. Raises BaselineError if cuDNN is missing."""

    def __init__(self) -> None:
        try:
            import cudnn  # noqa: PLC0415  (an optional dependency)
        except ImportError as error:
            raise BaselineError(
                f"nvidia-cudnn-frontend cannot be imported ({error});"
                " run pip install --no-deps nvidia-cudnn-frontend==1.18.0"
            ) from error
        self.cudnn: Any = cudnn
        try:
            self.handle = cudnn.create_handle()
        except RuntimeError as error:
            raise BaselineError(f"cuDNN cannot be used: {error}") from error

    def failures(self, tensors: Tensors) -> AbstractContextManager[None]:
        """Raise cuDNN's errors within this block as CandidateError."""
        return failures(tensors.runtime, self.cudnn.cudnnGraphNotSupportedError)

    def candidates(self, device: Device, tensors: Tensors) -> Iterator[Candidate]:
        """Yield a candidate for every plan in both layouts. A plan that is found several times is
        yielded once."""
        for channels_last in (False, True):
            names: set[str] = set()
            for fill in (from_heuristics, from_engines):
                try:
                    with self.failures(tensors):
                        graph = PlanGraph(self, tensors, channels_last)
                        fill(self.cudnn, graph.graph)
                except CandidateError as error:
                    yield NoPlans(f"{layout(channels_last)} {fill.__name__}", error)
                    continue
                for index in range(graph.graph.get_execution_plan_count()):
                    plan = PlanCandidate(device, graph, index)
                    if plan.name not in names:
                        names.add(plan.name)
                        yield plan


@dataclass(frozen=True)
class NoPlans:
    """Represents a graph that cuDNN cannot run, because cuDNN has no plan for it. As a
    contest.Candidate, it fails with `reason`, so that the report shows this reason."""

    name: str
    reason: CandidateError
    workspace_bytes: int | None = None

    def check(self) -> None:
        """Raise `reason`."""
        raise self.reason

    def time(self, _: Cache, /, **_how_often: int) -> Timing:
        """Raise `reason`."""
        raise self.reason


class PlanGraph:
    """A cuDNN graph whose only node is a convolution, with the plans that were built for it."""

    def __init__(self, library: Cudnn, tensors: Tensors, channels_last: bool) -> None:
        cudnn, window = library.cudnn, tensors.problem.window
        self.library, self.tensors, self.channels_last = library, tensors, channels_last
        float32 = cudnn.data_type.FLOAT
        self.graph = cudnn.pygraph(
            handle=library.handle,
            io_data_type=float32,
            intermediate_data_type=float32,
            compute_data_type=float32,
        )
        ((x, weight),) = tensors.sets(Cache.WARM, channels_last, 1)
        self.x, self.weight = (
            self.graph.tensor(
                name=name, dim=list(array.shape), stride=list(array.stride()), data_type=float32
            )
            for name, array in (("x", x), ("weight", weight))
        )
        self.y = self.graph.conv_fprop(
            image=self.x,
            weight=self.weight,
            pre_padding=list(window.pads_begin),
            post_padding=list(window.pads_end),
            stride=list(window.strides),
            dilation=list(window.dilations),
        )
        y = self.empty_y()
        self.y.set_output(True).set_dim(list(y.shape)).set_stride(list(y.stride()))
        self.graph.validate()
        self.graph.build_operation_graph()

    def empty_y(self) -> Any:
        """Return a tensor for the output y, filled with NaN."""
        tensors = self.tensors
        y = tensors.runtime.torch.full(
            tensors.problem.output_shape, float("nan"), device=tensors.runtime.where
        )
        return tensors.in_memory(y, self.channels_last)


def from_heuristics(cudnn: Any, graph: Any) -> None:
    """Build the plans that cuDNN's heuristics propose for the graph, except plans whose precision
    is lower than float32."""
    modes, notes = cudnn.heur_mode, cudnn.numerical_note
    graph.create_execution_plans([modes.A, modes.B, modes.FALLBACK])
    graph.deselect_numeric_notes(
        [notes.TENSOR_CORE, notes.DOWN_CONVERT_INPUTS, notes.REDUCED_PRECISION_REDUCTION]
    )
    graph.deselect_workspace_greater_than(MOST_WORKSPACE_BYTES)
    graph.check_support()


def from_engines(cudnn: Any, graph: Any) -> None:
    """Build plans for the graph with every engine of cuDNN. There is a plan for each combination of
    an engine's settings (knobs), or only one plan if there are too many combinations.

    Plans with lower precision are not removed here, because cuDNN would then also remove all plans
    that no heuristic proposed.
    """
    graph.create_execution_plans([cudnn.heur_mode.FALLBACK])
    for engine in range(graph.get_engine_count()):
        try:
            knobs = graph.get_knobs_for_engine(engine)
        except RuntimeError:
            continue  # the engine does not support this graph
        for setting in settings(cudnn, knobs):
            try:
                graph.create_execution_plan(engine, setting)
            except RuntimeError:
                continue  # nor with these knobs
    graph.deselect_workspace_greater_than(MOST_WORKSPACE_BYTES)
    graph.check_support()


def settings(cudnn: Any, knobs: Any) -> Iterator[Mapping[Any, int]]:
    """Yield each combination of the values of an engine's settings (knobs). If there are too many,
    yield only the default. Knobs that the frontend cannot name keep their default values."""
    named = [knob for knob in knobs if knob.type != cudnn.knob_type.NOT_SET]
    values = [range(knob.min_value, knob.max_value + 1, max(knob.stride, 1)) for knob in named]
    if prod(map(len, values)) > MOST_KNOBS:
        yield {}
        return
    for combination in product(*values):
        yield {knob.type: value for knob, value in zip(named, combination, strict=True)}


class PlanCandidate:
    """Checks and times one of cuDNN's plans. Implements contest.Candidate."""

    def __init__(self, device: Device, graph: PlanGraph, index: int) -> None:
        self._device, self._graph, self._index = device, graph, index
        self._workspace: Any = None  # allocated when the plan is built
        self.workspace_bytes: int | None = None  # known when the plan is built
        plan = graph.graph.get_plan_name_at_index(index)
        self.name = f"{layout(graph.channels_last)} {plan}"

    def check(self) -> None:
        """Build and run the plan once, and compare its result with the reference."""
        graph, tensors = self._graph, self._graph.tensors
        with graph.library.failures(tensors):
            graph.graph.build_plan_at_index(self._index)
            nbytes = int(graph.graph.get_workspace_size_plan_at_index(self._index))
            self.workspace_bytes = nbytes
            torch, where = tensors.runtime.torch, tensors.runtime.where
            self._workspace = torch.empty(max(nbytes, 1), dtype=torch.uint8, device=where)
            y = graph.empty_y()
            ((x, weight),) = tensors.sets(Cache.WARM, graph.channels_last, 1)
            stream = self._device.stream()
            tensors.runtime.synchronize()  # until x, the filter and y are in memory
            self._execute(stream, x, weight, y)
            stream.synchronize()
            tensors.check(y)

    def time(self, cache: Cache, /, *, copies: int, replays: int) -> Timing:
        """Return the times of captured runs of the plan."""
        graph = self._graph
        with graph.library.failures(graph.tensors):
            sets = graph.tensors.sets(cache, graph.channels_last, replays)
            answers = [graph.empty_y() for _ in sets]

            def run(stream: Stream, index: int) -> None:
                self._execute(stream, *sets[index], answers[index])

            captured = Copies(self._device, run, len(sets), copies=copies)
            return Timing.of(captured.samples_us(replays))

    def _execute(self, stream: Any, x: Any, weight: Any, y: Any) -> None:
        """Enqueue one run of the plan on a stream."""
        graph, library = self._graph, self._graph.library
        library.cudnn.set_stream(handle=library.handle, stream=stream.cupy.ptr)
        graph.graph.execute_plan_at_index(
            {graph.x: x.data_ptr(), graph.weight: weight.data_ptr(), graph.y: y.data_ptr()},
            self._workspace.data_ptr(),
            self._index,
            handle=library.handle,
        )


def layout(channels_last: bool) -> str:
    """Return the usual name of the layout."""
    return "NHWC" if channels_last else "NCHW"
