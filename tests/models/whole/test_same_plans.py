"""Plans of networks without attention do not change unnoticed."""

from tests.support.models.planned import planned, table
from tests.support.networks import EACH_NETWORK

AGAIN = "if this is meant: python -m tests.support.models.planned"


@EACH_NETWORK
def test_a_network_is_planned_as_the_table_says(name: str) -> None:
    expected = [row for row in table() if row.network == name]
    assert len(expected) == 4
    assert list(planned(name)) == expected, AGAIN
