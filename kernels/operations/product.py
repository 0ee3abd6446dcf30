"""Launches kernels/src/product.cu, which multiplies two matrices that a network computes."""

from kernels.device.device import TemplateArgument
from kernels.device.launch import Launch, instantiate, launch, struct
from kernels.layout.strided import StridedTensor, walk_matrices
from kernels.operations.reads import BlockReads
from kernels.problems.precision import Precision, Storage, one_type

_TILE = 32
"""Rows and columns of a block."""

_TERMS = 32
"""Products that are summed between two barriers."""


def product_launch(
    a: StridedTensor, b: StridedTensor, y: StridedTensor, precision: Precision
) -> Launch:
    """Return a launch of y = a · b, a product of matrices along the last two axes. Its operands are
    a, b and y.

    The other axes are broadcast to y's other axes. Tensor cores multiply, except in strict float32.
    Raises ValueError if sizes do not match, if an index exceeds 32 bits, or if an operand does not
    have the type that `precision` stores.
    """
    *matrices, rows, columns = y.shape
    terms = a.shape[-1]
    one_type(precision.stored, a.stored, b.stored, y.stored)
    a = a.broadcast((*matrices, rows, terms))
    b = b.broadcast((*matrices, terms, columns))
    each = walk_matrices(y, a, b)
    (a_row, a_term), (b_term, b_column), (y_row, y_column) = (
        tensor.strides[-2:] for tensor in (a, b, y)
    )
    name, variant = "product", dict[str, TemplateArgument]()
    if precision is not Precision.FP32:
        name, variant = "product_tensor", {"precision": f"Precision::{precision.name}"}
    return launch(
        instantiate(
            "product.cu",
            name,
            precision.architectures,
            **variant,
            a_terms=a_term <= a_row,
            b_columns=b_column <= b_term,
            rank=each.rank,
        ),
        (each.steps, -(-rows // _TILE), -(-columns // _TILE)),
        (64, 1, 1),
        a="a",
        b="b",
        y="y",
        matrices=each.struct(),
        rows=rows,
        columns=columns,
        terms=terms,
        strides=struct(
            "product.cu",
            "ProductStrides",
            a_row=a_row,
            a_term=a_term,
            b_term=b_term,
            b_column=b_column,
            y_row=y_row,
            y_column=y_column,
        ),
    )


def product_reads(terms: int, stored: Storage) -> BlockReads:
    """Return how many bytes a block of `product_launch` reads, and how often it waits for them. In
    each step, a block reads one tile of a and one tile of b."""
    return BlockReads(2 * _TILE * terms * stored.itemsize, -(-terms // _TERMS))
