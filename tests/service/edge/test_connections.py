"""Which connections may be open, without any: who makes room, who has to, and for whom."""

import pytest

from service.edge.connections import SPARE, Connections, Place, network_of
from service.edge.rates import RateLimit


class Peer:
    """A connection of an address, silent since a time, or at work."""

    def __init__(self, address: str, silent_since: float | None = None) -> None:
        self.address = address
        self.since = silent_since
        self.closed = False

    @property
    def silent_since(self) -> float | None:
        return None if self.closed else self.since

    def hang_up_on(self) -> None:
        self.closed = True


class Port:
    """The connections that are open."""

    def __init__(self, most: int, most_an_address: int) -> None:
        self.bounds = Connections(most, most_an_address)
        self.peers: list[Peer] = []

    def open(self, peer: Peer, now: float = 1000.0) -> Place:
        self.peers.append(peer)
        place = self.bounds.open(peer, self.peers, now)
        for closed in [each for each in self.peers if each.closed]:
            self.close(closed)
        return place

    def close(self, peer: Peer) -> None:
        self.peers.remove(peer)
        self.bounds.close(peer)


def test_a_silent_address_displaces_only_itself() -> None:
    port = Port(most=10, most_an_address=5)
    good = Peer("good", 0.0)  # silent longest of all
    assert port.open(good) is Place.OPEN
    silent = [Peer("bad", float(n)) for n in range(1, 100)]
    for peer in silent:
        assert port.open(peer) is Place.OPEN
    assert [peer for peer in silent if not peer.closed] == silent[-5:]
    assert not good.closed
    assert port.bounds.displaced == 94


def test_of_all_the_longest_silent_makes_room() -> None:
    port = Port(most=4, most_an_address=4)
    old, at_work, young = Peer("a", 1.0), Peer("b"), Peer("c", 2.0)
    for peer in (at_work, young, old, Peer("d", 3.0)):
        assert port.open(peer) is Place.OPEN
    assert port.open(Peer("e", 4.0)) is Place.OPEN
    assert old.closed
    assert not young.closed
    assert not at_work.closed


def test_one_that_was_just_opened_may_be_about_to_ask() -> None:
    port = Port(most=2, most_an_address=2)
    young, new = Peer("a", 10.0), Peer("a", 10.2)
    assert port.open(young, 10.0) is Place.OPEN
    assert port.open(Peer("a"), 10.1) is Place.OPEN
    assert port.open(new, 10.2) is Place.ADDRESS_REFUSED
    port.close(new)
    assert not young.closed
    assert port.open(Peer("a", 10.25), 10.25) is Place.OPEN
    assert young.closed


def test_where_all_are_at_work_there_is_room_for_health_checks_alone() -> None:
    port = Port(most=4, most_an_address=100)
    for number in range(4):
        assert port.open(Peer(f"{number}")) is Place.OPEN
    for _ in range(SPARE):
        assert port.open(Peer("probe")) is Place.HEALTH
    assert port.open(Peer("probe")) is Place.REFUSED
    for peer in port.peers[4:]:
        port.close(peer)
    port.close(port.peers[0])
    assert port.open(Peer("new")) is Place.OPEN


def test_an_address_whose_connections_are_all_at_work_is_refused() -> None:
    port = Port(most=10, most_an_address=2)
    first, second = Peer("a"), Peer("a")
    assert [port.open(first), port.open(second)] == [Place.OPEN] * 2
    refused = Peer("a")
    assert port.open(refused) is Place.ADDRESS_REFUSED
    port.close(refused)
    assert port.open(Peer("b")) is Place.OPEN
    port.close(first)
    assert port.open(Peer("a")) is Place.OPEN


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("", "", True),
        ("no:address", "no:address", True),
    ],
)
def test_a_network_of_ipv6_counts_as_one_address(one: str, other: str, same: bool) -> None:
    assert (network_of(one) == network_of(other)) is same


def test_a_client_has_a_seconds_worth_of_requests_at_once_and_then_its_rate() -> None:
    limit = RateLimit(10)
    assert [limit.take("a", 0.0) for _ in range(10)] == [0.0] * 10
    assert limit.take("a", 0.0) == pytest.approx(0.1)
    assert limit.take("b", 0.0) == 0.0
    assert limit.take("a", 0.05) == pytest.approx(0.05)  # what is refused takes nothing
    assert limit.take("a", 0.1) == 0.0
    assert limit.take("a", 0.1) == pytest.approx(0.1)
    assert 99 <= sum(limit.take("a", now / 100) == 0.0 for now in range(11, 1011)) <= 100


def test_a_rate_below_one_lets_one_request_in_and_says_how_long_the_next_waits() -> None:
    limit = RateLimit(0.25)
    assert limit.take("a", 7.0) == 0.0
    assert limit.take("a", 8.0) == pytest.approx(3.0)
    assert limit.take("a", 11.0) == 0.0


def test_clients_that_do_nothing_are_forgotten() -> None:
    limit = RateLimit(2)
    for number in range(1000):
        limit.take(number, 0.0)
    limit.take("busy", 0.4)
    limit.forget(0.6)
    assert len(limit) == 1
    assert limit.take("busy", 0.6) == 0.0
    assert limit.take("busy", 0.6) > 0
