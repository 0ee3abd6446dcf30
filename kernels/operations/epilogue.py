"""Arguments of kernels/src/epilogue.cuh: an activation chosen at run time."""

from kernels.device.launch import Value
from kernels.operations.elementwise import activation_arguments
from kernels.problems.activation import Activation, ActivationKind

_KINDS = (None, *ActivationKind)
"""In the order of `Activation` in common.cuh."""


def epilogue_arguments(activation: Activation | None) -> dict[str, Value]:
    """The last arguments of a kernel with an epilogue: the enumerator's number, `a` and `b`."""
    kind = activation.kind if activation else None
    return {"activation": _KINDS.index(kind), **activation_arguments(activation)}
