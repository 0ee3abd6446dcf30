"""The ranking of scores, and their labels."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from models import OutputKind, Results, TopClasses
from service.engine import ranking as labels
from service.engine.ranking import Prediction, rank
from service.errors import EngineFailedError
from tests.support.kernels import reference

# Few values, so that there are ties. Up to 100 classes are sorted outright, and more are not.
VALUES = st.sampled_from([-3.0, -1.0, 0.0, 0.5, 2.0])
ROWS = st.lists(VALUES, min_size=2, max_size=12) | st.lists(VALUES, min_size=101, max_size=140)


def top_k(
    scores: NDArray[np.float32], k: int, output: OutputKind, names: Sequence[str]
) -> list[Prediction]:
    """Return the ranking of scores. Check that the row of a batch of one, a row of a larger batch,
    and a row without a batch have the same ranking."""
    (alone,) = rank(Results(scores[np.newaxis]), output)
    batch = rank(Results(np.stack([scores[::-1], scores, np.zeros_like(scores)])), output)
    predictions = labels.top_k(alone, k, output, names)
    assert predictions == labels.top_k(batch[1], k, output, names)
    assert predictions == labels.top_k(labels.ScoreRow(scores, None), k, output, names)
    return predictions


def row(*scores: float) -> NDArray[np.float32]:
    return np.array(scores, np.float32)


@given(ROWS, st.data())
def test_the_k_largest_come_largest_first_and_equals_by_index(
    scores: list[float], data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(scores)))
    predictions = top_k(row(*scores), k, OutputKind.PROBABILITIES, ())
    by_hand = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:k]
    assert [p["index"] for p in predictions] == by_hand
    assert [p["probability"] for p in predictions] == [scores[i] for i in by_hand]


@given(ROWS, st.data())
def test_softmax_of_logits_is_that_of_the_definition(
    scores: list[float], data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(scores)))
    predictions = top_k(row(*scores), k, OutputKind.LOGITS, ())
    weights = np.exp(np.array(scores))
    expected = weights / weights.sum()
    for prediction in predictions:
        assert prediction["probability"] == pytest.approx(expected[prediction["index"]], abs=1e-6)


def test_softmax_is_stable_where_exp_would_overflow_or_vanish() -> None:
    for shift in (-3e38, 0.0, 1e4):
        (first, second) = top_k(row(shift, shift), 2, OutputKind.LOGITS, ())
        assert first["probability"] == second["probability"] == 0.5
    (first, second) = top_k(row(-3e38, 3e38), 2, OutputKind.LOGITS, ())
    assert (first["index"], first["probability"], second["probability"]) == (1, 1.0, 0.0)


@pytest.mark.parametrize(
    ("output", "scores", "expected"),
    [
        (OutputKind.LOG_PROBABILITIES, [-0.5, -1.5], [0.731059, 0.268941]),
        (OutputKind.PERCENT, [75, 25], [0.75, 0.25]),
        (OutputKind.SHARES, [3, 1], [0.75, 0.25]),
        (OutputKind.SIGMOID, [2, -3], [0.880797, 0.047426]),
        (OutputKind.INDEPENDENT, [0.9, 0.8], [0.9, 0.8]),
        (OutputKind.INDEPENDENT_PERCENT, [90, 80], [0.9, 0.8]),
        (OutputKind.INDEPENDENT_LOG, [-0.5, -1.5], [0.606531, 0.22313]),
    ],
)
@pytest.mark.parametrize("filler", [0, 200])
def test_each_kind_of_score_has_its_own_probability(
    output: OutputKind, scores: list[float], expected: list[float], filler: int
) -> None:
    least = -1000.0 if output in (OutputKind.LOG_PROBABILITIES, OutputKind.SIGMOID) else 0.0
    least = -1000.0 if output is OutputKind.INDEPENDENT_LOG else least
    predictions = top_k(row(*scores, *[least] * filler), 2, output, ())
    assert [p["index"] for p in predictions] == [0, 1]
    assert [p["probability"] for p in predictions] == expected


@pytest.mark.parametrize(
    ("output", "score", "yes"),
    [
        (OutputKind.LOGITS, 2.0, 0.880797),
        (OutputKind.SIGMOID, 2.0, 0.880797),
        (OutputKind.SIGMOID, -800.0, 0.0),
        (OutputKind.PROBABILITIES, 0.25, 0.25),
        (OutputKind.INDEPENDENT, 0.25, 0.25),
        (OutputKind.PERCENT, 25.0, 0.25),
        (OutputKind.LOG_PROBABILITIES, -0.5, 0.606531),
    ],
)
def test_one_score_is_of_yes_and_no_has_the_rest(
    output: OutputKind, score: float, yes: float
) -> None:
    predictions = top_k(row(score), 2, output, ("no", "yes"))
    found = {p["label"]: p["probability"] for p in predictions}
    assert found == {"yes": yes, "no": pytest.approx(1 - yes, abs=1e-6)}
    assert predictions[0]["label"] == ("yes" if yes > 0.5 else "no")


def test_what_a_softmax_makes_of_logarithms_is_a_probability_too_where_they_are_shifted() -> None:
    shifted = top_k(row(99.5, 98.5), 2, OutputKind.LOG_PROBABILITIES, ())
    assert [p["probability"] for p in shifted] == [0.731059, 0.268941]


@example(scores=[0.0, -1.0], least=0.5)
@given(ROWS, st.floats(0, 1))
def test_a_threshold_leaves_what_reaches_it(scores: list[float], least: float) -> None:
    whole = top_k(row(*scores), len(scores), OutputKind.SIGMOID, ())
    (only,) = rank(Results(row(*scores)[np.newaxis]), OutputKind.SIGMOID)
    found = labels.top_k(only, len(scores), OutputKind.SIGMOID, (), least)
    assert found == [p for p in whole if p["probability"] >= least]
    assert labels.top_k(only, 1, OutputKind.SIGMOID, (), least) == found[:1]


def test_probabilities_are_passed_on_rounded_to_what_a_float32_carries() -> None:
    (first,) = top_k(row(0.1, 0.9), 1, OutputKind.PROBABILITIES, ())
    assert first["probability"] == 0.9  # not 0.8999999761581421


def test_a_class_is_named_by_its_label_or_else_by_its_index() -> None:
    assert [p["label"] for p in top_k(row(1, 2), 2, OutputKind.LOGITS, ("cat", "dog"))] == [
        "dog",
        "cat",
    ]
    assert [p["label"] for p in top_k(row(1, 2), 2, OutputKind.LOGITS, ())] == ["1", "0"]


@pytest.mark.parametrize("size", [3, 300])
@pytest.mark.parametrize("output", list(OutputKind))
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scores_that_are_no_finite_numbers_are_refused(
    bad: float, output: OutputKind, size: int
) -> None:
    scores = np.zeros(size, np.float32)
    scores[1] = bad
    with pytest.raises(EngineFailedError, match="not finite"):
        top_k(scores, 1, output, ())


def test_the_scores_are_left_as_they_are() -> None:
    scores = row(3, 1, 2)
    top_k(scores, 2, OutputKind.LOGITS, ())
    assert scores.tolist() == [3, 1, 2]


def test_logits_too_large_to_exponentiate_are_ranked_like_any_others() -> None:
    for shift in (0.0, 599.0, 601.0, -601.0, 1e6):
        scores = row(*(value + shift for value in (1.0, 3.0, 2.0)))
        named = top_k(scores, 3, OutputKind.LOGITS, ())
        assert [prediction["index"] for prediction in named] == [1, 2, 0]
        assert [prediction["probability"] for prediction in named] == [0.665241, 0.244728, 0.090031]


def _ranked(scores: NDArray[np.float32], k: int, *, logits: bool) -> TopClasses:
    rows = reference.top_k(scores.astype(np.float64), k, logits=logits).astype(np.float32)
    classes = scores.shape[1]
    return TopClasses(rows[:, classes : classes + k], rows[:, classes + k : -1])


@given(st.lists(VALUES, min_size=2, max_size=40), st.sampled_from(OutputKind))
def test_an_engines_ranking_is_read_and_more_than_it_has_is_ranked_here(
    scores: list[float], output: OutputKind
) -> None:
    rows = np.array([scores, scores[::-1]], np.float32)
    k = min(16, len(scores))
    ranked = _ranked(rows, k, logits=output.by_softmax)
    ours, theirs = rank(Results(rows), output), rank(Results(rows, ranked), output)
    for wanted in (1, k, len(scores)):
        for mine, given_ in zip(ours, theirs, strict=True):
            expected = labels.top_k(mine, wanted, output, ())
            read = labels.top_k(given_, wanted, output, ())
            assert [p["index"] for p in read] == [p["index"] for p in expected]
            for p, q in zip(read, expected, strict=True):
                assert p["probability"] == pytest.approx(q["probability"], abs=2e-6)


def test_an_engines_ranking_is_used_not_made_again() -> None:
    scores = np.zeros((1, 3), np.float32)
    made_up = TopClasses(np.array([[2, 0]], np.float32), np.array([[0.75, 0.25]], np.float32))
    (only,) = rank(Results(scores, made_up), OutputKind.LOGITS)
    predictions = labels.top_k(only, 2, OutputKind.LOGITS, ("a", "b", "c"))
    assert [(p["label"], p["probability"]) for p in predictions] == [("c", 0.75), ("a", 0.25)]


def test_an_image_whose_scores_are_not_finite_fails_alone_where_the_engine_ranks() -> None:
    scores = np.array([[0.0, np.nan], [1.0, 0.0]], np.float32)
    bad, good = rank(Results(scores, _ranked(scores, 2, logits=True)), OutputKind.LOGITS)
    with pytest.raises(EngineFailedError, match="not finite"):
        labels.top_k(bad, 1, OutputKind.LOGITS, ())
    assert labels.top_k(good, 1, OutputKind.LOGITS, ())[0]["index"] == 0


def test_a_batch_is_known_to_be_finite_unless_one_of_its_scores_is_not() -> None:
    scores = np.full((2, 3), 3e38, np.float32)  # whose sum is no float32
    assert [row.is_known_finite for row in rank(Results(scores), OutputKind.LOGITS)] == [True] * 2
    for bad in (np.nan, -np.inf):
        scores[1, 2] = bad
        rows = rank(Results(scores), OutputKind.LOGITS)
        assert [row.is_known_finite for row in rows] == [False] * 2
    assert not labels.ScoreRow(scores[0]).is_known_finite
