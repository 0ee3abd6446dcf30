"""Measures PyTorch, to compare it with Convoy. Also computes the float64 results with which the
results of PyTorch and cuDNN are checked.

`torch` is PyTorch's convolution. It tries all of cuDNN's algorithms (cudnn.benchmark, no limit) and
keeps the fastest. It is measured on tensors stored as N×C×H×W and on tensors stored as N×H×W×C.
`im2col` is the usual baseline of the Winograd literature: `unfold` copies all windows to a matrix,
and cuBLAS multiplies. TF32 is off in all measurements. PyTorch is an optional dependency, and is
imported only when it is measured.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks.kernels.contest import Cache, CandidateError
from benchmarks.kernels.costs import im2col
from kernels.device.device import Device, DeviceError, Graph, Stream
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import Precision
from kernels.tuning.timing import Copies, Timing, sets_needed

MOST_ERROR = {Precision.FP32: 3e-5, Precision.FP16: 1e-3}
"""The largest allowed ‖y − truth‖ / ‖truth‖. In float32 it is ten times the error of F(4×4, 3×3)
and a tenth of TF32's error. In float16 it is five times the error of rounding y."""


class BaselineError(Exception):
    """Raised when a library cannot be measured on this machine. Says why."""


class Runtime(Protocol):
    """The functions of PyTorch that need a GPU. Tests replace them by a version that runs on the
    CPU."""

    torch: Any
    where: str  # PyTorch's name of the device

    def on(self, stream: Stream) -> AbstractContextManager[Any]:
        """Make PyTorch use `stream` within this block."""

    def capture(self, stream: Stream) -> AbstractContextManager[Graph]:
        """Capture the work that PyTorch enqueues on `stream` within this block into a CUDA graph.
        The graph keeps the memory that PyTorch allocates meanwhile."""

    def synchronize(self) -> None:
        """Wait for all of PyTorch's work. Raises RuntimeError."""


class CudaRuntime:
    """Runs PyTorch on the GPU, without TF32 unless `tf32` is set. Raises BaselineError if PyTorch
    is not installed or there is no GPU."""

    where = "cuda"

    def __init__(self, *, tf32: bool = False) -> None:
        try:
            import torch  # noqa: PLC0415  (an optional dependency, and slow to import)
        except ImportError as error:
            raise BaselineError(
                f"PyTorch cannot be imported ({error}); install torch with CUDA"
            ) from error
        if not torch.cuda.is_available():
            raise BaselineError("PyTorch finds no CUDA GPU; it needs a GPU and a build with CUDA")
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.backends.cudnn.allow_tf32 = tf32
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.benchmark_limit = 0  # all algorithms instead of the first ten
        self.torch: Any = torch

    def on(self, stream: Stream) -> AbstractContextManager[Any]:
        """Make PyTorch use `stream` within this block."""
        context: AbstractContextManager[Any] = self.torch.cuda.stream(self._external(stream))
        return context

    @contextmanager
    def capture(self, stream: Stream) -> Iterator[Graph]:
        """Capture PyTorch's work on `stream` into a CUDA graph."""
        graph = self.torch.cuda.CUDAGraph()
        with self.on(stream):
            # torch.cuda.graph would collect garbage for each of many graphs.
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                yield _TorchGraph(self, graph)
            finally:
                graph.capture_end()

    def synchronize(self) -> None:
        """Wait for all of PyTorch's work on the GPU."""
        self.torch.cuda.synchronize()

    def _external(self, stream: Any) -> Any:
        """Return a PyTorch stream that stands for a CUDA stream of Convoy."""
        return self.torch.cuda.ExternalStream(stream.cupy.ptr)


@dataclass
class _TorchGraph:
    runtime: CudaRuntime
    graph: Any

    def replay(self, stream: Stream) -> None:
        """Replay the graph on a stream."""
        with self.runtime.on(stream):
            self.graph.replay()


class Tensors:
    """Holds the input and filters of a convolution, and the result in float64, as PyTorch tensors.
    Input and filters are uniform random numbers in [-1, 1], in float32 or, for fp16, in float16."""

    def __init__(self, runtime: Runtime, problem: ConvProblem, seed: int = 0) -> None:
        torch = runtime.torch
        self.runtime, self.problem = runtime, problem
        window = problem.window
        if window.pads_begin != window.pads_end:
            raise BaselineError(f"{problem}: PyTorch needs the same padding on both sides")
        if problem.precision not in MOST_ERROR:
            raise BaselineError(f"{problem}: PyTorch is measured only in fp32 and fp16")
        stored = torch.float16 if problem.precision is Precision.FP16 else torch.float32
        self.x_shape = (problem.n, problem.c, *window.input)
        generator = torch.Generator(runtime.where).manual_seed(seed)
        self.x, self.weight = (
            (torch.rand(shape, generator=generator, device=runtime.where) * 2 - 1).to(stored)
            for shape in (self.x_shape, problem.filter_shape)
        )
        searching, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, False
        self._truth = self.convolve(self.x.double(), self.weight.double())
        torch.backends.cudnn.benchmark = searching
        self._norm = self._truth.norm()

    def convolve(self, x: Any, weight: Any) -> Any:
        """Return the convolution of x with the filters, computed by PyTorch."""
        problem, window = self.problem, self.problem.window
        functional = self.runtime.torch.nn.functional
        function = functional.conv3d if problem.is_3d else functional.conv2d
        return function(
            x,
            weight,
            stride=window.strides,
            padding=window.pads_begin,
            dilation=window.dilations,
            groups=problem.groups,
        )

    def check(self, y: Any) -> None:
        """Raise CandidateError if the result y differs from the float64 result by more than the
        precision allows."""
        error = float((y.double() - self._truth).norm() / self._norm)
        if not error <= MOST_ERROR[self.problem.precision]:  # NaN fails this comparison
            raise CandidateError(f"wrong result: the relative error {error:.1e} is too large")

    def in_memory(self, tensor: Any, channels_last: bool) -> Any:
        """Return the tensor with channels last in memory if `channels_last`, and with channels
        first otherwise."""
        torch = self.runtime.torch
        if not channels_last:
            return tensor.contiguous()
        three = torch.channels_last_3d if self.problem.is_3d else torch.channels_last
        return tensor.contiguous(memory_format=three)

    def sets(self, cache: Cache, channels_last: bool, replays: int) -> Sequence[tuple[Any, Any]]:
        """Return pairs of an input and filters. For a warm cache, there is one pair, which stays in
        the GPU's L2 cache. For a cold cache, there are so many pairs that they do not fit into the
        cache."""
        x, weight = (self.in_memory(tensor, channels_last) for tensor in (self.x, self.weight))
        if cache is Cache.WARM:
            return [(x, weight)]
        y_bytes = self.problem.precision.stored.itemsize * self._truth.numel()
        nbytes = x.nbytes + weight.nbytes + y_bytes
        empty = self.runtime.torch.empty_like  # it keeps the layout
        return [
            (empty(x).uniform_(-1, 1), empty(weight).uniform_(-1, 1))
            for _ in range(sets_needed(nbytes, replays=replays))
        ]


def unfold_and_multiply(tensors: Tensors, x: Any, weight: Any) -> Any:
    """Return the convolution, computed by explicit im2col. A 1×1 convolution at stride 1 needs no
    copy of its windows."""
    problem, window = tensors.problem, tensors.problem.window
    if window.kernel_volume == 1 and set(window.strides) == {1}:
        columns = x.flatten(2)
    else:
        columns = tensors.runtime.torch.nn.functional.unfold(
            x, window.kernel, window.dilations, window.pads_begin, window.strides
        )
    return (weight.flatten(1) @ columns).view(problem.output_shape)


@dataclass(frozen=True, slots=True)
class Form:
    """Describes one of the algorithms with which PyTorch computes a convolution."""

    name: str
    channels_last: bool
    compute: Callable[[Tensors, Any, Any], Any]  # of x and the filter


CONVOLUTIONS = (Form("NCHW", False, Tensors.convolve), Form("NHWC", True, Tensors.convolve))
IM2COL = Form("unfold and matmul", False, unfold_and_multiply)


class TorchCandidate:
    """Checks and times PyTorch with one algorithm and layout (`Form`). Implements
    contest.Candidate. `workspace_bytes` is the memory that the algorithm needs beyond its operands,
    or None if PyTorch does not say."""

    def __init__(
        self, device: Device, tensors: Tensors, form: Form, workspace_bytes: int | None = None
    ) -> None:
        self._device, self._tensors, self._form = device, tensors, form
        self.name, self.workspace_bytes = form.name, workspace_bytes

    def check(self) -> None:
        """Compute the convolution once, and compare the result with the float64 result."""
        tensors = self._tensors
        with failures(tensors.runtime):
            ((x, weight),) = tensors.sets(Cache.WARM, self._form.channels_last, 1)
            tensors.check(self._form.compute(tensors, x, weight))

    def time(self, cache: Cache, /, *, copies: int, replays: int) -> Timing:
        """Return the times of captured runs."""
        tensors, runtime = self._tensors, self._tensors.runtime
        with failures(runtime):
            sets = tensors.sets(cache, self._form.channels_last, replays)
            answers: list[Any] = [None] * len(sets)  # each in separate memory

            def run(stream: Stream, index: int) -> None:
                with runtime.on(stream):
                    answers[index] = self._form.compute(tensors, *sets[index])

            captured = Copies(self._device, run, len(sets), copies=copies, capture=runtime.capture)
            return Timing.of(captured.samples_us(replays))


def tensors_of(runtime: Runtime, problem: ConvProblem) -> Tensors:
    """Return the input and filters of a convolution as tensors. Raises CandidateError if PyTorch
    cannot allocate them."""
    with failures(runtime, BaselineError):
        return Tensors(runtime, problem)


def torch_candidates(device: Device, tensors: Tensors) -> list[TorchCandidate]:
    """Return the candidates that run PyTorch's convolution, one for each memory layout."""
    return [TorchCandidate(device, tensors, form) for form in CONVOLUTIONS]


def im2col_candidates(device: Device, tensors: Tensors) -> list[TorchCandidate]:
    """Return the candidate that runs explicit im2col. Raises CandidateError for 3-D or grouped
    convolutions."""
    problem = tensors.problem
    if problem.is_3d or problem.groups > 1:
        raise CandidateError(f"{problem}: unfold supports only 2-D images in one group")
    return [TorchCandidate(device, tensors, IM2COL, im2col(problem).workspace_bytes)]


@contextmanager
def failures(runtime: Runtime, others: type[Exception] = RuntimeError) -> Iterator[None]:
    """Convert PyTorch's errors within this block to CandidateError."""
    try:
        yield
        runtime.synchronize()
    except (RuntimeError, DeviceError, others) as error:  # PyTorch's and most of cuDNN's
        first_line = str(error).partition("\n")[0]
        raise CandidateError(first_line or type(error).__name__) from error
