"""Scores to labels: the k likeliest classes of one image, with their probabilities."""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from models import OutputKind, Scores
from service.errors import EngineFailedError


class Prediction(TypedDict):
    """One class that the picture may show."""

    index: Annotated[int, Field(ge=0, description="the class, counted from 0", examples=[3])]
    label: Annotated[str, Field(description="its name; the index if it has none", examples=["3"])]
    probability: Annotated[float, Field(ge=0, le=1, examples=[0.97])]


# A float32 carries no more, and answers should not differ in digits that mean nothing.
_DECIMALS = 6

# Up to here sorting all classes is faster than finding the k largest first.
_FEW = 100

# Of logits within this, no sum of exponentials overflows a float64, nor does the largest vanish.
_MOST_EXP = 600.0

# So many classes are ranked of every image as its batch ends; few ask for more.
RANKED = 5


# The likeliest classes of one image, likeliest first (of equals, the lower index first), and how
# likely they are.
Ranking = tuple[Sequence[int], Sequence[float]]


class ScoreRow:
    """One image's scores, one a class."""

    __slots__ = ("_batch", "_place", "scores")

    def __init__(
        self, scores: NDArray[np.float32], batch: "_Batch | None" = None, place: int = 0
    ) -> None:
        """In its place in a `batch`, if in one."""
        self.scores = scores
        self._batch = batch
        self._place = place

    @property
    def ranking(self) -> Ranking | None:
        """Of the RANKED likeliest classes; None: not made, as in a batch with unusual scores."""
        batch = self._batch
        if batch is None:
            return None
        rankings = batch.rankings
        return None if rankings is None else rankings[self._place]


def rank(scores: Scores, output: OutputKind) -> list[ScoreRow]:
    """A batch's rows, which are ranked all at once when one of them is asked for its ranking.

    That is several times as fast as one by one. It is left to whoever reads the answers, since the
    next batch should be on its way first; and not to the engine's thread, since NumPy lets other
    threads run in each call on many numbers, and an event loop that competes with such calls
    spends its time waiting for its turn.
    """
    batch = _Batch(scores, output)
    return [ScoreRow(row, batch, place) for place, row in enumerate(scores)]


class _Batch:
    """The scores of images that ran together."""

    def __init__(self, scores: Scores, output: OutputKind) -> None:
        self._scores = scores
        self._output = output

    @cached_property
    def rankings(self) -> Sequence[Ranking] | None:
        """One an image; None where that has to be done one by one."""
        return _rankings(self._scores, self._output)


def top_k(row: ScoreRow, k: int, output: OutputKind, labels: Sequence[str]) -> list[Prediction]:
    """The k likeliest of one image's classes, likeliest first; of equals, the lower index first.

    1 <= k <= classes. Logits become probabilities by softmax, in float64, the largest subtracted
    first. A class without a label is named by its index. EngineFailedError where a score is NaN or
    infinite.
    """
    ranking = row.ranking
    if ranking is None or k > len(ranking[0]):
        ranking = _ranking(row.scores, k, output)
    indices, probabilities = ranking
    named = len(labels)
    return [
        {
            "index": index,
            "label": labels[index] if index < named else str(index),
            "probability": probability,
        }
        for index, probability in zip(indices[:k], probabilities, strict=False)
    ]


def _rankings(scores: Scores, output: OutputKind) -> Sequence[Ranking] | None:
    """Of a batch; None where not all scores are finite, or some overflow once exponentiated."""
    n, classes = scores.shape
    rows = scores.astype(np.float64)
    if not math.isfinite(np.add.reduce(rows, axis=None)):  # see `finite`
        return None
    begins = np.arange(0, n * classes, classes)
    found = np.empty((min(RANKED, classes), n), np.intp)
    # Looking for the largest a few times is faster than sorting; of equals it finds the first.
    rest = scores.copy()
    cells = rest.ravel()
    for place in found[:-1]:
        rest.argmax(axis=1, out=place)
        cells[begins + place] = -math.inf
    rest.argmax(axis=1, out=found[-1])
    probabilities = rows.ravel()[found + begins]
    if output is OutputKind.LOGITS:
        if max(map(abs, probabilities[0].tolist())) > _MOST_EXP:
            return None
        np.exp(rows, out=rows)
        np.exp(probabilities, out=probabilities)
        probabilities /= np.add.reduce(rows, axis=1)
    return list(zip(found.T.tolist(), _rounded(probabilities).T.tolist(), strict=True))


def _rounded(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Whole numbers over a power of ten: the nearest there are, as Python's own rounding gives."""
    scale = 10.0**_DECIMALS
    rounded: NDArray[np.float64] = np.rint(probabilities * scale) / scale
    return rounded


def _ranking(scores: NDArray[np.float32], k: int, output: OutputKind) -> Ranking:
    row = finite(scores)
    first = largest(row, k)
    if output is OutputKind.LOGITS:
        weights = np.exp(row - row[first[0]])
        chosen = weights[first] / np.add.reduce(weights)
    else:
        chosen = row[first]
    return first.tolist(), _rounded(chosen).tolist()


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
