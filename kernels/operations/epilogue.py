"""Chooses how a kernel of kernels/src/epilogue.cuh ends: y = activation(sum + bias + residual)."""

from dataclasses import replace
from math import inf

from kernels.device.device import Instantiation
from kernels.device.launch import Value
from kernels.operations.elementwise import activation_arguments
from kernels.problems.activation import Activation, ActivationKind

_KINDS = (None, *ActivationKind)
"""In the order of `Activation` in common.cuh."""

_BOUNDS = {None: (-inf, inf), ActivationKind.RELU: (0.0, inf)}
"""Of activations that are min(max(x, a), b), as Clip is: a and b."""

_CLAMP, _ANY = "Finish::CLAMP", "Finish::ANY"


def finish(activation: Activation | None) -> str:
    """Return the template argument `finish`: to clamp, or to end in any other activation."""
    clamps = activation is None or activation.kind in (*_BOUNDS, ActivationKind.CLIP)
    return _CLAMP if clamps else _ANY


def epilogue_arguments(activation: Activation | None) -> dict[str, Value]:
    """Return the last arguments of a kernel with an epilogue: `activation`, a number, `a` and
    `b`.
    """
    kind = activation.kind if activation else None
    arguments = activation_arguments(activation)
    if kind in _BOUNDS:
        arguments["a"], arguments["b"] = _BOUNDS[kind]
    return {"activation": _KINDS.index(kind), **arguments}


def variants(kernel: Instantiation) -> tuple[Instantiation, ...]:
    """Return the kernel that clamps and the one for other activations; itself without an
    epilogue.
    """
    if "finish" not in dict(kernel.arguments):
        return (kernel,)
    others = kernel.arguments[:-1]
    return tuple(
        replace(kernel, arguments=(*others, ("finish", finish))) for finish in (_CLAMP, _ANY)
    )


def commonest(kernel: Instantiation) -> Instantiation:
    """Return the kernel that clamps, which is profiled for all activations."""
    return variants(kernel)[0]
