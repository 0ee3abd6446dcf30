"""A convolution of quantised values that is quantised at once multiplies bytes.

    quantize(f(conv(dequantize(x), w) + b + dequantize(r)))  →  conv of the bytes of x and w,
                                                                to which those of r are added

And a Gemm likewise. The filter has whole numbers, and f does no more than clamp. Refused where an
operand is not quantised, the filter was quantised with a zero point that leaves no signed bytes, a
sum may pass 32 bits, or another node needs the value ahead of Quantize.
"""

from dataclasses import replace

from kernels.operations.quantise import clamps
from kernels.problems.precision import Precision
from models.graph import Conv, Dequantize, Gemm, Node, Quantize
from models.integers import operands_of
from models.rewrite.rule import GraphView, Outcome, Refusal, Rewrite


def integer_conv(view: GraphView, node: Node) -> Outcome:
    """Apply the rule at Quantize."""
    if not isinstance(node, Quantize):
        return None
    product = view.producer(node.x)
    if not isinstance(product, Conv | Gemm):
        return None
    x = behind(view, product.x)
    if x is None:
        return Refusal(f"{product.x}, which {product.name} reads, is not quantised")
    obstacle = _obstacle(view, product, x, node.output) or view.tie(product.output, node)
    if obstacle is not None:
        return Refusal(obstacle)
    if isinstance(product, Gemm):
        return Rewrite(nodes=(replace(product, output=node.output, x=x),))
    residual = product.residual and behind(view, product.residual)
    if product.residual is not None and residual is None:
        return Refusal(f"{product.residual}, which {product.name} adds, is not quantised")
    problem = replace(product.problem, precision=Precision.INT8)
    whole = replace(product, output=node.output, x=x, residual=residual, problem=problem)
    return Rewrite(nodes=(whole,))


def behind(view: GraphView, name: str) -> str | None:
    """Return the quantised value whose numbers are the value `name`; None where there is none."""
    node = view.producer(name)
    return node.x if isinstance(node, Dequantize) else None


def _obstacle(view: GraphView, product: Conv | Gemm, x: str, y: str) -> str | None:
    grid = view.grid(product.weight)
    if grid is None:
        return f"{product.weight}, the filter of {product.name}, is not quantised"
    if not clamps(product.activation):
        return f"{product.name} ends in {product.activation}"
    if isinstance(product, Gemm) and len(view.shape(product.x)) != 1:
        return f"{product.name} has several rows an image"
    bias, bias_grid = None, None
    if product.bias is not None:
        bias, bias_grid = view.weight(product.bias), view.grid(product.bias)
    try:
        operands_of(grid, bias, bias_grid, view.value(x).stored, view.value(y).stored)
    except ValueError as error:
        return f"{product.name}: {error}"
    return None
