"""The clients that count as sharing the engines, and for how long after a request they count."""

from service.batching.policy import ALONE, Rivals
from service.batching.rivalry import Rivalry


def test_a_client_counts_for_a_second_after_it_has_asked() -> None:
    rivalry = Rivalry()
    rivalry.asked(10.0, "a", 3)
    rivalry.asked(10.2, "b", 1)
    assert rivalry.rivals(10.9, 16.0) == Rivals(2, 1)
    rivalry.asked(11.1, "b", 1)
    assert rivalry.rivals(11.1, 16.0) == ALONE, "a has not asked for 1.1 s"


def test_a_client_counts_while_its_images_are_in_batches() -> None:
    rivalry = Rivalry()
    rivalry.asked(10.0, "a", 3)
    rivalry.served(10.9, ["a", "no longer known"])
    rivalry.asked(11.5, "b", 1)
    assert rivalry.rivals(11.5, 16.0) == Rivals(2, 1)


def test_the_lightest_is_known_by_the_most_that_it_had_inside_within_a_second() -> None:
    rivalry = Rivalry()
    rivalry.asked(10.0, "a", 5)
    rivalry.asked(10.5, "b", 4)
    rivalry.asked(10.5, "b", 2)
    assert rivalry.rivals(10.6, 16.0) == Rivals(2, 4)
    rivalry.asked(11.6, "b", 2)
    rivalry.asked(11.6, "a", 3)
    assert rivalry.rivals(11.6, 16.0) == Rivals(2, 2)


def test_the_most_is_of_the_last_time_that_a_client_had_so_many() -> None:
    rivalry = Rivalry()
    rivalry.asked(10.0, "a", 9)
    for now, inside in ((10.0, 5), (10.9, 5), (11.5, 2)):
        rivalry.asked(now, "b", inside)
    rivalry.asked(11.5, "a", 9)
    assert rivalry.rivals(11.5, 16.0) == Rivals(2, 5)


def test_of_as_many_clients_as_can_bear_the_largest_batch_only_the_number_matters() -> None:
    rivalry = Rivalry()
    for client in "abc":
        rivalry.asked(10.0, client, 7)
    assert rivalry.rivals(10.0, 3.0) == Rivals(3)
