"""Converts the ONNX operator Einsum to matrix products.

    y[B, L, R] = Σ_K a[B, L, K] · b[B, K, R]   per image; B, L, R and K may be several letters

Each letter of an equation names an axis. B are the letters in both operands and in the output. K
are the letters in both operands only. L and R are the letters in one operand and in the output.
Transposes and Reshapes bring the operands and the output to this form. The matrix product is a
Product, or a Gemm if b is a constant without B. If K is empty, it is an elementwise product. The
first letter of the output is the batch.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from string import ascii_letters

import numpy as np

from kernels.problems.binary_operation import BinaryOp
from models.graph import Binary, Gemm, Identity, Product, Reshape, Shape, Transpose
from models.onnx_loader.importer import Importer, OnnxNode, RefusedError
from models.onnx_loader.integers import constant_of


@dataclass(frozen=True, slots=True)
class _Term:
    """A tensor's name, and one letter for each of its axes except the batch."""

    name: str
    letters: str


def einsum(to: Importer, node: OnnxNode) -> None:
    """Convert an Einsum with one or two operands to typed nodes.

    Raises RefusedError if this is impossible. The message quotes the equation.
    """
    equation = node.text("equation", "").replace(" ", "")
    try:
        _import(to, node, equation)
    except RefusedError as error:
        raise RefusedError(f"equation {equation}: {error}") from error


def _import(to: Importer, node: OnnxNode, equation: str) -> None:
    shapes = [node.input_shape(index) for index in range(len(node.node.inputs))]
    read, written = _terms(equation, [len(shape) for shape in shapes])
    sizes: dict[str, int] = {}
    for letters, shape in zip(read, shapes, strict=True):
        if len(set(letters)) < len(letters):
            raise RefusedError("an operand repeats a letter; diagonals are not supported")
        for letter, size in zip(letters, shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                raise RefusedError(
                    f"axis {letter} has size {sizes[letter]} in one operand and {size} in another;"
                    " the sizes must be equal"
                )
    if len(read) > 2:
        raise RefusedError(f"it has {len(read)} operands; at most two are supported")
    terms = [_operand(to, node, index, letters, written[:1]) for index, letters in enumerate(read)]
    to.declare(node.output)
    _Products(to, node, sizes).write(terms, written[1:])


def _terms(equation: str, ranks: list[int]) -> tuple[list[str], str]:
    """Return the letters of each operand and the letters of the output. An ellipsis is replaced by
    unused letters."""
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise RefusedError(f"it has {len(terms)} terms for {len(ranks)} operands")
    free = "".join(letter for letter in reversed(ascii_letters) if letter not in equation)
    more = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)]
    many = f"the operands have {ranks} axes; each must have as many axes as its term has letters"
    if any(count != 0 for count, term in zip(more, terms, strict=True) if "..." not in term):
        raise RefusedError(many)
    if min(more) < 0 or max(more) > len(free):
        raise RefusedError(many)
    most = free[: max(more)]
    read = [
        term.replace("...", most[len(most) - count :])
        for term, count in zip(terms, more, strict=True)
    ]
    if not arrow:
        once = sorted(letter for letter in set(left) - {",", "."} if left.count(letter) == 1)
        right = ("..." if "..." in left else "") + "".join(once)
    return read, right.replace("...", most)


def _operand(to: Importer, node: OnnxNode, index: int, letters: str, batch: str) -> _Term:
    """Return operand `index` without its batch axis, which must come first. A constant must not
    have a batch axis."""
    value = node.input(index)
    constant = constant_of(value)
    if constant is not None:
        if batch in letters:
            raise RefusedError(
                f"operand {index} is a constant with the batch axis, {batch}; only computed"
                " operands may have this axis"
            )
        return _Term(to.weight(f"{node.name}/{index}", constant), letters)
    if letters[:1] != batch:
        raise RefusedError(
            f"operand {index} has the axes {letters or '()'}; its first axis must be the batch,"
            f" {batch}, as in the output"
        )
    if batch in letters[1:]:
        raise RefusedError(f"operand {index} repeats the batch axis, {batch}; it must occur once")
    return _Term(str(value.name), letters[1:])


@dataclass
class _Products:
    """Adds the typed nodes of one Einsum. `sizes` maps each letter of the equation to the size of
    its axis."""

    to: Importer
    node: OnnxNode
    sizes: dict[str, int]

    def write(self, terms: list[_Term], y: str) -> None:
        """Add the nodes that compute the Einsum's output. `y` has the letters of its axes, without
        the batch."""
        for index, term in enumerate(terms):
            others = {letter for other in terms if other is not term for letter in other.letters}
            if alone := set(term.letters) - others - set(y):
                raise RefusedError(
                    f"it sums over {', '.join(sorted(alone))}, which only operand {index} has; a"
                    " summed axis must belong to both operands"
                )
        if len(terms) == 1:
            self.into_output(self.transposed(terms[0], y))
            return
        a, b = terms
        if a.name in self.to.weights or (b.name not in self.to.weights and y[-1:] in a.letters):
            a, b = b, a  # the constant comes last, and rows come before columns
        if set(a.letters) & set(b.letters) <= set(y):
            self.elements(a, b, y)
        else:
            self.product(a, b, y)

    def product(self, a: _Term, b: _Term, y: str) -> None:
        """Add nodes that compute a matrix product: a Gemm if one operand is constant, otherwise a
        Product."""
        both, rows, columns = (
            [letter for letter in y if (letter in a.letters, letter in b.letters) == where]
            for where in ((True, True), (True, False), (False, True))
        )
        summed = [letter for letter in a.letters if letter in b.letters and letter not in y]
        ahead, name = self.shape(both), self.node.name
        left = (*ahead, self.size(rows), self.size(summed))
        first = self.in_shape(self.transposed(a, [*both, *rows, *summed]), left)
        made = self.to.temporary(f"{name}/product", (*left[:-1], self.size(columns)))
        if b.name in self.to.weights and not both:
            filters = self.size(columns), self.size(summed)
            weight = self.in_shape(self.transposed(b, [*columns, *summed]), filters)
            self.to.nodes.append(Gemm(name=name, output=made, x=first, weight=weight))
        else:
            right = (*ahead, self.size(summed), self.size(columns))
            second = self.in_shape(self.transposed(b, [*both, *summed, *columns]), right)
            self.to.nodes.append(Product(name=name, output=made, a=first, b=second))
        apart = "".join((*both, *rows, *columns))
        shaped = self.in_shape(made, self.shape(apart))
        self.into_output(self.transposed(_Term(shaped, apart), y))

    def elements(self, a: _Term, b: _Term, y: str) -> None:
        """Add nodes that multiply a and b element by element. Each operand is broadcast along the
        axes that only the other operand has."""
        names = []
        for term in (a, b):
            order = [letter for letter in y if letter in term.letters]
            aligned = tuple(self.sizes[letter] if letter in order else 1 for letter in y)
            names.append(self.in_shape(self.transposed(term, order), aligned))
        output = str(self.node.output.name)
        self.to.nodes.append(
            Binary(name=self.node.name, output=output, a=names[0], b=names[1], op=BinaryOp.MUL)
        )

    def transposed(self, term: _Term, order: Iterable[str]) -> str:
        """Transpose a tensor so that its axes are in the given order. Return the name of the
        result."""
        axes = tuple(term.letters.index(letter) for letter in order)
        if term.name in self.to.weights:
            turned = self.to.weights[term.name].transpose(axes)
            return self.to.weight(f"{term.name}/turned", turned)
        shape = self.to.shape(term.name)
        name = self.to.temporary(f"{self.node.name}/turned", tuple(shape[axis] for axis in axes))
        self.to.nodes.append(Transpose(name=name, output=name, x=term.name, axes=axes))
        return name

    def in_shape(self, name: str, shape: Shape) -> str:
        """Reshape a tensor to the given shape. Return the name of the result."""
        if name in self.to.weights:
            return self.to.weight(f"{name}/shaped", np.reshape(self.to.weights[name], shape))
        made = self.to.temporary(f"{self.node.name}/shaped", shape)
        self.to.nodes.append(Reshape(name=made, output=made, x=name))
        return made

    def into_output(self, name: str) -> None:
        """Add an Identity from a tensor to the output of the Einsum."""
        output = str(self.node.output.name)
        self.to.nodes.append(Identity(name=f"{self.node.name}/output", output=output, x=name))

    def shape(self, letters: Iterable[str]) -> Shape:
        """Return the sizes of the axes with these letters."""
        return tuple(self.sizes[letter] for letter in letters)

    def size(self, letters: Iterable[str]) -> int:
        """Return the product of the sizes of the axes with these letters."""
        return prod(self.shape(letters))
