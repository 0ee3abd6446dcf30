"""Launches kernels/src/product.cu, which multiplies computed matrices."""

from kernels.device.launch import Launch, instantiate, launch
from kernels.layout.strided import StridedTensor, walk_matrices
from kernels.operations.reads import BlockReads
from kernels.problems.precision import Storage, one_type

_TILE = 32
"""Rows and columns of a block."""

_TERMS = 32
"""Products that are summed between two barriers."""


def product_launch(a: StridedTensor, b: StridedTensor, y: StridedTensor) -> Launch:
    """Return a launch of y = a · b, matrices along the last two axes: operands a, b, y.

    The axes before broadcast to y's. Raises ValueError where sizes do not match, or exceed 32-bit
    indices.
    """
    *matrices, rows, columns = y.shape
    terms = a.shape[-1]
    a = a.broadcast((*matrices, rows, terms))
    b = b.broadcast((*matrices, terms, columns))
    each = walk_matrices(y, a, b)
    (a_row, a_term), (b_term, b_column), (y_row, y_column) = (
        tensor.strides[-2:] for tensor in (a, b, y)
    )
    return launch(
        instantiate(
            "product.cu",
            "product",
            t=one_type(a.stored, b.stored, y.stored).element,
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
        a_row=a_row,
        a_term=a_term,
        b_term=b_term,
        b_column=b_column,
        y_row=y_row,
        y_column=y_column,
    )


def product_reads(terms: int, stored: Storage) -> BlockReads:
    """Return what a block of `product_launch` reads: of both factors its tile of each step."""
    return BlockReads(2 * _TILE * terms * stored.itemsize, -(-terms // _TERMS))
