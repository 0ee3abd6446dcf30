"""Recognises an activation that an exporter wrote as several nodes, and replaces them by one
Activate.

    x · Sigmoid(x)                        = SiLU(x)
    x · HardSigmoid(x)                    = HardSwish(x)      with slope 1/6 and offset 1/2
    x · Clip(x + 3, 0, 6) · 1/6           = HardSwish(x)
    Clip(x + 3, 0, 6) · 1/6               = HardSigmoid(x)    with slope 1/6 and offset 1/2
    x · (1 + Erf(x / √2)) · 1/2           = Gelu(x)
    x · (1 + Tanh(√(2/π)·(x + 0.044715·x³))) · 1/2 = Gelu(x), the approximation
    x · Tanh(Softplus(x))                 = Mish(x)

The factors may be in any order, and in any number of Mul and Div nodes. Constants are compared at
float32's precision. If other nodes also read an intermediate result, it is kept for them.
"""

from dataclasses import dataclass
from math import isclose, pi, sqrt

import numpy as np
from numpy.polynomial.polynomial import polyadd, polymul
from numpy.typing import NDArray

from kernels.problems.activation import Activation, ActivationKind
from kernels.problems.binary_operation import BinaryOp
from models.graph import Activate, Binary, Node
from models.rewrite.rule import GraphView, Outcome, Rewrite

_HARD_SIGMOID = Activation(ActivationKind.HARD_SIGMOID, 1 / 6, 1 / 2)


def recognise_activation(view: GraphView, node: Node) -> Outcome:
    """Return a rewrite that merges the nodes of an exported activation into one Activate. `node` is
    the last Mul or Div of the activation."""
    if not isinstance(node, Binary) or node.activation is not None:
        return None
    product = _product(view, node)
    if product is None:
        return None
    match product.factors:
        case (y,):
            found = _of_one_factor(view, product.coefficient, y)
        case (a, b):
            found = _of_two_factors(view, product.coefficient, a, b)
            found = found or _of_two_factors(view, product.coefficient, b, a)
        case _:
            return None
    if found is None or view.shape(found.x) != view.shape(node.output):
        return None
    named = Activate(name=node.name, output=node.output, x=found.x, activation=found.activation)
    return Rewrite(nodes=(named,))


@dataclass(frozen=True)
class _Found:
    x: str
    activation: Activation


@dataclass(frozen=True)
class _Product:
    """Describes a product of a number, `coefficient`, and of the values named `factors`."""

    coefficient: float
    factors: tuple[str, ...]


def _of_one_factor(view: GraphView, coefficient: float, y: str) -> _Found | None:
    x = _hard_sigmoid_input(view, coefficient, y)
    return None if x is None else _Found(x, _HARD_SIGMOID)


def _of_two_factors(view: GraphView, coefficient: float, x: str, y: str) -> _Found | None:
    """Return the activation and x if coefficient · x · y is a known activation of x, or otherwise
    None."""
    if _hard_sigmoid_input(view, coefficient, y) == x:
        return _Found(x, Activation(ActivationKind.HARD_SWISH))
    producer = view.producer(y)
    if _near(coefficient, 1 / 2) and _one_plus_erf_input(view, y) == x:
        return _Found(x, Activation(ActivationKind.GELU))
    if _near(coefficient, 1 / 2) and _is_one_plus_tanh(view, y, x):
        return _Found(x, Activation(ActivationKind.GELU_TANH))
    if _near(coefficient, 1) and _is(view, y, ActivationKind.TANH, ActivationKind.SOFTPLUS, x):
        return _Found(x, Activation(ActivationKind.MISH))
    if isinstance(producer, Activate) and producer.x == x and _near(coefficient, 1):
        if producer.activation.kind is ActivationKind.SIGMOID:
            return _Found(x, Activation(ActivationKind.SILU))
        if _is_hard_sigmoid(producer.activation):
            return _Found(x, Activation(ActivationKind.HARD_SWISH))
    return None


def _hard_sigmoid_input(view: GraphView, coefficient: float, y: str) -> str | None:
    """Return the x for which coefficient · y = Clip(x + 3, 0, 6) / 6, or None."""
    clip = view.producer(y)
    if not isinstance(clip, Activate) or not _near(coefficient, 1 / 6):
        return None
    if clip.activation != Activation(ActivationKind.CLIP, 0.0, 6.0):
        return None
    x, slope, offset = _affine(view, clip.x)
    return x if slope == 1 and offset == 3 else None


def _one_plus_erf_input(view: GraphView, y: str) -> str | None:
    """Return the x for which y = 1 + Erf(x / √2), or None."""
    erf_output, slope, offset = _affine(view, y)
    erf = view.producer(erf_output)
    if (slope, offset) != (1, 1) or not isinstance(erf, Activate):
        return None
    x, slope, offset = _affine(view, erf.x)
    is_erf = erf.activation.kind is ActivationKind.ERF
    return x if is_erf and offset == 0 and _near(slope, 1 / sqrt(2)) else None


def _is(view: GraphView, y: str, outer: ActivationKind, inner: ActivationKind, x: str) -> bool:
    """Return whether y = outer(inner(x))."""
    for kind in (outer, inner):
        node = view.producer(y)
        if not isinstance(node, Activate) or node.activation.kind is not kind:
            return False
        y = node.x
    return y == x


def _is_one_plus_tanh(view: GraphView, y: str, x: str) -> bool:
    """Return whether y = 1 + Tanh(√(2/π)·(x + 0.044715·x³))."""
    tanh_output, slope, offset = _affine(view, y)
    tanh = view.producer(tanh_output)
    if (slope, offset) != (1, 1) or not isinstance(tanh, Activate):
        return False
    if tanh.activation.kind is not ActivationKind.TANH:
        return False
    found = _polynomial(view, tanh.x, x)
    if found is None or len(found) != 4:
        return False
    exact = sqrt(2 / pi) * np.array([0, 1, 0, 0.044715])
    return bool(np.allclose(found, exact, rtol=1e-5, atol=1e-9))


def _polynomial(view: GraphView, y: str, x: str, depth: int = 8) -> NDArray[np.float64] | None:
    """Return the coefficients of y as a polynomial in x, beginning with the constant term.

    Return None if y is computed by other operations than + and ·, has a degree above 3, or is
    nested over `depth` levels deep.
    """
    if y == x:
        return np.array([0.0, 1.0])
    number = _scalar(view, y)
    if number is not None:
        return np.array([number])
    node = view.producer(y)
    if not isinstance(node, Binary) or node.activation is not None or depth == 0:
        return None
    sides = [_polynomial(view, operand, x, depth - 1) for operand in (node.a, node.b)]
    a, b = sides
    if a is None or b is None:
        return None
    if node.op is BinaryOp.ADD:
        return np.asarray(polyadd(a, b), np.float64)
    if node.op is BinaryOp.MUL and len(a) + len(b) <= 5:  # at most degree 3
        return np.asarray(polymul(a, b), np.float64)
    return None


def _is_hard_sigmoid(activation: Activation) -> bool:
    same_kind = activation.kind is ActivationKind.HARD_SIGMOID
    return same_kind and _near(activation.a, 1 / 6) and _near(activation.b, 1 / 2)


def _product(view: GraphView, node: Binary) -> _Product | None:
    """Return the node's result as a product of a number and of factors, or None if it is no
    product.

    If a factor is a product itself and no other node reads it, its own factors take its place.
    """
    coefficient, factors = 1.0, []
    pending: list[tuple[Node, str]] = []

    def open_up(product: Binary) -> bool:
        divisor = _scalar(view, product.b)
        if product.op is BinaryOp.DIV and divisor:
            pending.append((product, product.a))
            nonlocal coefficient
            coefficient /= divisor
        elif product.op is BinaryOp.MUL:
            pending.extend(((product, product.a), (product, product.b)))
        else:
            return False
        return True

    if not open_up(node):
        return None
    while pending:
        reader, name = pending.pop()
        inner = view.producer(name)
        number = _scalar(view, name)
        if number is not None:
            coefficient *= number
        elif not (
            isinstance(inner, Binary)
            and inner.activation is None
            and view.tie(name, reader) is None
            and open_up(inner)
        ):
            factors.append(name)
    return _Product(coefficient, tuple(factors))


def _affine(view: GraphView, name: str) -> tuple[str, float, float]:
    """Return (x, a, b) if the value is a·x + b, computed by one Add, Sub, Mul or Div with a number.

    Otherwise, return the value itself with a = 1 and b = 0.
    """
    node = view.producer(name)
    if isinstance(node, Binary) and node.activation is None:
        for x, constant in ((node.a, _scalar(view, node.b)), (node.b, _scalar(view, node.a))):
            if constant is None:
                continue
            if node.op is BinaryOp.ADD:
                return x, 1, constant
            if node.op is BinaryOp.MUL:
                return x, constant, 0
            if node.op is BinaryOp.SUB and x == node.a:
                return x, 1, -constant
            if node.op is BinaryOp.DIV and x == node.a and constant:
                return x, 1 / constant, 0
    return name, 1, 0


def _scalar(view: GraphView, name: str) -> float | None:
    """Return the number in a weight with one element, or None for other operands."""
    weight = view.weight(name)
    return float(weight.item()) if weight is not None and weight.size == 1 else None


def _near(number: float, exact: float) -> bool:
    """Return whether `number` equals `exact` within float32's rounding."""
    return isclose(number, exact, rel_tol=1e-6)
