"""Compiles a matrix-vector product into few instructions, for Winograd's transforms.

    matrix ── butterflies ── common pairs ── order ── Program
              even ± odd     shared sums     few values live at once

Every value is a linear combination of other values. A combination of n terms costs n - 1
instructions, because an fmaf multiplies by a coefficient and adds in one instruction. If no
coefficient is 1 or -1, the combination costs n instructions. The rows of the points a and -a are
the sum and the difference of an even and an odd combination. Sums that several values contain are
computed only once.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum, unique
from fractions import Fraction
from functools import cache
from itertools import combinations, count, permutations
from typing import NamedTuple

from kernels.winograd.matrices import Matrix


@unique
class Kind(IntEnum):
    """Names the role of a value: an input, an output, or a value that other values share."""

    INPUT = 0
    SHARED = 1
    OUTPUT = 2


class Value(NamedTuple):
    """Identifies a number in a program: an input, an output, or a shared value, from which several
    other values are computed."""

    kind: Kind
    number: int


Terms = dict[Value, Fraction]
"""A linear combination: the coefficient of each value, never 0."""

Steps = dict[Value, Terms]
"""The linear combination that computes each value."""

Pair = tuple[Value, Value, Fraction]
"""The values and the factor of a + c·b."""


@dataclass(frozen=True, slots=True)
class Program:
    """Lists the steps that multiply a matrix by a vector, in an order in which they can run. The
    matrix has `rows` rows and `columns` columns."""

    rows: int
    columns: int
    steps: Steps

    @property
    def instructions(self) -> int:
        """Return the number of additions, multiplications and fused multiply-adds in all steps."""
        return sum(map(instructions, self.steps.values()))

    @property
    def depth(self) -> int:
        """Return the largest number of roundings between an input and an output."""
        depths: Counter[Value] = Counter()
        for value, terms in self.steps.items():
            depths[value] = instructions(terms) + max((depths[term] for term in terms), default=0)
        return max(depths.values())


def instructions(terms: Terms) -> int:
    """Return how many instructions compute a linear combination."""
    return len(terms) - any(abs(c) == 1 for c in terms.values())


@cache
def program(matrix: Matrix) -> Program:
    """Return the steps that multiply a matrix by a vector.

    Two rows can be computed as the sum and the difference of two shared values. All sets of such
    pairs are tried, and the set with the fewest instructions is used.
    """
    steps = {
        Value(Kind.OUTPUT, i): {Value(Kind.INPUT, j): c for j, c in enumerate(row) if c}
        for i, row in enumerate(matrix)
    }
    candidates = (_with_common_pairs(_with_butterflies(steps, pairs)) for pairs in _pairings(steps))
    best = min(candidates, key=lambda candidate: sum(map(instructions, candidate.values())))
    return Program(len(matrix), len(matrix[0]), _ordered(best))


def _pairings(steps: Steps) -> Iterator[list[tuple[Value, Value]]]:
    """Yield every set of pairs (a, b) for which (a + b) / 2 and (a - b) / 2 have fewer terms than a
    and b. The pairs of a set are disjoint."""
    pairs = [
        (a, b)
        for a, b in combinations(steps, 2)
        if steps[a].keys() == steps[b].keys()
        and sum(len(_half(steps[a], steps[b], sign)) for sign in (1, -1)) < 2 * len(steps[a])
    ]

    def extended(
        chosen: list[tuple[Value, Value]], start: int
    ) -> Iterator[list[tuple[Value, Value]]]:
        yield chosen
        taken = {value for pair in chosen for value in pair}
        for i in range(start, len(pairs)):
            if taken.isdisjoint(pairs[i]):
                yield from extended([*chosen, pairs[i]], i + 1)

    return extended([], 0)


def _half(a: Terms, b: Terms, sign: int) -> Terms:
    """Return the linear combination (a + sign · b) / 2. a and b must be combinations of the same
    values."""
    halves = {value: (a[value] + sign * b[value]) / 2 for value in a}
    return {value: half for value, half in halves.items() if half}


def _with_butterflies(steps: Steps, pairs: list[tuple[Value, Value]]) -> Steps:
    """Return steps that compute each pair (a, b) from two shared values: a = even + odd and
    b = even - odd."""
    result = dict(steps)
    for a, b in pairs:
        result[a], result[b] = {}, {}
        for sign in (1, -1):
            terms = _half(steps[a], steps[b], sign)
            unit, half = _unit(terms), _fresh(result)
            result[half] = {value: c / unit for value, c in terms.items()}
            result[a][half] = unit
            result[b][half] = sign * unit
    return result


def _unit(terms: Terms) -> Fraction:
    """Return the number by which to divide all coefficients so that one of them becomes 1. A
    coefficient of 1 saves a multiplication."""
    sizes = sorted(map(abs, terms.values()))
    exact = (unit for unit in sizes if all(_is_binary(size / unit) for size in sizes))
    return next(exact, Fraction(1))


def _with_common_pairs(steps: Steps) -> Steps:
    """Return new steps that compute common terms only once. If several values contain the same sum
    a + c·b, a new shared value computes this sum.

    A value that contains a multiple of the sum uses the shared value too.
    """
    result = {value: dict(terms) for value, terms in steps.items()}
    while True:
        result = _without_copies(result)
        counts = Counter(pair for terms in result.values() for pair in _pairs(terms))
        # The most frequent; among equals plain sums and differences, then the first found.
        best = max(counts, key=lambda pair: (counts[pair], abs(pair[2]) == 1), default=None)
        if best is None or counts[best] < 2:
            return result
        a, b, c = best
        users = [terms for terms in result.values() if best in _pairs(terms)]
        sign = 1 if users[0][a] > 0 else -1
        shared = _fresh(result)
        for terms in users:
            terms[shared] = sign * terms.pop(a)
            del terms[b]
        result[shared] = {a: Fraction(sign), b: sign * c}


def _fresh(steps: Steps) -> Value:
    return next(each for i in count() if (each := Value(Kind.SHARED, i)) not in steps)


def _pairs(terms: Terms) -> list[Pair]:
    """For every two terms of a linear combination, return (a, b, c) so that the two terms are a
    multiple of a + c·b. If c cannot be represented exactly in binary, leave out the two terms.

    If possible, a is the term with the smaller coefficient, so that |c| is at least 1.
    """
    found = []
    for pair in combinations(sorted(terms, reverse=True), 2):
        for a, b in sorted(permutations(pair), key=lambda permutation: abs(terms[permutation[0]])):
            if _is_binary(terms[b] / terms[a]):
                found.append((a, b, terms[b] / terms[a]))
                break
    return found


def _is_binary(c: Fraction) -> bool:
    return c.denominator & (c.denominator - 1) == 0


def _without_copies(steps: Steps) -> Steps:
    """Substitute every shared value that is 0 or a multiple of only one other value. Return the
    remaining steps."""
    result = dict(steps)
    while True:
        copies = [v for v, terms in result.items() if v.kind is Kind.SHARED and len(terms) < 2]
        if not copies:
            return result
        inner = result.pop(copies[0])
        for value, terms in result.items():
            if copies[0] in terms:
                c = terms[copies[0]]
                rest = {each: d for each, d in terms.items() if each != copies[0]}
                result[value] = rest | {
                    each: rest.get(each, 0) + c * d for each, d in inner.items()
                }


def _ordered(steps: Steps) -> Steps:
    """Return the steps in an order in which each step follows the steps of its operands.

    If several steps can come next, choose the step that uses the most operands for the last time.
    Shared values are renumbered in this order.
    """
    left, numbers, result = dict(steps), count(), {}
    names: dict[Value, Value] = {}
    while left:
        uses = Counter(operand for terms in left.values() for operand in terms)
        ready = [value for value, terms in left.items() if terms.keys().isdisjoint(left)]
        following = max(ready, key=lambda value: sum(uses[operand] == 1 for operand in left[value]))
        names[following] = (
            Value(Kind.SHARED, next(numbers)) if following.kind is Kind.SHARED else following
        )
        terms = left.pop(following)
        result[names[following]] = {names.get(each, each): c for each, c in terms.items()}
    return result
