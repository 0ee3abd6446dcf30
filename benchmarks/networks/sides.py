"""Runs and times whole networks with Convoy's engine, and with PyTorch in its fastest modes."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Any, Protocol

from benchmarks.kernels.baselines_torch import CudaRuntime
from benchmarks.networks.switches import VARIANTS, known
from benchmarks.networks.torch_graph import torch_module
from kernels.device.device import Device, Event, Graph, Instantiation, Kernel, Stream
from kernels.image.place import Kind
from kernels.problems.precision import Precision
from models.classifier import Classifier
from models.engines.cuda_engine import CudaEngine
from models.engines.engine import Batch, Progress, Results
from models.lowering import Choose
from models.plan import Plan, Step
from models.preprocessing import normalisation

WARM_UPS = 10  # runs before a side is ready; PyTorch searches for algorithms in the first

_WARM_UP_S = 0.02
"""Seconds of runs before the counted runs. An idle GPU's clock takes milliseconds to rise."""


class NetworkSide(Protocol):
    """Runs a network with Convoy or PyTorch. All batches have the same number of images, N."""

    def run(self, images: Batch) -> Results:
        """Copy a batch's pixels to the device, run the network, and return the scores on the
        host."""

    def queued_us(self, runs: int) -> list[float]:
        """Return the device's time in µs per run when runs are queued one after another.

        A run begins with pixels on the device and ends with scores on the device. Convoy's runs
        also include copies from and to pinned memory, because its graph contains them.
        """

    def close(self) -> None:
        """Free the network's memory on the device."""


class AfterUpload:
    """Uploads a batch's images, and then replays a graph that was captured without the upload."""

    def __init__(self, upload: Callable[[], None], graph: Graph) -> None:
        self._upload, self.graph = upload, graph

    def replay(self, stream: Stream) -> None:
        """Upload the batch's images, and replay the graph on `stream`."""
        self._upload()
        self.graph.replay(stream)


class ConvoyNetwork(CudaEngine):
    """Runs a network with Convoy's engine.

    `switch` names a change of the engine whose effect is measured (one of SWITCHES), or is empty.
    Raises ValueError for any other name.
    """

    def __init__(
        self, classifier: Classifier, device: Device, n: int, choose: Choose, switch: str = ""
    ) -> None:
        self._only, self._switch = (Kind.PIXELS, n), switch and known(switch)
        pays = (lambda *_: False) if switch == "without branches" else None
        super().__init__(classifier, device, max_batch=n, choose=choose, pays=pays)
        self.warm_up()
        if switch == "without one graph":
            upload = partial(super()._upload, self._plans[self._only])
            replay = self._replays[self._only]
            replay.graph = AfterUpload(upload, replay.graph)

    def _plan_keys(self) -> Iterable[tuple[Kind, int]]:
        """Plan only for batches of n images, because planning and compiling for every batch size
        takes long."""
        return [self._only]

    def _load(self, progress: Progress, threads: int) -> Mapping[Instantiation, Kernel]:
        if self._switch not in VARIANTS:
            return super()._load(progress, threads)
        (plan,) = self._plans.values()
        every = dict.fromkeys(step.launch.instantiation for step in plan.steps)
        variants = {each: replace(each, variants=(VARIANTS[self._switch],)) for each in every}
        for _ in self._device.compile(variants.values(), threads):
            pass
        return {each: self._device.load(variant) for each, variant in variants.items()}

    def _upload(self, plan: Plan) -> None:
        if self._switch != "without one graph":
            super()._upload(plan)

    def _launch(self, step: Step, plan: Plan, stream: Stream, *, dependent: bool = False) -> None:
        overlaps = dependent and self._switch != "without dependent launches"
        super()._launch(step, plan, stream, dependent=overlaps)

    def _start(self) -> None:
        """Start a batch whose images are in pinned memory."""
        self._replays[self._only].graph.replay(self._stream)

    def queued_us(self, runs: int) -> list[float]:
        """Return the device's time in µs per run when runs are queued one after another."""

        def once() -> None:
            self._start()
            self._stream.synchronize()

        warm_up(once)
        events: list[Event] = [self._device.event() for _ in range(runs + 1)]
        events[0].record(self._stream)
        for event in events[1:]:
            self._start()
            event.record(self._stream)
        self._stream.synchronize()
        return [1e3 * end.elapsed_ms(begin) for begin, end in pairwise(events)]


class TorchNetwork:
    """Runs a network with PyTorch. `prepare` takes the module and the images on the GPU, and
    returns the function that is timed, such as the replay of a CUDA graph."""

    def __init__(
        self,
        runtime: CudaRuntime,
        classifier: Classifier,
        n: int,
        prepare: Callable[[Any, Any, Any], Callable[[], Any]],
    ) -> None:
        torch = runtime.torch
        self._torch = torch
        # PyTorch implements the precision: float16 by `dtype`, TF32 by CudaRuntime.
        graph = replace(classifier, precision=Precision.FP32).rewritten.graph
        dtype = torch.float16 if classifier.precision is Precision.FP16 else torch.float32
        factors = normalisation(classifier.preprocessing)
        module = torch_module(torch, graph, *factors, dtype).cuda().to(dtype)
        shape = (n, *classifier.preprocessing.image_shape)
        self._pinned = torch.zeros(shape, dtype=torch.uint8).pin_memory()
        self._images = self._pinned.cuda()
        with torch.inference_mode():
            self._call = prepare(torch, module, self._images)
            for _ in range(WARM_UPS):
                scores = self._call()
            # In pinned memory, like Convoy's scores.
            self._scores = torch.empty(scores.shape, dtype=scores.dtype).pin_memory()
        torch.cuda.synchronize()

    def run(self, images: Batch) -> Results:
        """Copy a batch's pixels to the device, run the network, and return the scores on the
        host."""
        torch = self._torch
        with torch.inference_mode():
            self._pinned.numpy()[:] = images
            self._images.copy_(self._pinned, non_blocking=True)
            self._scores.copy_(self._call(), non_blocking=True)
            torch.cuda.current_stream().synchronize()
        return Results(self._scores.numpy().copy())

    def queued_us(self, runs: int) -> list[float]:
        """Return the device's time in µs per run when runs are queued one after another."""
        torch = self._torch
        events = [torch.cuda.Event(enable_timing=True) for _ in range(runs + 1)]

        def once() -> None:
            self._call()
            torch.cuda.synchronize()

        with torch.inference_mode():
            warm_up(once)
            events[0].record()
            for event in events[1:]:
                self._call()
                event.record()
        torch.cuda.synchronize()
        return [1e3 * begin.elapsed_time(end) for begin, end in pairwise(events)]

    def close(self) -> None:
        """Do nothing, because the memory is freed with the object."""


def warm_up(once: Callable[[], object]) -> None:
    """Call `once` repeatedly for 20 ms, until the GPU's clocks have risen."""
    end = perf_counter() + _WARM_UP_S
    while perf_counter() < end:
        once()


def eager(_torch: Any, module: Any, images: Any) -> Callable[[], Any]:
    """Return a function that runs the module node by node with cuDNN's fastest algorithms
    (cudnn.benchmark)."""
    return lambda: module(images)


def captured(torch: Any, module: Any, images: Any) -> Callable[[], Any]:
    """Return a function that replays a CUDA graph of the module."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):  # searches for algorithms, which a capture must not do
            module(images)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scores = module(images)

    def call() -> Any:
        graph.replay()
        return scores

    return call


def compiled(torch: Any, module: Any, images: Any) -> Callable[[], Any]:
    """Return torch.compile's function in mode max-autotune, which uses CUDA graphs."""
    torch._dynamo.reset()
    function = torch.compile(module, mode="max-autotune", fullgraph=True)
    return lambda: function(images)


WAYS: Mapping[str, Callable[[Any, Any, Any], Callable[[], Any]]] = {
    "torch eager": eager,
    "torch graph": captured,
    "torch.compile": compiled,
}
"""The ways to run a module. Each takes torch, the module and the images, and returns the function
to call."""
