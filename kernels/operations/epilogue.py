"""Chooses the variant and the arguments of a kernel's epilogue (epilogue.cuh). The epilogue
computes y = activation(sum + bias + residual)."""

from dataclasses import replace
from math import inf

from kernels.device.device import Instantiation
from kernels.device.launch import Value
from kernels.operations.elementwise import activation_arguments
from kernels.problems.activation import Activation, ActivationKind

_KINDS = (None, *ActivationKind)
"""The activations in the order of `Activation` in common.cuh."""

_BOUNDS = {None: (-inf, inf), ActivationKind.RELU: (0.0, inf)}
"""The bounds a and b of the activations that are min(max(x, a), b) like Clip."""

_CLAMP, _ANY = "Finish::CLAMP", "Finish::ANY"


def finish(activation: Activation | None) -> str:
    """Return the template argument `finish` for an activation. A kernel has one variant for
    activations that only clamp, such as ReLU, and one variant for all other activations."""
    clamps = activation is None or activation.kind in (*_BOUNDS, ActivationKind.CLIP)
    return _CLAMP if clamps else _ANY


def epilogue_arguments(activation: Activation | None) -> dict[str, Value]:
    """Return the last arguments of a kernel with an epilogue: the activation's kind, `a` and
    `b`."""
    kind = activation.kind if activation else None
    arguments = activation_arguments(activation)
    if kind in _BOUNDS:
        arguments["a"], arguments["b"] = _BOUNDS[kind]
    return {"activation": _KINDS.index(kind), **arguments}


def variants(kernel: Instantiation) -> tuple[Instantiation, ...]:
    """Return the two variants of a kernel: one for activations that clamp, and one for all other
    activations. A kernel without an epilogue has no variants and is returned alone."""
    if "finish" not in dict(kernel.arguments):
        return (kernel,)
    others = kernel.arguments[:-1]
    return tuple(
        replace(kernel, arguments=(*others, ("finish", finish))) for finish in (_CLAMP, _ANY)
    )


def commonest(kernel: Instantiation) -> Instantiation:
    """Return the kernel's variant for activations that only clamp. The cost model estimates all
    activations with the registers and instructions of this variant."""
    return variants(kernel)[0]
