"""Finds the k likeliest classes of an image, and their probabilities, from the image's scores."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from models import (
    OutputKind,
    Results,
    Scores,
    TopClasses,
    each_probability,
    positive,
    probabilities_of,
)
from service.errors import EngineFailedError


class Prediction(TypedDict):
    """Holds one of an image's likeliest classes, with its label and probability."""

    index: Annotated[int, Field(ge=0, description="the class, counted from 0", examples=[3])]
    label: Annotated[
        str, Field(description="name of the class; its index if it has no name", examples=["3"])
    ]
    probability: Annotated[float, Field(ge=0, le=1, examples=[0.97])]


# The decimals of a probability: a float32 has no more, and answers should not differ in meaningless
# digits.
_DECIMALS = 6

# Up to this many classes, sorting all is faster than finding the k largest first.
_FEW = 100

# The largest absolute logit for which the sum of exponentials neither overflows a float64 nor
# vanishes.
_MOST_EXP = 600.0

# The classes ranked here for every image of a batch; few requests ask for more.
RANKED = 5

DEFAULT_THRESHOLD = 0.5
"""The default threshold of a multi-label model. Its answer has the labels with at least this
probability."""

NOT_DECODED = -1

_NO_SCORES = np.empty(0, np.float32)

# Indices of classes, likeliest first (for equal scores, the lower index first), and their
# probabilities.
Ranking = tuple[Sequence[int], Sequence[float]]


class _Batch:
    """Holds the scores of one batch. All images of the batch are ranked together, when the first
    ranking is needed."""

    def __init__(self, results: Results, output: OutputKind) -> None:
        self._scores, self._ranked, _, self.flags = results
        self._output = output

    @cached_property
    def rankings(self) -> Sequence[Ranking] | None:
        """Return the likeliest classes of each image, as ranked by the engine. If the engine ranks
        no classes, return the RANKED likeliest.

        Returns None if each image must be ranked alone: if the model has only one score per image,
        or if a score or its exponential is not finite.
        """
        scores, output = self._scores, self._output
        if self._ranked is not None and scores.shape[1] > 1 and output is not OutputKind.SHARES:
            return _read(self._ranked, output)
        return _rankings(scores, output)

    @cached_property
    def is_finite(self) -> bool:
        """Return whether every score is finite. This check takes less time than a ranking."""
        return bool(np.isfinite(self._scores).all())


@dataclass(eq=False, slots=True)
class ScoreRow:
    """Holds the scores of one image, one per class. If `batch` is given, `index` is the image's row
    in the scores of that batch."""

    scores: NDArray[np.float32]
    batch: _Batch | None = None
    index: int = 0
    error: Exception | None = None  # why the image was not scored: `scores` is empty then
    decode_s: float = 0.0  # of the seconds that its batch ran
    # This image's values of the requested tensors inside the network, by name.
    inner: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)

    @property
    def ranking(self) -> Ranking | None:
        """Return the likeliest classes, or None if the batch has no rankings."""
        rankings = None if self.batch is None else self.batch.rankings
        return None if rankings is None else rankings[self.index]

    @property
    def flags(self) -> int:
        """Return 0 if the engine decoded the image's file, and NOT_DECODED if the engine decodes no
        files. Any other value has the decoder's flags, which say why the CPU must decode the file.
        The scores are then meaningless."""
        flags = None if self.batch is None else self.batch.flags
        return NOT_DECODED if flags is None else int(flags[self.index])

    @property
    def is_known_finite(self) -> bool:
        """Return whether all scores of the batch are finite. If False, this row's scores may still
        be finite."""
        return self.batch is not None and self.batch.is_finite


def unscored(error: Exception) -> ScoreRow:
    """Return a row for an image that was not scored because of `error`. The row holds the error."""
    return ScoreRow(_NO_SCORES, error=error)


def rank(results: Results, output: OutputKind, decode_s: float = 0.0) -> list[ScoreRow]:
    """Return one row of scores per image of a batch.

    The images are ranked together, when the first ranking is needed, unless the engine has ranked
    them. This is several times as fast as ranking one image at a time.

    The event loop ranks them after the next batch has started. In the engine's thread, each NumPy
    call would release the GIL and take it again, which delays the event loop.
    """
    batch = _Batch(results, output)
    return [
        ScoreRow(row, batch, index, decode_s=decode_s) for index, row in enumerate(results.scores)
    ]


def most_of(rows: Sequence[ScoreRow], output: OutputKind, least: float) -> int:
    """Return an upper limit on the number of classes with a probability of at least `least`, summed
    over all images. `least` must be above 0."""
    least = max(least - 10.0**-_DECIMALS, 1e-9)  # as probabilities are rounded
    if not output.is_independent:  # their sum is 1, or little more by rounding
        return len(rows) * int(2 / least)
    least_score = {
        OutputKind.SIGMOID: math.log(least / (1 - least)),
        OutputKind.INDEPENDENT: least,
        OutputKind.INDEPENDENT_PERCENT: 100 * least,
        OutputKind.INDEPENDENT_LOG: math.log(least),
    }[output]
    return sum(int(np.count_nonzero(row.scores >= least_score)) + 1 for row in rows)


def top_k(
    row: ScoreRow, k: int, output: OutputKind, labels: Sequence[str], least: float = 0.0
) -> list[Prediction]:
    """Return the k likeliest classes, likeliest first. Classes with a probability below `least` are
    left out. Classes with equal scores are in order of their index.

    1 <= k <= classes. Probabilities are computed in float64. A class without a label is named by
    its index. Raises EngineFailedError if a score is NaN or infinite.
    """
    return named(likeliest(row, k, output, least), labels)


def likeliest(row: ScoreRow, k: int, output: OutputKind, least: float = 0.0) -> Ranking:
    """Return the indices and probabilities of the classes that `top_k` would return."""
    ranking = row.ranking
    if ranking is None or k > len(ranking[0]):
        ranking = _ranking(row.scores, k, output)
    indices, probabilities = ranking
    if least:
        k = min(k, sum(probability >= least for probability in probabilities))
    return indices[:k], probabilities[:k]


def named(ranking: Ranking, labels: Sequence[str]) -> list[Prediction]:
    """Return a ranking as predictions, with the labels of the classes."""
    known = len(labels)
    return [
        {
            "index": index,
            "label": labels[index] if index < known else str(index),
            "probability": probability,
        }
        for index, probability in zip(*ranking, strict=True)
    ]


def _rankings(scores: Scores, output: OutputKind) -> Sequence[Ranking] | None:
    """Return the rankings of a batch. Return None if the model has only one score per image, or if
    a score or its exponential is not finite."""
    n, classes = scores.shape
    if classes == 1:
        return None  # images of a yes/no model are ranked one by one: two classes take no time
    if n == 1 and output.by_softmax:
        alone = _softmax_of_one(scores[0])
        return None if alone is None else [alone]
    rows = scores.astype(np.float64)
    if not math.isfinite(np.add.reduce(rows, axis=None)):  # see `finite`
        return None
    begins = np.arange(0, n * classes, classes)
    found = np.empty((min(RANKED, classes), n), np.intp)
    # A few searches for the largest score are faster than a sort; argmax finds the first of equal
    # scores.
    rest = scores.copy()
    cells = rest.ravel()
    for best in found[:-1]:
        rest.argmax(axis=1, out=best)
        cells[begins + best] = -math.inf
    rest.argmax(axis=1, out=found[-1])
    probabilities = rows.ravel()[found + begins]
    if output.by_softmax:
        if max(map(abs, probabilities[0].tolist())) > _MOST_EXP:
            return None
        np.exp(rows, out=rows)
        np.exp(probabilities, out=probabilities)
        probabilities /= np.add.reduce(rows, axis=1)
    elif output is OutputKind.SHARES:
        probabilities /= positive(np.add.reduce(rows, axis=1))
    else:
        probabilities = each_probability(probabilities, output)
    return list(zip(found.T.tolist(), _rounded(probabilities).T.tolist(), strict=True))


def _softmax_of_one(scores: NDArray[np.float32]) -> Ranking | None:
    """Return the same ranking as `_rankings` for one image. Computing with Python floats instead of
    small arrays halves the time."""
    row = scores.astype(np.float64)
    if not math.isfinite(np.add.reduce(row)):  # see `finite`
        return None
    rest, found = scores.copy(), []
    for _ in range(min(RANKED, len(row))):
        best = int(rest.argmax())
        found.append(best)
        rest[best] = -math.inf
    if max(abs(float(row[best])) for best in found) > _MOST_EXP:
        return None
    np.exp(row, out=row)
    total, scale = float(np.add.reduce(row)), 10.0**_DECIMALS
    return found, [round(float(row[best]) / total * scale) / scale for best in found]


def _read(ranked: TopClasses, output: OutputKind) -> Sequence[Ranking] | None:
    """Convert the rankings that an engine has returned. Return None if a probability is not
    finite."""
    probabilities = ranked.probabilities.astype(np.float64)
    if not math.isfinite(np.add.reduce(probabilities, axis=None)):
        return None
    if not output.by_softmax:  # the engine leaves this step to the server
        probabilities = each_probability(probabilities, output)
    indices = ranked.indices.astype(np.intp)
    return list(zip(indices.tolist(), _rounded(probabilities).tolist(), strict=True))


def _ranking(scores: NDArray[np.float32], k: int, output: OutputKind) -> Ranking:
    """Return the ranking of one image. Raises EngineFailedError if a score is not finite."""
    row = finite(scores)
    every = probabilities(scores, output)
    first = largest(every if len(row) == 1 else row, k)
    return first.tolist(), _rounded(every[first]).tolist()


def probabilities(scores: NDArray[np.float32], output: OutputKind) -> NDArray[np.float64]:
    """Return every class's probability. Raises EngineFailedError if a score is not finite."""
    every: NDArray[np.float64] = probabilities_of(finite(scores)[np.newaxis], output)[0]
    return every


def _rounded(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the probabilities, rounded to `_DECIMALS` decimals."""
    scale = 10.0**_DECIMALS
    rounded: NDArray[np.float64] = np.rint(probabilities * scale) / scale
    return rounded


def finite(scores: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return one image's scores in float64. Raises EngineFailedError if one is NaN or infinite."""
    row = scores.astype(np.float64)
    # If a score is NaN or infinite, the sum is too. Finite float32 scores cannot overflow a
    # float64.
    if not math.isfinite(np.add.reduce(row)):
        raise EngineFailedError(
            "the model computed scores that are not finite numbers for this image; "
            "check the image, the model and its preprocessing"
        )
    return row


def largest(row: NDArray[np.float64], k: int) -> NDArray[np.intp]:
    """Return the indices of the k largest numbers, largest first. Equal numbers are in order of
    their index."""
    if len(row) <= _FEW or k == len(row):
        return np.argsort(-row, kind="stable")[:k]
    # A partition picks arbitrarily among equal numbers, so take all of these, and sort them.
    kth = len(row) - k
    candidates = np.flatnonzero(row >= np.partition(row, kth)[kth])
    return candidates[np.argsort(-row[candidates], kind="stable")[:k]]
