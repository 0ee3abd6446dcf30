"""Models that share a device get equal or weighted shares of its time."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.batching.device_turns import DeviceTurn, DeviceTurns


class Model:
    """A model that needs the device, and records how long it used it."""

    def __init__(self, turns: DeviceTurns, weight: float = 1.0) -> None:
        self.calls = 0
        self.used = 0.0
        self.turn: DeviceTurn = turns.join(self.called, weight)

    def called(self) -> None:
        self.calls += 1

    def run(self, seconds: float) -> None:
        assert self.turn.take()
        self.turn.spent(seconds)
        self.used += seconds


def test_who_is_alone_need_not_ask() -> None:
    turns = DeviceTurns()
    first = Model(turns)
    assert first.turn.alone
    Model(turns)
    assert not first.turn.alone


def test_a_free_device_is_had_at_once_and_a_taken_one_when_it_is_let_go() -> None:
    turns = DeviceTurns()
    first, second = Model(turns), Model(turns)
    assert first.turn.take()
    assert first.turn.take(), "asking twice changes nothing"
    assert not second.turn.take()
    assert second.calls == 0
    first.turn.let_go()
    assert second.calls == 1
    assert second.turn.take()
    assert not first.turn.take()


def test_a_flood_is_interrupted_by_whoever_else_wants_the_device() -> None:
    turns = DeviceTurns()
    flood, other = Model(turns), Model(turns)
    for _ in range(100):
        flood.run(1.0)
    assert not other.turn.take(), "a batch that runs is not cut short"
    assert not flood.turn.take()
    assert other.calls == 1
    other.run(1.0)
    assert not other.turn.take(), "it has saved nothing up while it was away"
    assert flood.turn.take()


def test_who_waits_may_give_up() -> None:
    turns = DeviceTurns()
    first, second = Model(turns), Model(turns)
    first.run(1.0)
    assert not second.turn.take()
    second.turn.let_go()
    assert first.turn.take()
    first.turn.let_go()
    assert second.calls == 0
    second.turn.let_go()  # having neither


def test_who_waits_again_is_behind_one_that_has_had_less() -> None:
    turns = DeviceTurns()
    first, second, third = (Model(turns) for _ in range(3))
    first.run(10.0)
    first.turn.let_go()
    assert second.turn.take()
    assert not first.turn.take()
    assert not third.turn.take()
    second.turn.let_go()
    assert (first.calls, third.calls) == (0, 1)


def test_one_granted_its_turn_and_no_longer_wanting_it_hands_it_on() -> None:
    turns = DeviceTurns()
    first, second, third = (Model(turns) for _ in range(3))
    first.run(1.0)
    assert not second.turn.take()
    assert not third.turn.take()
    first.turn.let_go()
    assert (second.calls, third.calls) == (1, 0)
    second.turn.let_go()
    assert third.calls == 1
    assert third.turn.take()


def test_how_long_another_keeps_the_device_is_told() -> None:
    turns = DeviceTurns()
    first, second = Model(turns), Model(turns)
    assert second.turn.busy_until is None
    assert first.turn.take()
    first.turn.until = 7.5
    assert second.turn.busy_until == 7.5
    assert first.turn.busy_until is None


def test_the_share_is_among_those_who_want_the_device() -> None:
    turns = DeviceTurns()
    first, second, third = Model(turns), Model(turns, weight=3.0), Model(turns)
    assert first.turn.share == 1.0
    assert first.turn.take()
    assert first.turn.share == 1.0
    assert not second.turn.take()
    assert first.turn.share == 0.25
    assert second.turn.share == 0.75
    assert third.turn.share == 0.2


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan")])
def test_a_weight_must_be_positive(weight: float) -> None:
    with pytest.raises(ValueError, match="weight"):
        DeviceTurns().join(lambda: None, weight)


seconds = st.floats(0.01, 10)


@given(
    st.lists(seconds, min_size=40, max_size=80),
    st.lists(st.sampled_from([0.5, 1.0, 2.0, 5.0]), min_size=2, max_size=4),
)
def test_those_who_always_want_the_device_have_equal_time_over_their_weights(
    batches: list[float], weights: list[float]
) -> None:
    """As start-time fair queueing guarantees, two models never differ by more than one batch of
    each."""
    turns = DeviceTurns()
    models = [Model(turns, weight) for weight in weights]
    for took in batches:
        for model in models:
            model.turn.take()
        (runs,) = [model for model in models if turns.holder is model.turn]
        runs.run(took)
        for first, second in pairwise(sorted(models, key=lambda m: m.used / m.turn.weight)):
            apart = second.used / second.turn.weight - first.used / first.turn.weight
            longest = max(batches)
            assert apart <= longest / first.turn.weight + longest / second.turn.weight + 1e-9


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["take", "let go"]), seconds)))
def test_one_at_most_has_the_device_and_while_somebody_wants_it_somebody_has(
    steps: list[tuple[int, str, float]],
) -> None:
    turns = DeviceTurns()
    models = [Model(turns) for _ in range(3)]
    wanting: set[int] = set()
    for index, step, took in steps:
        model = models[index]
        if step == "take":
            wanting.add(index)
            if model.turn.take():
                model.run(took)
        else:
            wanting.discard(index)
            model.turn.let_go()
        if wanting:
            assert turns.holder in {models[index].turn for index in wanting}
        else:
            assert turns.holder is None


def test_who_leaves_gives_the_device_to_who_waits() -> None:
    turns = DeviceTurns()
    first, second, third = Model(turns), Model(turns), Model(turns)
    assert first.turn.take()
    assert not second.turn.take()
    first.turn.leave()
    assert second.calls == 1
    assert second.turn.take()
    assert not second.turn.alone
    second.turn.leave()
    second.turn.leave()
    assert third.turn.alone


def test_who_is_left_alone_does_not_keep_the_device_from_who_comes() -> None:
    turns = DeviceTurns()
    first, second = Model(turns), Model(turns)
    first.run(1)  # and keeps the device, because no other asks for it
    second.turn.leave()
    assert first.turn.alone
    third = Model(turns)
    assert third.turn.take()
