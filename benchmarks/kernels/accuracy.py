"""Measures each algorithm's errors on the VGG-E layers, as in table 4 of Lavin & Gray 2015.

    python -m benchmarks.kernels --accuracy [--device cuda|cusim [--whole]] [--out FOLDER]

Data and filters are uniform in [-1, 1]. At every precision, the error is the largest difference
between an element and its value in a float64 convolution (section 7). The errors are measured by
running the kernels. Every algorithm runs in the configuration that the heuristic would choose for
the layer. Winograd runs with each of its sets of interpolation points. On the simulator (`cusim`)
the heuristic chooses for an H200. Only a sample of the output is computed there: squares of pixels
from all over the image, with all channels and filters. These pixels are bit-identical to the same
pixels of the whole layer. Because the sample has fewer pixels, its largest error is slightly
smaller. With `--whole` all pixels are computed, which takes minutes per layer. A row for each
algorithm is added to OUT/accuracy.jsonl. In int8, x, the filters and y are rounded to bytes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.kernels.suites import VGG_E, Layer
from benchmarks.rows import Row, append, now
from cusim.build import FAST
from cusim.device import CusimDevice
from kernels import reference
from kernels.convolution.algorithms import ConvChoice, choices
from kernels.convolution.integer import requantization
from kernels.device.cuda_device import CudaDevice
from kernels.device.device import Buffer, Device
from kernels.device.gpus import H200
from kernels.layout.operands import ConvTensors, padded
from kernels.layout.pixels import Pixels
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import BYTE, Precision, Storage
from kernels.tuning.heuristic import DeviceFacts, choose
from kernels.tuning.timing import launcher

Array = NDArray[np.float32]

PAPER = {
    "conv 1.2": {"direct": 4.01e-5, "winograd F(2x2,3x3)": 1.53e-5, "winograd F(4x4,3x3)": 2.84e-4},
    "conv 2.2": {"direct": 8.01e-5, "winograd F(2x2,3x3)": 2.86e-5, "winograd F(4x4,3x3)": 5.41e-4},
    "conv 3.2": {"direct": 1.53e-4, "winograd F(2x2,3x3)": 5.34e-5, "winograd F(4x4,3x3)": 9.06e-4},
    "conv 4.2": {"direct": 3.20e-4, "winograd F(2x2,3x3)": 5.34e-5, "winograd F(4x4,3x3)": 1.04e-3},
    "conv 5": {"direct": 3.43e-4, "winograd F(2x2,3x3)": 4.20e-5, "winograd F(4x4,3x3)": 1.08e-3},
}
"""The float32 errors of table 4, measured on a Titan X with cuDNN's direct convolution."""

PAPER_HALF = {
    "conv 1.2": 1.14e-2,
    "conv 2.2": 1.45e-2,
    "conv 3.2": 1.99e-2,
    "conv 4.2": 3.17e-2,
    "conv 5": 2.61e-2,
}
"""The errors of table 4 for float16 data and filters. The paper's algorithms all have the same
errors, because they compute in float32."""

LAYERS = tuple(layer for layer in VGG_E if layer.name in PAPER)

AT_MOST = {"winograd F(2x2,3x3)": 2.0, "winograd F(4x4,3x3)": 20.0}
"""The largest allowed ratio of an error to the direct algorithm's error in the same layer. The
project promises these ratios."""

PRECISIONS = tuple(Precision)
"""The precisions of table 4, fp32 and fp16, and then the others."""

DIRECT, ONE_SUM = "direct", "direct, in one part"
"""The direct sum in the heuristic's configuration, which often splits the sum, and the direct sum
without splitting, as in the papers."""

EPS = float(np.finfo(np.float32).eps)

SQUARE = 8
"""H = W of a sample's squares. A square begins where tiles of 2×2 and of 4×4 begin."""

ELEMENTS = 1 << 17
"""The most elements of y in a sample."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Describes a sample of a layer's output: some squares of pixels. `problem` is a convolution
    that computes each square as one image of a batch.

    The convolution has the same filters and channels as the layer. `begins` has the first row and
    column of each square. The input of a square at the image's edge includes the padding.
    """

    problem: ConvProblem
    begins: tuple[tuple[int, int], ...]

    def pixels(self, x: Array, layer: ConvProblem) -> Array:
        """Return the input pixels of each square, N×C×H×W, cut out of the layer's input,
        1×C×H×W."""
        (top, left), (height, width) = layer.window.pads_begin, self.problem.window.input
        image = np.pad(x[0], ((0, 0), (top, SQUARE + height), (left, SQUARE + width)))
        return np.stack([image[:, h : h + height, w : w + width] for h, w in self.begins])

    def of_image(self, layer: ConvProblem) -> NDArray[np.bool_]:
        """Return a mask, N×1×P×Q, of the squares' output pixels that lie inside the layer's
        output."""
        inner = np.arange(SQUARE)
        rows, columns = (
            np.add.outer([each[axis] for each in self.begins], inner) < layer.window.output[axis]
            for axis in (0, 1)
        )
        inside: NDArray[np.bool_] = rows[:, None, :, None] & columns[:, None, None, :]
        return inside


def sample(layer: ConvProblem, elements: int = ELEMENTS) -> Sample:
    """Return squares that are spread evenly over the layer's output. Together they have at most
    `elements` elements."""
    down, across = (range(0, size, SQUARE) for size in layer.window.output)
    every = [(h, w) for h in down for w in across]
    count = min(len(every), elements // (layer.k * SQUARE**2))
    begins = tuple(every[i] for i in np.linspace(0, len(every) - 1, count).round().astype(int))
    size = SQUARE + layer.window.kernel[0] - 1
    seen = replace(
        layer.window,
        input=(size, size),
        pads_begin=(0, 0),
        pads_end=(0, 0),
        output=(SQUARE, SQUARE),
    )
    return Sample(replace(layer, n=count, window=seen), begins)


def variants(problem: ConvProblem, device: DeviceFacts) -> dict[str, ConvChoice]:
    """Return the algorithms and configurations to measure, by name. There is one per algorithm and,
    for Winograd, one per set of interpolation points, because each set has different rounding
    errors. The heuristic chooses the configurations.

    A sum that is split into parts has a smaller error than the direct sum of the papers. So
    "direct" is measured with split sums and without. At precisions other than fp32, algorithms that
    multiply in float32 are left out, because their errors are the same as in fp32.
    """
    groups: dict[str, list[ConvChoice]] = {}
    for choice in choices(problem, device.max_shared_bytes, device.architecture):
        if choice.algorithm.arithmetic(problem) is Precision.FP32 is not problem.precision:
            continue
        points = getattr(choice.config, "points", None)
        name = choice.algorithm.name + (f", {points.name.lower()} points" if points else "")
        groups.setdefault(name, []).append(choice)
        if name == DIRECT and choice.config.split == 1:
            groups.setdefault(ONE_SUM, []).append(choice)
    return {name: choose(problem, group, device) for name, group in groups.items()}


@dataclass(frozen=True, slots=True)
class Error:
    """Holds three statistics of a variant's errors: the largest error, the root mean square
    (`usual`), and the mean error in the direction away from 0 (`bias`).

    `usual` and `bias` are in units of float32's epsilon, for results whose root mean square is 1.
    """

    largest: float
    usual: float
    bias: float


def error_of(y: Array, truth: NDArray[np.floating[Any]]) -> Error:
    """Compare y with the float64 reference, and return the errors."""
    apart = y - truth
    unit = EPS * float(np.sqrt(np.mean(truth**2)))
    return Error(
        float(np.abs(apart).max()),
        float(np.sqrt(np.mean(apart**2))) / unit,
        float(np.mean(apart * np.sign(truth))) / unit,
    )


def errors(
    device: Device,
    layer: ConvProblem,
    facts: DeviceFacts,
    only: Sequence[str] | None = None,
    *,
    sampled: bool = False,
    seed: int = 0,
) -> dict[str, tuple[ConvChoice, Error]]:
    """Run every variant (see `variants`) for a layer. Return the configuration and the errors of
    each variant.

    The variants are chosen for a device with the properties `facts`. If `sampled`, the errors are
    measured on a sample instead of the whole layer. If `only` is given, only these variants are
    run.
    """
    rng = np.random.default_rng(seed)
    shape = (layer.n, layer.c, *layer.window.input)
    x, weight = (rng.uniform(-1, 1, s).astype(np.float32) for s in (shape, layer.filter_shape))
    problem, seen = layer, np.ones((1, 1, 1, 1), np.bool_)
    if sampled:
        squares = sample(layer)
        problem, seen, x = squares.problem, squares.of_image(layer), squares.pixels(x, layer)
    truth = reference.conv(x.astype(np.float64), weight.astype(np.float64), problem)
    seen = np.broadcast_to(seen, truth.shape)
    most = float(np.abs(truth).max())
    found = {}
    for name, choice in variants(layer, facts).items():
        if only is None or name in only:
            y = convolve(device, problem, choice, x, weight, most)
            found[name] = choice, error_of(y[seen], truth[seen])
    return found


def convolve(
    device: Device,
    problem: ConvProblem,
    choice: ConvChoice,
    x: Array,
    weight: Array,
    most: float = 1,
) -> Array:
    """Run the algorithm and configuration of `choice` on x, N×C×H×W, and return the result.
    Elements that the kernel did not write are NaN. Operands and result are rounded to the type in
    which the problem's precision stores them. In int8, the bytes of x represent numbers from -1 to
    1, and the bytes of y numbers from -`most` to `most`. The scale of each filter follows from its
    largest number."""
    algorithm, config, _ = choice
    x_place, y_place = (
        Pixels(size, padded(size, 16 if stored.itemsize == 1 else 4), stored=stored)
        for size, stored in (
            (problem.c, _stored(problem.precision, 1)),
            (problem.k, _stored(problem.precision, most)),
        )
    )
    pixels = _as_stored(np.zeros((problem.n, *problem.window.input, x_place.pitch)), x_place.stored)
    pixels[..., : problem.c] = _as_stored(np.moveaxis(x, 1, -1), x_place.stored)
    y = np.zeros((problem.n, *problem.window.output, y_place.pitch), y_place.stored.dtype)
    numbers, of_filters = weight, {}
    if problem.precision is Precision.INT8:
        scale = np.abs(weight).reshape(problem.k, -1).max(axis=1) / 127
        numbers = np.rint(weight / scale.reshape(-1, *(1,) * (weight.ndim - 1)))
        of_filters = dict(
            zip(
                ("offset", "scale"),
                requantization(
                    numbers.astype(np.int32), scale, None, x_place.stored, y_place.stored
                ),
                strict=True,
            )
        )
    else:
        y.fill(np.nan)
    scratch = {
        **algorithm.workspace(problem, config),
        "counters": algorithm.counter_bytes(problem, config),
    }
    operands = {
        "x": pixels,
        "weight": np.ascontiguousarray(algorithm.prepare_filter(numbers, problem, config)),
        "y": y,
        **of_filters,
        **{name: np.zeros(nbytes, np.uint8) for name, nbytes in scratch.items()},
    }
    stream = device.stream()
    with _uploaded(device, operands) as addresses:
        launches = algorithm.launches(problem, config, ConvTensors(x_place, y_place))
        launcher(device, launches, [addresses])(stream, 0)
        device.download(y, addresses["y"], stream)
        stream.synchronize()
    numbers = np.moveaxis(y[..., : problem.k], -1, 1).astype(np.float32)
    result: Array = (numbers - y_place.stored.zero_point) * np.float32(y_place.stored.scale)
    return result


def _stored(precision: Precision, most: float) -> Storage:
    """Return the data type and scale with which a precision stores numbers from -`most` to
    `most`."""
    if precision is not Precision.INT8:
        return precision.stored
    return Storage(BYTE.dtype, 2 * most / 255, 128)


def _as_stored(numbers: NDArray[np.floating[Any]], stored: Storage) -> NDArray[Any]:
    if stored.dtype != BYTE.dtype:
        return numbers.astype(stored.dtype)
    shifted: NDArray[Any] = np.rint(numbers / stored.scale) + stored.zero_point
    return shifted.clip(0, 255).astype(stored.dtype)


@contextmanager
def _uploaded(
    device: Device, arrays: Mapping[str, NDArray[np.generic]]
) -> Iterator[dict[str, int]]:
    stream = device.stream()
    buffers: dict[str, Buffer] = {}
    for name, array in arrays.items():
        buffers[name] = device.allocate(max(array.nbytes, 1))
        device.upload(buffers[name].address, array, stream)
    stream.synchronize()
    yield {name: buffer.address for name, buffer in buffers.items()}
    for buffer in buffers.values():
        buffer.free()


def measure(
    device: Device, layers: Sequence[Layer], facts: DeviceFacts, at: str, *, sampled: bool = False
) -> list[Row]:
    """Measure the errors of each variant for each layer and each precision in PRECISIONS. Return a
    row of results for each combination."""
    return [
        {
            "kind": "accuracy",
            "date": now(),
            "commit": at,
            "device": device.name,
            "layer": layer.name,
            "problem": str(layer.problem),
            "sampled": sampled,
            "precision": precision.value,
            "variant": variant,
            "choice": str(choice),
            "largest_error": error.largest,
            "usual_error_eps": error.usual,
            "bias_eps": error.bias,
        }
        for precision in PRECISIONS
        for layer in layers
        for problem in [replace(layer.problem, precision=precision)]
        for variant, (choice, error) in errors(device, problem, facts, sampled=sampled).items()
    ]


def show(rows: Sequence[Row], console: Console) -> None:
    """Print a table for each precision, with the paper's numbers next to Convoy's.

    Also print whether the errors of fp32 stay within the promised ratios, and how the errors of
    3xtf32 compare with the errors of fp32.
    """
    by_precision = {
        precision: [row for row in rows if row["precision"] == precision]
        for precision in dict.fromkeys(row["precision"] for row in rows)
    }
    for precision, its_rows in by_precision.items():
        _show(precision, its_rows, console)
    for row in by_precision.get(Precision.TF32X3.value, ()):
        if row["variant"] == "tensor":
            beside = [other for other in by_precision["fp32"] if other["layer"] == row["layer"]]
            usual, best = row["usual_error_eps"], min(other["usual_error_eps"] for other in beside)
            console.print(
                f"{row['layer']}, 3xtf32: usual error {usual:.2f} eps, {usual / best:.1f} times"
                f" the smallest in fp32; mean error {row['bias_eps']:+.2f} eps",
                soft_wrap=True,
            )


def _paper(layer: str, variant: str, precision: str) -> float | None:
    if precision not in (Precision.FP32.value, Precision.FP16.value):
        return None
    if precision == Precision.FP16.value:
        return PAPER_HALF[layer]
    return PAPER[layer].get(variant.partition(" non-fused")[0].partition(", ")[0])


def _show(precision: str, rows: Sequence[Row], console: Console) -> None:
    errors = {(row["layer"], row["variant"]): row["largest_error"] for row in rows}
    names = list(dict.fromkeys(row["variant"] for row in rows))
    layers = {row["layer"]: row["problem"] for row in rows}
    table = Table(title=f"{precision}: largest error of an element (the paper's in brackets)")
    table.add_column("")
    for layer, problem in layers.items():
        table.add_column(f"{layer}\n{problem}", justify="right")
    for name in names:
        cells = []
        for layer in layers:
            paper = _paper(layer, name, precision)
            beside = f" ({paper:.2e})" if paper else ""
            cells.append(f"{errors[layer, name]:.2e}{beside}")
        table.add_row(name, *cells)
    console.print(table)
    for name in names if precision == Precision.FP32.value else ():
        for algorithm, most in AT_MOST.items():
            if name.startswith(algorithm):
                worst = max(errors[layer, name] / errors[layer, "direct"] for layer in layers)
                verdict = "met" if worst <= most else "NOT MET"
                console.print(
                    f"{verdict}: the error of {name} is {worst:.2f} times the error of direct"
                    f" (promised: at most {most:g} times)",
                    soft_wrap=True,
                )


DEVICES: dict[str, Callable[[], Device]] = {
    "cuda": CudaDevice,
    "cusim": partial(CusimDevice, FAST),
}


def run(where: str, out: Path, at: str, console: Console, *, whole: bool = True) -> None:
    """Measure the errors on one of DEVICES, print them, and append them to a file. Raises
    DeviceError."""
    device = DEVICES[where]()
    facts: DeviceFacts = H200 if where == "cusim" else device
    if not whole:
        console.print(
            f"computed per layer: squares of {SQUARE}×{SQUARE} with {ELEMENTS:,} elements of y"
        )
    rows = measure(device, LAYERS, facts, at, sampled=not whole)
    append(out / "accuracy.jsonl", rows)
    show(rows, console)
