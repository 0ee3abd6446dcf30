"""Launches the kernel conv_integer_depthwise of kernels/src/depthwise.cu, which computes depthwise
convolutions of bytes."""

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from kernels.convolution.depthwise import THREADS, DepthwiseConfig, DepthwiseConv
from kernels.convolution.integer import rounding_struct, signed_bytes
from kernels.device.device import Instantiation
from kernels.device.launch import Launch, instantiate, launch, template_arguments, window_struct
from kernels.layout.operands import ConvTensors, Filter, check_filter, padded
from kernels.problems.activation import Activation
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import Precision
from kernels.problems.refusals import after_prologue, not_bytes, wrong_axes

_MOST_TAPS = 512
"""The most taps of a window with which floats hold sums of products of bytes exactly."""


@dataclass(frozen=True, slots=True)
class IntegerDepthwiseConv(DepthwiseConv):
    """Computes a depthwise convolution like DepthwiseConv, but of unsigned bytes with signed
    weights. The sums are whole numbers that float32 represents exactly."""

    name: str = "integer depthwise"

    @override
    def supports(self, problem: ConvProblem) -> str | None:
        """Return why the algorithm cannot compute this convolution, or None if it can. The
        algorithm supports bytes in 2-D, with several groups of one input channel each and up to 512
        taps."""
        if not problem.is_depthwise:
            return f"groups {problem.groups}; supported: one channel per group"
        if (taps := problem.window.kernel_volume) > _MOST_TAPS:
            return f"{taps} taps; supported: up to {_MOST_TAPS}"
        return wrong_axes(problem, 2) or not_bytes(problem) or after_prologue(problem)

    @override
    def rounding(self, problem: ConvProblem, config: DepthwiseConfig) -> float:
        """Return 0, since sums are exact."""
        return 0.0

    @override
    def filter_form(self, problem: ConvProblem, config: DepthwiseConfig) -> str:
        return "taps x filters, whole floats"

    @override
    def prepare_filter(
        self, weight: Filter, problem: ConvProblem, config: DepthwiseConfig
    ) -> Filter:
        """Return the filter K×1×R×S as R·S × K floats, with K padded with zeros to a multiple of 4.
        Raises ValueError if a number does not fit a signed byte."""
        check_filter(weight, problem)
        taps = signed_bytes(weight).reshape(problem.k, -1).T.astype(np.float32)
        return np.ascontiguousarray(np.pad(taps, ((0, 0), (0, padded(problem.k) - problem.k))))

    @override
    def launches(
        self, problem: ConvProblem, config: DepthwiseConfig, tensors: ConvTensors
    ) -> tuple[Launch]:
        """Return one launch with the operands x, weight, offset, scale and y, and residual if
        given. Raises ValueError if a tensor does not match the problem, if an index exceeds 32
        bits, or if the activation does more than clamp."""
        config, steps, sizes = self.sized(problem, config, tensors)
        return (
            launch(
                self.instantiation(problem, config),
                (-(-steps // THREADS), 1, 1),
                (THREADS, 1, 1),
                x="x",
                weight="weight",
                offset="offset",
                scale="scale",
                residual=tensors.given["residual"],
                y="y",
                sizes=sizes,
                window=window_struct(problem.window),
                rounding=rounding_struct(tensors),
            ),
        )

    @override
    def instantiation(
        self, problem: ConvProblem, config: DepthwiseConfig, activation: Activation | None = None
    ) -> Instantiation:
        return instantiate(
            "depthwise.cu",
            "conv_integer_depthwise",
            Precision.INT8.architectures,
            **template_arguments(config),
        )
