"""Scores to labels: the k likeliest classes of one image, with their probabilities."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models import OutputKind, Scores
from service.errors import EngineFailedError
from service.schemas import Prediction

# A float32 carries no more, and answers should not differ in digits that mean nothing.
_DECIMALS = 6

# Up to here sorting all classes is faster than finding the k largest first.
_FEW = 100

# So many classes are ranked of every image as its batch ends; few ask for more.
RANKED = 5


class Ranking(NamedTuple):
    """The likeliest classes of one image, likeliest first; of equals, the lower index first."""

    indices: Sequence[int]
    probabilities: Sequence[float]


@dataclass(slots=True)
class ScoreRow:
    """One image's scores, one a class."""

    scores: NDArray[np.float32]
    ranking: Ranking | None  # of RANKED classes; None: not made, or some score is not finite


def rank(scores: Scores, output: OutputKind) -> list[ScoreRow]:
    """A batch's rows, ranked all at once.

    For the engine's thread: NumPy lets other threads run in each of its calls, and an event loop
    that makes many of them spends its time waiting for its turn again.
    """
    rows = scores.astype(np.float64)
    sums = np.add.reduce(rows, axis=1)  # see `finite`
    rows[~np.isfinite(sums)] = 0  # not ranked, and not warned about
    first = _largest(rows, min(RANKED, rows.shape[1]))
    chosen = np.take_along_axis(rows, first, axis=1)
    if output is OutputKind.LOGITS:
        rows -= chosen[:, :1]
        chosen -= chosen[:, :1]
        chosen = np.exp(chosen) / np.add.reduce(np.exp(rows, out=rows), axis=1, keepdims=True)
    # Whole numbers over a power of ten, so the nearest there are, as Python's own would be.
    chosen = np.round(chosen, _DECIMALS)
    return [
        ScoreRow(row, Ranking(indices, probabilities) if math.isfinite(total) else None)
        for row, indices, probabilities, total in zip(
            scores, first.tolist(), chosen.tolist(), sums.tolist(), strict=True
        )
    ]


def top_k(row: ScoreRow, k: int, output: OutputKind, labels: Sequence[str]) -> list[Prediction]:
    """The k likeliest of one image's classes, likeliest first; of equals, the lower index first.

    1 <= k <= classes. Logits become probabilities by softmax, in float64, the largest subtracted
    first. A class without a label is named by its index. EngineFailedError where a score is NaN or
    infinite.
    """
    ranking = row.ranking
    if ranking is None or k > len(ranking.indices):
        ranking = _ranking(row.scores, k, output)
    return [
        {
            "index": index,
            "label": labels[index] if index < len(labels) else str(index),
            "probability": probability,
        }
        for index, probability in zip(ranking.indices[:k], ranking.probabilities, strict=False)
    ]


def _ranking(scores: NDArray[np.float32], k: int, output: OutputKind) -> Ranking:
    row = finite(scores)
    first = largest(row, k)
    if output is OutputKind.LOGITS:
        weights = np.exp(row - row[first[0]])
        chosen = weights[first] / np.add.reduce(weights)
    else:
        chosen = row[first]
    return Ranking(first.tolist(), np.round(chosen, _DECIMALS).tolist())


def finite(scores: NDArray[np.float32]) -> NDArray[np.float64]:
    """One image's scores in float64; EngineFailedError where one is NaN or infinite."""
    row = scores.astype(np.float64)
    # One NaN or infinity anywhere makes the sum one; finite float32 cannot overflow a float64.
    if not math.isfinite(np.add.reduce(row)):
        raise EngineFailedError(
            "the model gave scores that are not finite numbers for this image; "
            "check the image, the model and its preprocessing"
        )
    return row


def largest(row: NDArray[np.float64], k: int) -> NDArray[np.intp]:
    """Indices of the k largest, largest first; of equals, the lower index first."""
    if len(row) <= _FEW or k == len(row):
        return np.argsort(-row, kind="stable")[:k]
    # Which of several equals a partition picks is arbitrary: take them all, and sort those few.
    kth = len(row) - k
    candidates = np.flatnonzero(row >= np.partition(row, kth)[kth])
    return candidates[np.argsort(-row[candidates], kind="stable")[:k]]


def _largest(rows: NDArray[np.float64], k: int) -> NDArray[np.intp]:
    """For each row the indices of its k largest, as above; looking for the largest k times."""
    rest = rows.copy()
    places = np.arange(len(rows))
    found = np.empty((len(rows), k), np.intp)
    for column in range(k):
        found[:, column] = index = rest.argmax(axis=1)  # the first of equals
        rest[places, index] = -math.inf
    return found
