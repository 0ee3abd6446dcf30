"""Limits on bodies, with values exactly at each limit and just above it."""

import pytest

from service.errors import BadRequestError, ServiceError
from service.http.body import (
    _MAX_PARAMETERS,
    _MAX_TYPE_BYTES,
    FORM_TYPE,
    SHORT_BYTES,
    content_length,
    form_boundary,
    images_of,
    is_short,
)


@pytest.mark.parametrize(
    ("headers", "short"),
    [
        ({}, True),
        ({b"content-length": b"%d" % SHORT_BYTES}, True),
        ({b"content-length": b"%d" % (SHORT_BYTES + 1)}, False),
        ({b"content-length": b"0" * 20}, True),
        ({b"content-length": b"0" * 21}, False),
        ({b"content-length": b"1", b"transfer-encoding": b"chunked"}, False),
        ({b"content-length": b"1", b"expect": b"100-continue"}, False),
    ],
)
def test_an_unwanted_body_is_read_if_it_is_short(headers: dict[bytes, bytes], short: bool) -> None:
    assert is_short(headers) is short


@pytest.mark.parametrize(
    ("digits", "length"), [(b"12", 12), (b"", None), (b"-1", None), (b"1e3", None)]
)
def test_a_length_is_a_whole_number(digits: bytes, length: int | None) -> None:
    assert content_length({b"content-length": digits}) == length


def test_a_content_type_may_be_as_long_as_is_said() -> None:
    begin = f"{FORM_TYPE}; boundary=b; x="
    most = begin + "y" * (_MAX_TYPE_BYTES - len(begin))
    assert form_boundary({b"content-type": most.encode()}) == b"b"
    with pytest.raises(BadRequestError, match="has 1025 bytes; at most 1024"):
        form_boundary({b"content-type": most.encode() + b"y"})


def test_a_file_may_have_as_many_parameters_as_is_said() -> None:
    def read(parameters: int) -> list[bytes]:
        more = "; x=y" * (parameters - 1)
        disposition = f'Content-Disposition: form-data; name="file"{more}'
        return images_of(f"--b\r\n{disposition}\r\n\r\n7\r\n--b--\r\n".encode(), b"b", 1)

    assert read(_MAX_PARAMETERS) == [b"7"]
    with pytest.raises(ServiceError, match=f"more than {_MAX_PARAMETERS} parameters"):
        read(_MAX_PARAMETERS + 1)
