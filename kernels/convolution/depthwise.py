"""Implements depthwise convolution. Each channel is filtered separately, so this convolution is not
a matrix product."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, prod

import numpy as np

from kernels.convolution.rounding import direct_rounding
from kernels.convolution.work import NO_INNER_LOOPS, Work
from kernels.device.device import Instantiation
from kernels.device.launch import (
    Launch,
    instantiate,
    int32,
    launch,
    struct,
    template_arguments,
    window_struct,
)
from kernels.layout.operands import ConvTensors, Filter, check_filter, check_operands, vectors_in
from kernels.layout.strided import VECTOR
from kernels.operations.epilogue import epilogue_arguments, finish
from kernels.problems.activation import Activation
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import Precision
from kernels.problems.refusals import after_prologue, not_floating, wrong_axes

THREADS = 128
"""The number of threads of a block."""

_WIDTHS = (3, 5)
_STRIDES = (1, 2)
_RUNS = (4, 1)


@dataclass(frozen=True, slots=True)
class DepthwiseConfig:
    """Sets how many outputs a thread computes at once. The fields are named like the template
    parameters of `conv_depthwise`.

    If `s` is not 0, the kernel is specialised for windows of the width `s` and the stride `stride`.
    A thread then computes `run` neighbouring outputs, and holds their inputs in registers. If `s`
    is 0, the window may have any width and stride, and a thread computes one output at a time.
    """

    s: int
    stride: int
    run: int

    def __str__(self) -> str:
        return f"{self.s} wide, stride {self.stride}, {self.run} a run" if self.s else "any"


_ANY = DepthwiseConfig(0, 0, 1)


@dataclass(frozen=True, slots=True)
class DepthwiseConv:
    """Computes y[n, c·j + i] = x[n, c] ∗ w[c·j + i] in 2-D, where each of the C > 1 channels is a
    group with j = K/C filters.

    With only R·S multiplications per output, depthwise convolution is limited by memory. Therefore
    a thread holds inputs in registers, and computes several neighbouring outputs of several
    neighbouring channels from these inputs. Source: Howard et al. 2017 (MobileNets), section 3.1,
    equation 3.
    """

    name: str = "depthwise"

    def supports(self, problem: ConvProblem) -> str | None:
        """Return why the algorithm cannot compute this convolution, or None if it can. The
        algorithm supports 2-D convolutions with several groups of one input channel each."""
        if not problem.is_depthwise:
            return f"groups {problem.groups}; supported: one channel per group"
        return wrong_axes(problem, 2) or not_floating(problem) or after_prologue(problem)

    def multiplications(self, problem: ConvProblem) -> int:
        """Return the number of multiplications, N·K·P·Q·R·S, including products with padding."""
        return problem.macs

    def arithmetic(self, problem: ConvProblem) -> Precision:  # noqa: ARG002  (the same for all)
        """Return float32, since halves are converted to floats before they are multiplied."""
        return Precision.FP32

    def rounding(self, problem: ConvProblem, config: DepthwiseConfig) -> float:  # noqa: ARG002  (the same for all)
        """Return the output's estimated relative rounding error, in units of float32's eps / 2."""
        return direct_rounding(problem)

    def configs(self, problem: ConvProblem) -> tuple[DepthwiseConfig, ...]:
        """Return the configurations that are specialised for the window, beginning with the most
        outputs per thread. If there are none, return the general configuration."""
        window = problem.window
        s, stride = window.kernel[-1], window.strides[-1]
        if (
            problem.k == problem.c
            and s in _WIDTHS
            and stride in _STRIDES
            and window.dilations[-1] == 1
        ):
            return tuple(DepthwiseConfig(s, stride, run) for run in _RUNS)
        return (_ANY,)

    def work(self, problem: ConvProblem, config: DepthwiseConfig) -> tuple[Work]:
        """Return a description of the launch for the cost model. A thread loads one row of its
        window at a time, and waits for each row."""
        window = problem.window
        rows, width = window.kernel[0], config.s or window.kernel[1]
        loads = rows * ((config.run - 1) * config.stride + width)  # of a thread, 16 bytes each
        itemsize = problem.precision.stored.itemsize
        return (
            Work(
                kernel=self.instantiation(problem, config),
                blocks=ceil(_steps(problem, config) / THREADS),
                threads=THREADS,
                shared_bytes=0,
                bytes=THREADS * loads * VECTOR * itemsize,
                trips=NO_INNER_LOOPS,
                products=VECTOR * rows * width * config.run,
                vectors=config.run,
                rounds=rows - 1,
                tail_bytes=0,
                weight_bytes=itemsize * problem.window.kernel_volume * problem.k,
            ),
        )

    def workspace(self, problem: ConvProblem, config: DepthwiseConfig) -> Mapping[str, int]:  # noqa: ARG002  (it needs none for any)
        """Return an empty mapping, since no sum is split between blocks."""
        return {}

    def counter_bytes(self, problem: ConvProblem, config: DepthwiseConfig) -> int:  # noqa: ARG002  (it needs none for any)
        """Return 0, since no sum is split between blocks."""
        return 0

    def filter_form(self, problem: ConvProblem, config: DepthwiseConfig) -> str:  # noqa: ARG002  (one layout serves all)
        """Return the name of the filter's layout, which is the same for all configurations and
        batch sizes."""
        return f"taps x filters, {problem.precision.stored}"

    def prepare_filter(
        self,
        weight: Filter,
        problem: ConvProblem,
        config: DepthwiseConfig,  # noqa: ARG002  (one layout serves all)
    ) -> Filter:
        """Return the filter K×1×R×S as R·S × K, with K padded with zeros to a multiple of 4."""
        check_filter(weight, problem)
        taps = weight.reshape(problem.k, problem.window.kernel_volume).T
        taps = taps.astype(problem.precision.stored, copy=False)
        return np.ascontiguousarray(np.pad(taps, ((0, 0), (0, -problem.k % VECTOR))))

    def launches(
        self, problem: ConvProblem, config: DepthwiseConfig, tensors: ConvTensors
    ) -> tuple[Launch]:
        """Return one launch with the operands x, weight and y, and bias and residual if given.
        Raises ValueError if a tensor does not match the problem, or if an index exceeds 32 bits."""
        config, steps, sizes = self.sized(problem, config, tensors)
        return (
            launch(
                self.instantiation(problem, config, tensors.activation),
                (-(-steps // THREADS), 1, 1),
                (THREADS, 1, 1),
                x="x",
                weight="weight",
                **tensors.given,
                y="y",
                sizes=sizes,
                window=window_struct(problem.window),
                **epilogue_arguments(tensors.activation),
            ),
        )

    def sized(
        self, problem: ConvProblem, config: DepthwiseConfig, tensors: ConvTensors
    ) -> tuple[DepthwiseConfig, int, bytes]:
        """Return the configuration to launch, the number of threads that have work, and the
        kernel's struct `Sizes`. If x does not allow vector loads, the general configuration
        replaces `config`.

        Raises ValueError if a tensor does not match the problem, or if an index exceeds 32 bits.
        """
        x, y, residual, *_ = tensors
        check_operands(problem, tensors)
        if not vectors_in(x):
            config = _ANY  # rows in registers are vectors of channels
        window = problem.window
        p, q = window.output
        runs, vectors = -(-q // config.run), -(-problem.k // VECTOR)
        steps = _steps(problem, config)
        margins = tuple(map(max, window.extent, window.pads_begin))
        reached = prod(size + margin for size, margin in zip(window.input, margins, strict=True))
        for reach in (
            steps + THREADS,
            problem.n * reached * x.pitch,
            *(problem.n * p * q * pixels.pitch for pixels in (y, residual or y)),
        ):
            int32(reach)
        sizes = struct(
            "depthwise.cu",
            "Sizes",
            steps=steps,
            runs=runs,
            vectors=vectors,
            filters=problem.k,
            multiplier=problem.k // problem.c,
            x_pitch=x.pitch,
            residual_pitch=0 if residual is None else residual.pitch,
            y_pitch=y.pitch,
            x_vectors=vectors_in(x),
            y_vectors=vectors_in(y, residual or y),
        )
        return config, steps, sizes

    def instantiation(
        self, problem: ConvProblem, config: DepthwiseConfig, activation: Activation | None = None
    ) -> Instantiation:
        """Return the kernel for a configuration."""
        return instantiate(
            "depthwise.cu",
            "conv_depthwise",
            t=problem.precision.stored.element,
            **template_arguments(config),
            finish=finish(activation),
        )


def _steps(problem: ConvProblem, config: DepthwiseConfig) -> int:
    """Return the number of threads that have work. Each thread computes `config.run` neighbouring
    outputs for 4 neighbouring filters."""
    p, q = problem.window.output
    return problem.n * p * -(-q // config.run) * -(-problem.k // VECTOR)
