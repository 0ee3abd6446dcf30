"""Connections: open, displaced by others, refused, or open only for health checks."""

import pytest

from service.edge.connections import SPARE, Connections, network_of
from service.errors import TooManyConnectionsError


class Peer:
    """A connection from an address. It is silent since some time, or busy."""

    def __init__(self, address: str, silent_since: float | None = None) -> None:
        self.address = address
        self.since = silent_since
        self.closed = False

    @property
    def silent_since(self) -> float | None:
        return None if self.closed else self.since

    def hang_up_on(self) -> None:
        self.closed = True

    def inspect(self, now: float) -> None:
        raise AssertionError(f"inspected at {now}")


class Port:
    """The open connections, and the bounds on them."""

    def __init__(self, most: int, most_an_address: int) -> None:
        self.bounds = Connections(most, most_an_address)
        self.peers: list[Peer] = []

    def open(self, peer: Peer, now: float = 1000.0) -> bool:
        self.peers.append(peer)
        health_only = self.bounds.open(peer, self.peers, now)
        for closed in [each for each in self.peers if each.closed]:
            self.close(closed)
        return health_only

    def close(self, peer: Peer) -> None:
        self.peers.remove(peer)
        self.bounds.close(peer)


def test_a_silent_address_displaces_only_itself() -> None:
    port = Port(most=10, most_an_address=5)
    good = Peer("good", 0.0)  # silent longest of all
    assert not port.open(good)
    silent = [Peer("bad", float(n)) for n in range(1, 100)]
    for peer in silent:
        assert not port.open(peer)
    assert [peer for peer in silent if not peer.closed] == silent[-5:]
    assert not good.closed


def test_of_all_the_longest_silent_makes_room() -> None:
    port = Port(most=4, most_an_address=4)
    old, at_work, young = Peer("a", 1.0), Peer("b"), Peer("c", 2.0)
    for peer in (at_work, young, old, Peer("d", 3.0)):
        assert not port.open(peer)
    assert not port.open(Peer("e", 4.0))
    assert old.closed
    assert not young.closed
    assert not at_work.closed


def test_one_that_was_just_opened_may_be_about_to_ask() -> None:
    port = Port(most=2, most_an_address=2)
    young, new = Peer("a", 10.0), Peer("a", 10.2)
    assert not port.open(young, 10.0)
    assert not port.open(Peer("a"), 10.1)
    with pytest.raises(TooManyConnectionsError, match="your address"):
        port.open(new, 10.2)
    port.close(new)
    assert not young.closed
    assert not port.open(Peer("a", 10.25), 10.25)
    assert young.closed


def test_where_all_are_at_work_there_is_room_for_health_checks_alone() -> None:
    port = Port(most=4, most_an_address=100)
    for number in range(4):
        assert not port.open(Peer(f"{number}"))
    for _ in range(SPARE):
        assert port.open(Peer("probe"))
    with pytest.raises(TooManyConnectionsError, match="of the server"):
        port.open(Peer("probe"))
    for peer in port.peers[4:]:
        port.close(peer)
    port.close(port.peers[0])
    assert not port.open(Peer("new"))


def test_an_address_whose_connections_are_all_at_work_is_refused() -> None:
    port = Port(most=10, most_an_address=2)
    first, second = Peer("a"), Peer("a")
    assert not port.open(first)
    assert not port.open(second)
    refused = Peer("a")
    with pytest.raises(TooManyConnectionsError, match="your address"):
        port.open(refused)
    port.close(refused)
    assert not port.open(Peer("b"))
    port.close(first)
    assert not port.open(Peer("a"))


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
