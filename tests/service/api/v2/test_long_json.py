"""Long JSON of the V2 protocol is read in pieces. It has the same meaning as if it were read at
once."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.api.v2 import long_json, tensors
from service.api.v2 import parse as parsing
from service.api.v2.interpretation import InferRequest
from service.api.v2.long_json import PIECE, cut
from service.api.v2.parse import parse_request
from service.errors import BadRequestError, PayloadTooLargeError, ServiceError, UnsupportedError
from tests.service.api.v2.test_parse import INFO

SMALL = 48  # bytes of a piece: every request of a few numbers is long


@contextmanager
def small_pieces() -> Iterator[None]:
    """Read JSON in pieces of a few bytes."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (long_json, parsing, tensors):
            patch.setattr(module, "PIECE", SMALL)
        yield


def parsed(body: bytes) -> InferRequest:
    return parse_request(body, None, INFO, max_images=4)


def parse_in_pieces(body: bytes) -> InferRequest:
    with small_pieces():
        return parsed(body)


def body_of(
    data: str, datatype: str, shape: list[int], name: str = "image", more: str = ""
) -> bytes:
    text = f'"name":"{name}","datatype":"{datatype}","shape":{shape},"data":{data}{more}'
    return f'{{"inputs":[{{{text}}}]}}'.encode()


RANDOM = st.randoms(use_true_random=False)
NUMBERS = st.one_of(st.integers(-300, 300), st.floats(-1e6, 1e6, width=32))


def written(value: Any, random: Random) -> str:
    """Return JSON with white space everywhere."""

    def white() -> str:
        return random.choice(["", "", " ", "\n\t", "\r\n"])

    if isinstance(value, list):
        inside = ",".join(written(each, random) for each in value)
        return f"{white()}[{inside}{white()}]{white()}"
    return f"{white()}{json.dumps(value)}{white()}"


@given(st.data())
def test_numbers_in_pieces_are_those_in_one(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 4))
    values = data.draw(st.lists(NUMBERS, min_size=6 * n, max_size=6 * n))
    array: Any = np.array(values, object).reshape(n, 1, 2, 3)
    nested = data.draw(st.sampled_from([array.ravel(), array, array.reshape(n, 6)])).tolist()
    text = written(nested, data.draw(RANDOM))
    images = parse_in_pieces(body_of(text, "FP32", [n, 1, 2, 3], "x")).images
    assert images is not None
    np.testing.assert_array_equal(images, array.astype(np.float64).astype(np.float32))


@given(st.data())
def test_an_array_that_was_damaged_is_never_taken_for_another(data: st.DataObject) -> None:
    values = data.draw(st.lists(st.integers(0, 255), min_size=12, max_size=12))
    nested = np.array(values).reshape(2, 2, 3, 1)
    text = written(data.draw(st.sampled_from([nested.ravel(), nested])).tolist(), data.draw(RANDOM))
    place = data.draw(st.integers(0, len(text)))
    change = data.draw(st.text("[],.-e07 \n", max_size=2))
    damaged = text[:place] + change + text[place + data.draw(st.integers(0, 2)) :]
    try:
        meant = np.array(json.loads(damaged)).ravel().tolist()
    except ValueError:  # it is no JSON, or its lists differ in length
        meant = None
    try:
        images = parse_in_pieces(body_of(damaged, "UINT8", [2, 2, 3, 1])).images
    except ServiceError:
        return
    assert images is not None
    assert images.ravel().tolist() == meant


@pytest.mark.parametrize(
    "data",
    [
        "[[0,1,2],3[,4,5]]",
        "[[0,1,]2,[3,4,5]]",
        "[[0,1,2],[3,4,]5]",
        "[0[,1,2],[3,4,5]]",
        "[[0,1,2][,3,4,5]]",
        "[[0,1,2,],[3,4,5]]",
        "[[0,1,2],[3 4,5]]",
        "[[0,1,2],[3,4,5]",
        "[0,1,2,3,4,,5]",
        "[0,1,2,3,4,5,]",
        "[0,1,2,3,4, ]",
    ],
)
@pytest.mark.parametrize("space", [0, 40])
def test_numbers_that_are_out_of_place_are_refused(data: str, space: int) -> None:
    parse_in_pieces(body_of("[[0,1,2],[3,4,5]]", "UINT8", [1, 2, 3, 1]))
    for place in (0, 8, 11):  # before, between and after the pieces
        wide = data[:place] + " " * space + data[place:]
        with pytest.raises(BadRequestError):
            parse_in_pieces(body_of(wide, "UINT8", [1, 2, 3, 1]))


def test_a_number_that_begins_a_piece_may_not_follow_a_bracket() -> None:
    def body(last: str, first: str) -> bytes:
        """Return a request for two images whose JSON is read in two pieces. The first piece ends
        with `last`, and the second begins with `first`."""
        pieces = "[0,1,2,3,4,".rjust(SMALL - 2) + last + (first.ljust(20) + ",").ljust(SMALL)
        return body_of(f"[{pieces}[6,7,8,9,10,11]]", "UINT8", [2, 2, 3, 1])

    images = parse_in_pieces(body("5", "]")).images
    assert images is not None
    assert images.ravel().tolist() == list(range(12))
    with pytest.raises(BadRequestError, match="must be whole numbers"):
        parse_in_pieces(body("]", "5"))


@given(
    st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=4),
    st.booleans(),
    st.sampled_from([None, r"\/", r"\u002f", r"\u002F"]),
)
def test_files_in_pieces_are_those_in_one(
    files: list[bytes], nested: bool, slash: str | None
) -> None:
    texts = [base64.b64encode(file).decode() for file in files]
    data = json.dumps([[text] for text in texts] if nested else texts)
    if slash:
        data = data.replace("/", slash)
    assert parse_in_pieces(body_of(data, "BYTES", [len(files)])).files == files


@given(st.binary(min_size=40, max_size=150), st.data())
def test_base64_that_was_damaged_is_refused(file: bytes, data: st.DataObject) -> None:
    text = base64.b64encode(file).decode()
    place = data.draw(st.integers(0, len(text) - 1))
    change = data.draw(st.sampled_from(["=", "é", " ", "\\\\", "-", "A", ""]))
    damaged = text[:place] + change + text[place + 1 :]
    try:
        files = parse_in_pieces(body_of(f'["{damaged}"]', "BYTES", [1])).files
    except BadRequestError:
        return
    assert files == [base64.b64decode(damaged, validate=True)]


@pytest.mark.parametrize(
    ("text", "head", "lists"),
    [
        ('{"data":[1,2]}', '{"data":[0]}', ["[1,2]"]),
        ('{"data" : \n [[1],[2]] , "a":"b"}', '{"data" : \n [0] , "a":"b"}', ["[[1],[2]]"]),
        ('{"data":["a]","}"],"b":[1]}', '{"data":[0],"b":[1]}', ['["a]","}"]']),
        (r'{"id":"\"data\":[1]"}', r'{"id":"\"data\":[1]"}', []),
        (r'{"a\\":"data","data":[1]}', r'{"a\\":"data","data":[0]}', ["[1]"]),
        ('{"data":"[1]"}', '{"data":"[1]"}', []),
        ('[{"data":[1]},{"data":[2]}]', '[{"data":[0]},{"data":[1]}]', ["[1]", "[2]"]),
        ('{"data":[]}', '{"data":[0]}', ["[]"]),
    ],
)
def test_the_lists_are_cut_out(text: str, head: str, lists: list[str]) -> None:
    kept, spans = cut(text.encode(), len(text))
    assert (kept.decode(), [text[span.start : span.end] for span in spans]) == (head, lists)


@pytest.mark.parametrize(
    "text",
    ['{"data":[1,2', '{"data":[1,"a', '{"data":[{"a":1}]}', '{"id":"' + "\\" * 300 + '"}', '{"id"'],
)
def test_text_that_ends_in_the_middle_is_refused(text: str) -> None:
    with pytest.raises(BadRequestError):
        parse_in_pieces((text + " " * SMALL).encode())


def test_what_follows_the_lists_counts() -> None:
    data = str([7] * 40_000)
    more = ',"parameters":{"shared_memory_region":"r"}'
    with pytest.raises(UnsupportedError, match="shared memory"):
        parsed(body_of(data, "UINT8", [1, 2, 3, 1], more=more))
    with pytest.raises(BadRequestError, match="got 40000 elements, expecting 6"):
        parsed(body_of(data, "UINT8", [1, 2, 3, 1]))


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b'{"inputs":[%b]}' % b",".join([b"{}"] * 300), 400, "more than 256 objects"),
        (b'{"inputs":[],"a":[%b]}' % b",".join([b'""'] * 600), 400, "more than 516 strings"),
        (b'{"inputs":[],"a":[%b0]}' % (b"0," * PIECE), 413, "bytes besides `data`"),
        (b'{"id":"%b","inputs":[{"data":[]}]}' % (b"i" * PIECE), 413, "send a shorter id"),
    ],
)
def test_what_no_request_needs_is_refused(body: bytes, status: int, says: str) -> None:
    with pytest.raises(ServiceError, match=says) as refused:
        parsed(body)
    assert refused.value.code == status
    assert refused.type is (PayloadTooLargeError if status == 413 else BadRequestError)
