"""Builds the arguments of a prologue (kernels/src/prologue.cuh), the function that a matrix product
first applies to its input."""

from kernels.device.launch import Value
from kernels.operations.elementwise import activation_arguments, activation_name
from kernels.problems.prologue import Prologue


def prologue_template(prologue: Prologue | None) -> dict[str, str]:
    """Return the template arguments of a kernel with a prologue: `prologue` (its kind) and `before`
    (its activation)."""
    if prologue is None:
        kind = "NONE"
    else:
        kind = "SCALE_SHIFT" if prologue.epsilon is None else "LAYER_NORM"
    activation = prologue.activation if prologue else None
    return {"prologue": f"Prologue::{kind}", "before": activation_name(activation)}


def prologue_arguments(prologue: Prologue | None) -> dict[str, Value]:
    """Return the kernel's arguments for a prologue: the operands scale and shift, epsilon, and the
    activation's parameters.

    Without a prologue, scale and shift are 0.
    """
    activation = activation_arguments(prologue.activation if prologue else None)
    return {
        "scale": "scale" if prologue else 0,
        "shift": "shift" if prologue else 0,
        "epsilon": (prologue and prologue.epsilon) or 0.0,
        **{f"before_{name}": value for name, value in activation.items()},
    }
