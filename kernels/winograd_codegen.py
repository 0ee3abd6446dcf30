"""Writes kernels/src/winograd_transforms.cuh: the transforms of F(m, r) as few instructions.

    matrix ── butterflies ── common pairs ── order ── C++
              even ± odd     shared sums     few values live at once

A transform is a matrix by a vector: rows of linear combinations. One of n terms costs n - 1
instructions, since a term's coefficient comes free with an fmaf and a sign with an addition, or n
where no coefficient is 1 or -1. Rows of the points a and -a are the sum and the difference of an
even and an odd combination; what then still occurs in several rows is computed once.

`python -m kernels.winograd_codegen` rewrites the header.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, count

import numpy as np

from kernels.device import SOURCE_ROOT
from kernels.winograd_matrices import Matrix, Points, winograd_matrices

HEADER = SOURCE_ROOT / "winograd_transforms.cuh"

GENERATED = (
    (2, 3, Points.INTEGER),
    (4, 3, Points.INTEGER),
    (4, 3, Points.MIXED),
    (2, 5, Points.INTEGER),
    (2, 5, Points.MIXED),
)
"""m, r and points of every specialisation."""

Terms = dict[str, Fraction]
"""A linear combination: values' names with their coefficients, none 0."""


@dataclass(frozen=True, slots=True)
class Program:
    """What computes each value, in an order in which it can be run.

    A name is an element of the input, `d[2]`, one of the output, `v[0]`, or a shared value, `t1`.
    """

    steps: tuple[tuple[str, Terms], ...]

    @property
    def instructions(self) -> int:
        """Additions, multiplications and fused multiply-adds."""
        return sum(_instructions(terms) for _, terms in self.steps)


def program(matrix: Matrix, source: str, target: str) -> Program:
    """target = matrix · source, the fewest instructions over all choices of even and odd rows."""
    rows = {
        f"{target}[{i}]": {f"{source}[{j}]": c for j, c in enumerate(row) if c}
        for i, row in enumerate(matrix)
    }
    candidates = (_with_common_pairs(_with_butterflies(rows, pairs)) for pairs in _pairings(rows))
    best = min(candidates, key=lambda steps: sum(map(_instructions, steps.values())))
    return _ordered(best)


def _instructions(terms: Terms) -> int:
    return len(terms) - any(abs(c) == 1 for c in terms.values())


def _pairings(rows: Mapping[str, Terms]) -> Iterator[tuple[tuple[str, str], ...]]:
    """Every set of disjoint pairs of rows that have a value in common and are not multiples."""
    pairs = [
        (a, b) for a, b in combinations(rows, 2) if rows[a].keys() == rows[b].keys() and rows[a]
    ]

    def extended(
        chosen: tuple[tuple[str, str], ...], start: int
    ) -> Iterator[tuple[tuple[str, str], ...]]:
        yield chosen
        for i in range(start, len(pairs)):
            if not {name for pair in chosen for name in pair} & set(pairs[i]):
                yield from extended((*chosen, pairs[i]), i + 1)

    return extended((), 0)


def _with_butterflies(
    rows: Mapping[str, Terms], pairs: tuple[tuple[str, str], ...]
) -> dict[str, Terms]:
    """a = even + odd and b = even - odd for each pair a, b."""
    steps = dict(rows)
    for a, b in pairs:
        steps[a], steps[b] = {}, {}
        for sign in (1, -1):
            terms = _half(rows[a], rows[b], sign)
            if not terms:
                continue
            # One coefficient must be 1, or the sum costs an instruction more.
            unit = 1 if any(abs(c) == 1 for c in terms.values()) else min(map(abs, terms.values()))
            shared = f"half {len(steps)}"
            steps[shared] = {name: c / unit for name, c in terms.items()}
            steps[a][shared] = Fraction(unit)
            steps[b][shared] = Fraction(sign * unit)
    return steps


def _half(a: Terms, b: Terms, sign: int) -> Terms:
    """(a ± b) / 2."""
    halves = {name: (a[name] + sign * b[name]) / 2 for name in a}
    return {name: half for name, half in halves.items() if half}


def _with_common_pairs(steps: Mapping[str, Terms]) -> dict[str, Terms]:
    """The same values with every a + c·b (or a multiple) that occurs twice computed once."""
    rows = {name: dict(terms) for name, terms in steps.items()}
    for number in count():
        rows = _without_copies(rows)
        counts = Counter(pair for terms in rows.values() for pair in _pairs(terms))
        # The most frequent; among equals plain sums and differences, then the first met.
        best = max(counts, key=lambda pair: (counts[pair], abs(pair[2]) == 1), default=None)
        if best is None or counts[best] < 2:
            break
        a, b, c = best
        shared = f"pair {number}"
        users = [terms for terms in rows.values() if best in _pairs(terms)]
        sign = 1 if users[0][a] > 0 else -1
        for terms in users:
            terms[shared] = sign * terms.pop(a)
            del terms[b]
        rows[shared] = {a: Fraction(sign), b: sign * c}
    return rows


def _pairs(terms: Terms) -> list[tuple[str, str, Fraction]]:
    """(a, b, c) for every two terms that are a multiple of a + c·b, c exact in binary."""
    found = []
    for b, a in combinations(sorted(terms), 2):
        c = terms[b] / terms[a]
        if _is_binary(c):
            found.append((a, b, c))
        elif _is_binary(1 / c):
            found.append((b, a, 1 / c))
    return found


def _is_binary(c: Fraction) -> bool:
    return c.denominator & (c.denominator - 1) == 0


def _without_copies(rows: Mapping[str, Terms]) -> dict[str, Terms]:
    """The same without values that are but another one, times a number: those replaced by it."""
    kept = dict(rows)
    while copies := [name for name, terms in kept.items() if _is_shared(name) and len(terms) == 1]:
        ((source, factor),) = kept.pop(copies[0]).items()
        for terms in kept.values():
            if copies[0] in terms:
                c = terms.pop(copies[0]) * factor + terms.get(source, 0)
                terms.update({source: c})
    return kept


def _is_shared(name: str) -> bool:
    return "[" not in name


def _ordered(rows: Mapping[str, Terms]) -> Program:
    """Each step as soon as its operands are there, first those that are the last to use most."""
    left = {name: dict(terms) for name, terms in rows.items()}
    names: dict[str, str] = {}
    steps = []
    while left:
        uses = Counter(operand for terms in left.values() for operand in terms)
        ready = [name for name, terms in left.items() if not terms.keys() & left.keys()]
        following = max(ready, key=lambda name: sum(uses[each] == 1 for each in left[name]))
        terms = left.pop(following)
        number = sum(map(_is_shared, names))
        names[following] = f"t{number}" if _is_shared(following) else following
        steps.append((names[following], {names.get(each, each): c for each, c in terms.items()}))
    return Program(tuple(steps))


def header() -> str:
    """The text of winograd_transforms.cuh."""
    return _PREAMBLE + "".join(_specialisation(m, r, points) for m, r, points in GENERATED)


_PREAMBLE = """\
// Generated by `python -m kernels.winograd_codegen`; do not edit.
//
// The transforms of Winograd's F(m, r) by the matrices of kernels/winograd_matrices.py, along one
// axis: m outputs of a filter of r taps from a tile of ALPHA = m + r - 1 inputs (Lavin & Gray,
// equation 6). A kernel nests them along 2 or 3 axes. An fmaf counts as one instruction.
#pragma once

// kernels/winograd_matrices.py, Points.
enum class Points { INTEGER, MIXED };

template <int M, int R, Points POINTS>
struct Winograd;
"""

_FUNCTION = "static __device__ __forceinline__ void"


def _specialisation(m: int, r: int, points: Points) -> str:
    matrices = winograd_matrices(m, r, points)
    alpha = matrices.alpha
    data = program(matrices.bt, "d", "v")
    inverse = program(matrices.at, "m", "y")
    finite = ", ".join(map(str, matrices.points))
    return f"""
// F({m},{r}) at the points {finite} and infinity.
template <>
struct Winograd<{m}, {r}, Points::{points.name}> {{
  static constexpr int ALPHA = {alpha};

  // v = B^T d: {data.instructions} instructions.
  {_FUNCTION} data(const float (&d)[{alpha}], float (&v)[{alpha}]) {{
{_body(data)}
  }}

  // y = A^T m: {inverse.instructions} instructions.
  {_FUNCTION} inverse(const float (&m)[{alpha}], float (&y)[{m}]) {{
{_body(inverse)}
  }}
}};
"""


def _body(transform: Program) -> str:
    return "\n".join(
        f"    {'const float ' if _is_shared(name) else ''}{name} = {_expression(terms)};"
        for name, terms in transform.steps
    )


def _expression(terms: Terms) -> str:
    """The sum in C++: terms that need no multiplication first, each other one by an fmaf."""
    if not terms:
        return "0.0f"
    plain = sorted(
        (name for name, c in terms.items() if abs(c) == 1), key=lambda name: (terms[name] < 0, name)
    )
    scaled = [name for name in terms if name not in plain]
    text = "".join(f" {'-' if terms[name] < 0 else '+'} {name}" for name in plain)
    text = text[3:] if text.startswith(" +") else text[1:].replace(" ", "", 1)
    for name in scaled:
        c = _literal(terms[name])
        text = f"fmaf({c}, {name}, {text})" if text else f"{c} * {name}"
    return text


def _literal(c: Fraction) -> str:
    """As a `float`; raises ValueError where that is not exact."""
    if Fraction(float(np.float32(float(c)))) != c:
        raise ValueError(f"{c} is no float: choose points whose products are binary fractions")
    return f"{float(c)}f"


if __name__ == "__main__":
    HEADER.write_text(header())
