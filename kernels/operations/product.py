"""Launches kernels/src/product.cu, which multiplies computed matrices."""

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
    """Return a launch of y = a · b, matrices along the last two axes: operands a, b, y.

    The axes before broadcast to y's. All but strict float32 multiplies on tensor cores.
    Raises ValueError where sizes do not match, or exceed 32-bit indices, or where an operand is
    stored otherwise than `precision` says.
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
    """Return what a block of `product_launch` reads: of both factors its tile of each step."""
    return BlockReads(2 * _TILE * terms * stored.itemsize, -(-terms // _TERMS))
