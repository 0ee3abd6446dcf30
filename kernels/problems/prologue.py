"""Defines prologues, functions that a convolution applies to its input while it loads the input."""

from dataclasses import dataclass

from kernels.problems.activation import Activation


@dataclass(frozen=True, slots=True)
class Prologue:
    """Computes x' = activation((x - mean) / sqrt(variance + epsilon) · scale + shift).

    scale and shift are operands with one number per channel. With `epsilon`, mean and variance are
    computed over a pixel's channels, as in LayerNormalization. If `epsilon` is None, x is only
    scaled and shifted, as in BatchNormalization at inference.
    """

    epsilon: float | None = None
    activation: Activation | None = None

    def __str__(self) -> str:
        name = "ScaleShift" if self.epsilon is None else f"LayerNorm({self.epsilon:g})"
        return f"{name}, {self.activation}" if self.activation else name
