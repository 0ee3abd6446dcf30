"""How launches pass what kernels/src/epilogue.cuh does: an activation chosen at run time."""

from kernels.device.launch import Value
from kernels.operations.elementwise import activation_arguments
from kernels.problems.activation import Activation, ActivationKind

_KINDS = (None, *ActivationKind)
"""In the order of `Activation` in common.cuh."""


def epilogue_arguments(activation: Activation | None) -> dict[str, Value]:
    """What a kernel with an epilogue takes last: the enumerator's number, and `a` and `b`."""
    kind = activation.kind if activation else None
    return {"activation": _KINDS.index(kind), **activation_arguments(activation)}
