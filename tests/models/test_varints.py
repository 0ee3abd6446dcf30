"""Numbers of variable length, up to the longest, and numbers without an end."""

import pytest

from models.varints import varint
from tests.support.models.hostile_models import varint as written


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 2**32, 2**64 - 1])
def test_a_number_is_read_with_the_position_after_it(number: int) -> None:
    data = b"\x08" + written(number) + b"\x12"
    assert varint(data, 1, len(data), ValueError) == (number, len(data) - 1)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 11])
def test_a_number_that_does_not_end_raises_the_callers_error(data: bytes) -> None:
    with pytest.raises(LookupError):
        varint(data, 0, len(data), LookupError)


def test_a_number_ends_before_the_end_or_not_at_all() -> None:
    with pytest.raises(LookupError):
        varint(b"\x80\x01", 0, 1, LookupError)
