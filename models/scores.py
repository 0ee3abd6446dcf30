"""Defines the kinds of a model's scores, and converts scores of each kind to probabilities.

    output                     a score s as a probability     classes exclude each other
    logits, or softmax         softmax                        yes
    probabilities              s                              yes
    log-probabilities          e^s, made to add up to 1       yes
    percent                    s / 100                        yes
    shares                     s / the sum of all s           yes
    sigmoid                    1 / (1 + e^-s)                 no: an image may have several labels
    independent-probabilities  s                              no
    independent-percent        s / 100                        no
    independent-log-probabilities  e^s                        no

A model with one score answers a yes/no question. Its classes are "no", with the probability 1 - p,
and "yes", with the probability p. A sigmoid converts its logit to p, for both `logits` and
`sigmoid`.
"""

from dataclasses import dataclass
from enum import Enum, unique

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_PERCENT = 100.0
_LOG_OF_YES = "the logarithm of the probability of yes"


# Properties of a kind: a softmax converts the scores to probabilities; an image may have several
# labels or none; scores are numbers of any size and not a form of probability.
_BY_SOFTMAX, _INDEPENDENT, _UNBOUNDED = "by softmax", "independent", "unbounded"


@unique
class OutputKind(Enum):
    """Names the kinds of a model's scores, as in the key `output` of model.toml. Each kind has a
    name, a description and properties."""

    _value_: str

    LOGITS = (
        "logits",
        "logits, which a softmax converts to probabilities",
        _BY_SOFTMAX,
        _UNBOUNDED,
    )
    PROBABILITIES = "probabilities", "probabilities that add up to 1"
    LOG_PROBABILITIES = (
        "log-probabilities",
        "logarithms of probabilities that add up to 1",
        _BY_SOFTMAX,
    )
    PERCENT = "percent", "probabilities in percent that add up to 100"
    SHARES = "shares", "shares, which are divided by their sum"
    SIGMOID = (
        "sigmoid",
        "independent logits (multi-label), which a sigmoid converts to probabilities",
        _INDEPENDENT,
        _UNBOUNDED,
    )
    INDEPENDENT = (
        "independent-probabilities",
        "independent probabilities (multi-label)",
        _INDEPENDENT,
    )
    INDEPENDENT_PERCENT = (
        "independent-percent",
        "independent probabilities in percent (multi-label)",
        _INDEPENDENT,
    )
    INDEPENDENT_LOG = (
        "independent-log-probabilities",
        "logarithms of independent probabilities (multi-label)",
        _INDEPENDENT,
    )

    meaning: str
    by_softmax: bool
    is_independent: bool
    is_unbounded: bool

    def __new__(cls, name: str, meaning: str, *traits: str) -> "OutputKind":
        """Return a kind with the given name, description and properties."""
        member = object.__new__(cls)
        member._value_, member.meaning = name, meaning
        member.by_softmax = _BY_SOFTMAX in traits
        member.is_independent = _INDEPENDENT in traits
        member.is_unbounded = _UNBOUNDED in traits
        return member

    @classmethod
    def _missing_(cls, value: object) -> "OutputKind | None":
        return cls.LOGITS if value == "softmax" else None  # "softmax" names the conversion


@dataclass(frozen=True, slots=True)
class Meaning:
    """Holds the facts about a model's scores that follow from its graph."""

    kind: OutputKind | None  # None: the graph does not show the kind
    reason: str  # a phrase
    refusal: str = ""  # the reason why the numbers are not scores
    around_0: bool = False  # each has a symmetric range around 0, as after a Tanh


UNSHOWN = Meaning(None, "its graph was not examined")


def set_key(name: str | None) -> str:
    """Return a phrase for users that says how to select the output `name` as the scores."""
    return f'set scores = "{name}" in model.toml, or --set scores={name}'


def classes_of(scores: int) -> int:
    """Return the number of classes of a model with this number of scores."""
    return max(2, scores)


def meaning_of(kind: OutputKind, scores: int) -> str:
    """Return a phrase that describes an image's scores and how they relate to probabilities."""
    if scores > 1:
        return kind.meaning
    if kind.is_unbounded:
        return "one logit, which a sigmoid converts to the probability of yes"
    forms = {
        OutputKind.LOG_PROBABILITIES: _LOG_OF_YES,
        OutputKind.INDEPENDENT_LOG: _LOG_OF_YES,
        OutputKind.PERCENT: "the probability of yes in percent",
        OutputKind.INDEPENDENT_PERCENT: "the probability of yes in percent",
    }
    return f"one score, {forms.get(kind, 'the probability of yes')}"


def each_probability(values: Floats, kind: OutputKind) -> Floats:
    """Convert each score to a probability, independently of the image's other scores.

    The scores may have any shape. A softmax, which needs all scores of an image, is not supported.
    """
    if kind is OutputKind.SIGMOID:
        return sigmoid(values)
    if kind in (OutputKind.PERCENT, OutputKind.INDEPENDENT_PERCENT):
        return values / _PERCENT
    if kind in (OutputKind.LOG_PROBABILITIES, OutputKind.INDEPENDENT_LOG):
        return np.exp(np.minimum(values, 0))
    return values


def positive(sums: Floats) -> Floats:
    """Return a copy of the sums for use as divisors. Sums that are not positive are replaced by
    1."""
    return np.where(sums > 0, sums, 1)


def sigmoid(values: Floats) -> Floats:
    """Return 1 / (1 + e^-x) without overflow for any x."""
    powers = np.exp(-np.abs(values))
    smaller: Floats = powers / (1 + powers)
    return np.where(values < 0, smaller, 1 / (1 + powers))


def probabilities_of(scores: Floats, kind: OutputKind) -> Floats:
    """Return the probabilities of scores.

    `scores` is N×1 or N×classes, and the result is N×`classes_of(scores.shape[1])`.
    """
    if scores.shape[1] == 1:
        return _of_one(scores, kind)
    if kind.by_softmax:
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        softmax: Floats = powers / powers.sum(axis=1, keepdims=True)
        return softmax
    if kind is OutputKind.SHARES:
        return scores / positive(scores.sum(axis=1, keepdims=True))
    return each_probability(scores, kind)


def _of_one(scores: Floats, kind: OutputKind) -> Floats:
    if kind.is_unbounded:
        return np.concatenate([sigmoid(-scores), sigmoid(scores)], axis=1)
    yes = each_probability(scores, kind)
    return np.concatenate([1 - yes, yes], axis=1)


# The allowed difference from 1 of the sums of float32 and float16 probabilities.
_NEAR = 5e-3


def shown_by(scores: Floats) -> OutputKind | None:
    """Return the kind of scores that the values show, such as probabilities, or None if several
    kinds are possible. `scores` is N×classes."""
    low, high, count = float(scores.min()), float(scores.max()), scores.shape[1]
    if count > 1 and low >= -_NEAR and _all_near(scores.sum(axis=1), 1):
        return OutputKind.PROBABILITIES
    if count > 1 and low >= -_NEAR and _all_near(scores.sum(axis=1) / _PERCENT, 1):
        return OutputKind.PERCENT
    if count > 1 and high <= _NEAR and _all_near(np.exp(scores).sum(axis=1), 1):
        return OutputKind.LOG_PROBABILITIES
    if low >= 0 and high <= 1:
        return OutputKind.PROBABILITIES if count == 1 else OutputKind.INDEPENDENT
    # Numbers within -1 to 1 may also be the results of a Tanh or a cosine.
    is_wide = low < 0 and max(-low, high) > 1
    return OutputKind.LOGITS if is_wide and (high > 0 or count > 1) else None


def contradiction(kind: OutputKind, scores: Floats) -> str:
    """Return the reason why the scores of some images cannot be of this kind, or "" if they can.

    `scores` is N×classes.
    """
    if scores.shape[1] > 1 and kind.is_unbounded and shown_by(scores) in _ADD_UP:
        return "the scores of each image are never negative and add up to 1 or 100"
    if kind.is_unbounded or kind is OutputKind.SHARES:
        return ""
    if kind in (OutputKind.LOG_PROBABILITIES, OutputKind.INDEPENDENT_LOG):
        return f"one score is {scores.max():.4g}, above 0" if scores.max() > _NEAR else ""
    values = each_probability(scores, kind)
    wrong = scores[(values < -_NEAR) | (values > 1 + _NEAR)]
    return f"one score is {wrong[0]:.4g}, which gives no probability" if wrong.size else ""


_ADD_UP = (OutputKind.PROBABILITIES, OutputKind.PERCENT)


def _all_near(sums: Floats, right: float) -> bool:
    return bool((np.abs(sums - right) < _NEAR).all())
