"""Clients take turns. Their shares are right if clients flood, leave, return or come only once."""

from collections import Counter
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.fair_queue import Client, FairQueue


class Counterpart:
    """A fair queue with entries. It counts the cost of each client's served entries."""

    def __init__(self) -> None:
        self.queue: FairQueue[int] = FairQueue()
        self.got: Counter[str] = Counter()  # cost
        self.numbers = count()

    def put(self, client: Client, entries: int = 1, level: int = 0) -> None:
        line = self.queue.line(client)
        line.entries += [next(self.numbers) for _ in range(entries)]
        line.size = float(len(line.entries))
        self.queue.place(line, level)

    def serve(self, cost: float = 1.0) -> str:
        line, _ = self.queue.next()
        del line.entries[0]
        line.size -= 1
        self.queue.served(line, cost)
        self.queue.place(line, line.level)
        self.got[line.client.name] += cost  # type: ignore[assignment]
        return line.client.name


A, B, C = Client("a"), Client("b"), Client("c")


def test_two_lines_alternate_however_long_one_is() -> None:
    desk = Counterpart()
    desk.put(A, 100)
    desk.put(B, 3)
    assert [desk.serve() for _ in range(8)] == ["a", "b", "a", "b", "a", "b", "a", "a"]


def test_a_line_that_forms_is_next_and_has_no_claim_for_the_time_it_was_away() -> None:
    desk = Counterpart()
    desk.put(A, 100)
    assert {desk.serve() for _ in range(50)} == {"a"}
    desk.put(B, 50)
    assert desk.serve() == "b"
    assert Counter(desk.serve() for _ in range(40)) == {"a": 20, "b": 20}


def test_who_comes_back_at_once_waits_for_the_others_turn() -> None:
    desk = Counterpart()
    desk.put(A, 100)
    desk.put(B, 1)
    names = []
    for _ in range(20):
        names.append(desk.serve(0.4))
        if names[-1] == "b":
            desk.put(B, 1)
    assert Counter(names) == {"a": 10, "b": 10}


def test_turns_count_what_they_cost() -> None:
    desk = Counterpart()
    desk.put(A, 1000)
    desk.put(B, 1000)
    costs = {"a": 0.4, "b": 0.05}
    for _ in range(500):
        desk.serve(costs[desk.queue.next()[0].client.name])
    assert desk.got["a"] == pytest.approx(desk.got["b"], abs=0.45)


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=6))
def test_shares_are_those_of_the_weights(weights: list[float]) -> None:
    desk = Counterpart()
    for number, weight in enumerate(weights):
        desk.put(Client(str(number), weight), 1001)  # more than are served
    for _ in range(1000):
        desk.serve()
    shares = [desk.got[str(number)] / weight for number, weight in enumerate(weights)]
    assert max(shares) - min(shares) <= 2 / min(weights) + 1e-6


@given(st.integers(1, 12), st.lists(st.integers(1, 9), min_size=20, max_size=60))
def test_with_k_floods_a_client_gets_its_part_at_least(k: int, pauses: list[int]) -> None:
    """Before each entry of this client, at most one entry of each other client is served."""
    desk, served = Counterpart(), sum(pauses) + (k + 1) * len(pauses)
    for number in range(k):
        desk.put(Client(f"flood {number}"), served)
    for pause in pauses:
        for _ in range(pause):
            desk.serve()
        desk.put(A)
        names = [desk.serve() for _ in range(k + 1)]
        assert "a" in names


def test_clients_who_come_once_do_not_hold_up_a_line_and_are_forgotten() -> None:
    desk = Counterpart()
    desk.put(A, 2000)
    desk.serve()
    most, name = 0, ""
    for number in range(3000):
        if name != "a":
            desk.put(Client(f"once {number}"))
        name = desk.serve()
        most = max(most, len(desk.queue._lines))
    assert desk.got["a"] > 600, "a fifth, at least"
    assert most < 100


def test_when_nobody_waits_all_begin_anew() -> None:
    desk = Counterpart()
    desk.put(A, 5)
    for _ in range(5):
        desk.serve()
    assert not desk.queue
    desk.put(B, 2)
    desk.put(A, 2)
    assert [desk.serve() for _ in range(4)] == ["b", "a", "b", "a"]
    assert desk.queue._lines == {}


def test_the_first_level_goes_first() -> None:
    desk = Counterpart()
    desk.put(A, 2, level=2)
    desk.put(B, 2, level=1)
    desk.put(C, 2, level=2)
    assert [desk.serve() for _ in range(6)] == ["b", "b", "a", "c", "a", "c"]


def test_a_copy_shows_who_would_go_when() -> None:
    desk, twin = Counterpart(), Counterpart()
    desk.put(A, 5)
    desk.serve()
    desk.put(B, 3)
    twin.queue = desk.queue.copy()
    expected = [twin.serve() for _ in range(7)]
    assert [desk.serve() for _ in range(7)] == expected


def test_what_is_ahead_of_a_client_is_its_own_and_as_much_of_each_other() -> None:
    desk = Counterpart()
    desk.put(A, 100)
    desk.put(B, 2)
    ahead = {line.client.name: share for line, share in desk.queue.ahead(C, 5.0)}
    assert ahead == {"a": 5.0, "b": 5.0}
    assert list(desk.queue.ahead(C, 0.0)) == []
    assert (desk.queue.size(B), desk.queue.size(C)) == (2.0, 0.0)


def test_weights_count_in_what_is_ahead_of_a_client() -> None:
    desk, heavy = Counterpart(), Client("heavy", 3.0)
    desk.put(A, 100)
    desk.put(heavy, 100)
    ahead = {line.client.name: share for line, share in desk.queue.ahead(Client("c", 2.0), 4.0)}
    assert ahead == {"a": 2.0, "heavy": 6.0}


def test_a_turn_brings_a_heavy_line_level_by_its_weight() -> None:
    desk, heavy = Counterpart(), Client("heavy", 3.0)
    desk.put(A, 100)
    desk.put(heavy, 100)
    desk.serve(4.0)
    line, worth = desk.queue.next()
    assert (line.client, worth) == (heavy, 12.0)


def test_the_clock_shows_a_part_of_a_first_turn_and_then_where_the_last_entry_began() -> None:
    desk, heavy = Counterpart(), Client("heavy", 2.0)
    desk.put(heavy, 100)
    desk.serve()
    assert desk.queue.line(A).service == pytest.approx(1 / 3)
    line, _ = desk.queue.next()
    assert line.service == 0.5
    desk.queue.served(line, 4.0, entries=4)  # three of them before the last, at twice the weight
    assert desk.queue.line(B).service == 2.0


def test_a_copy_knows_which_lines_had_a_turn() -> None:
    desk, twin = Counterpart(), Counterpart()
    desk.put(A, 5)
    desk.serve()
    desk.put(B, 3)
    twin.queue = desk.queue.copy()
    assert [desk.serve() for _ in range(2)] == [twin.serve() for _ in range(2)] == ["b", "a"]
    assert twin.queue.line(C).service == desk.queue.line(C).service == 1.0
