"""How launches pass what kernels/src/epilogue.cuh does: an activation chosen at run time."""

from kernels.device.device import Argument
from kernels.device.launch import int32
from kernels.operations.elementwise import activation_arguments
from kernels.problems.activation import Activation, ActivationKind

_KINDS = (None, *ActivationKind)
"""In the order of `Activation` in common.cuh."""


def epilogue_arguments(activation: Activation | None) -> tuple[Argument, ...]:
    """The enumerator's number, and `a` and `b`: what a kernel with an epilogue takes last."""
    kind = activation.kind if activation else None
    return int32(_KINDS.index(kind)), *activation_arguments(activation)
