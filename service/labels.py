"""Scores to labels: the k likeliest classes of one image, with their probabilities."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from models import OutputKind
from service.errors import EngineFailedError
from service.schemas import Prediction

# A float32 carries no more, and answers should not differ in digits that mean nothing.
_DECIMALS = 6

# Up to here sorting all classes is faster than finding the k largest first.
_FEW = 100


def top_k(
    scores: NDArray[np.float32], k: int, output: OutputKind, labels: Sequence[str]
) -> list[Prediction]:
    """The k likeliest of one image's classes, likeliest first; of equals, the lower index first.

    `scores` is one row, 1 <= k <= its length. Logits become probabilities by softmax, in float64,
    the largest subtracted first. A class without a label is named by its index.
    EngineFailedError where a score is NaN or infinite.
    """
    row = finite(scores)
    first = largest(row, k)
    if output is OutputKind.LOGITS:
        weights = np.exp(row - row[first[0]])
        chosen = weights[first] / np.add.reduce(weights)
    else:
        chosen = row[first]
    return [
        Prediction(
            index=index,
            label=labels[index] if index < len(labels) else str(index),
            probability=round(probability, _DECIMALS),
        )
        for index, probability in zip(first.tolist(), chosen.tolist(), strict=True)
    ]


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
