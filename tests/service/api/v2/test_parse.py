"""Inference requests and answers of the V2 protocol, without HTTP."""

import base64
import json
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from models import ChannelOrder, OutputKind, Results
from service.api.v2.infer_endpoint import format_answer
from service.api.v2.interpretation import InferRequest, WantedOutput
from service.api.v2.parse import MAX_JSON_BYTES, parse_request
from service.engine.ranking import rank
from service.errors import BadRequestError, EngineFailedError, ServiceError, UnsupportedError
from service.hosting.model_info import ModelInfo

INFO = ModelInfo(
    "m",
    "1",
    (2, 3, 1),
    "scores",
    OutputKind.LOGITS,
    ("cat", "dog", "owl"),
    ChannelOrder.GREY,
    tensor="x",
    tensor_shape=(1, 2, 3),
)
PIXELS = list(range(6))
FILE = b"\xff\xd8\xff and more"


def bytes_tensor(*elements: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


def request(
    tensor: dict[str, Any] | None = None, binary: bytes | None = None, **fields: Any
) -> tuple[bytes, int | None]:
    """Return the body of a request for one image of pixels, with some parts replaced."""
    image = {"name": "image", "datatype": "UINT8", "shape": [1, 2, 3, 1], **(tensor or {})}
    if binary is None and "data" not in image:
        image["data"] = PIXELS
    head = json.dumps({"inputs": [image], **fields}).encode()
    return (head, None) if binary is None else (head + binary, len(head))


def parse(body: bytes, header_length: int | None = None) -> InferRequest:
    return parse_request(body, header_length, INFO, max_images=4)


def pixels_of(asked: InferRequest) -> list[int]:
    assert asked.images is not None
    assert asked.files == []
    assert asked.images.dtype == np.uint8
    assert asked.images.shape[1:] == INFO.image_shape
    return [int(value) for value in asked.images.ravel()]


@pytest.mark.parametrize(
    "data",
    [PIXELS, [PIXELS], [[[0], [1], [2]], [[3], [4], [5]]], [[[[0], [1], [2]], [[3], [4], [5]]]]],
    ids=["flat", "a row", "H×W×C", "N×H×W×C"],
)
def test_pixels_in_json_may_be_flat_or_nested(data: Any) -> None:
    assert pixels_of(parse(*request({"data": data}))) == PIXELS


def test_pixels_follow_the_json_as_they_are() -> None:
    two = {"shape": [2, 2, 3, 1], "parameters": {"binary_data_size": 12}}
    asked = parse(*request(two, bytes([*PIXELS, *PIXELS[::-1]])))
    assert pixels_of(asked) == PIXELS + PIXELS[::-1]


@pytest.mark.parametrize("shape", [[2], [2, 1]])
def test_files_come_as_a_bytes_tensor(shape: list[int]) -> None:
    data = bytes_tensor(FILE, b"second")
    tensor = {
        "datatype": "BYTES",
        "shape": shape,
        "parameters": {"binary_data_size": len(data)},
    }
    assert parse(*request(tensor, data)).files == [FILE, b"second"]
    text = [base64.b64encode(file).decode() for file in (FILE, b"second")]
    asked = parse(*request({"datatype": "BYTES", "shape": shape, "data": text}))
    assert asked.files == [FILE, b"second"]
    assert asked.images is None


@pytest.mark.parametrize("body", [FILE, b"\x89PNG\r\n\x1a\n....", b"RIFF....WEBP"])
def test_a_raw_body_that_begins_like_a_file_is_one(body: bytes) -> None:
    asked = parse(body, 0)
    assert (asked.files, asked.images, asked.outputs[0].binary) == ([body], None, True)


def test_any_other_raw_body_is_one_image_of_pixels() -> None:
    asked = parse(bytes(PIXELS), 0)
    assert pixels_of(asked) == PIXELS
    assert asked.outputs[0].binary
    riff = b"RIFF" + bytes(2)  # a WebP says so later
    assert pixels_of(parse(riff, 0)) == list(riff)
    with pytest.raises(BadRequestError, match=r"the 6 bytes of UINT8 2×3×1 as .* has 7 bytes"):
        parse(bytes(7), 0)


def test_what_is_asked_beside_the_tensor_is_read() -> None:
    asked = parse(*request())
    assert (asked.id, asked.priority, asked.timeout_s) == ("", 0, None)
    assert (asked.outputs[0].binary, asked.outputs[0].classes) == (False, None)
    parameters = {"priority": 2, "timeout": 1500, "binary_data_output": True, "mine": [1]}
    asked = parse(*request(id="7", parameters=parameters))
    assert (asked.id, asked.priority, asked.timeout_s) == ("7", 2, 0.0015)
    assert asked.outputs[0].binary
    assert parse(*request(parameters={"timeout": 0})).timeout_s is None


def test_an_output_says_more_than_the_request() -> None:
    def wanted(parameters: Any, binary: bool) -> tuple[bool, int | None]:
        output = {"name": "scores", "parameters": parameters}
        asked = parse(*request(outputs=[output], parameters={"binary_data_output": binary}))
        return asked.outputs[0].binary, asked.outputs[0].classes

    assert wanted({}, True) == (True, None)
    assert wanted({"binary_data": False}, True) == (False, None)
    assert wanted({"binary_data": True, "classification": 2}, False) == (True, 2)
    assert wanted({"classification": 0}, False) == (False, None)
    assert not parse(*request(outputs=[])).outputs[0].binary


BYTES = {"datatype": "BYTES", "shape": [1]}
NESTING = "one flat list, or lists nested as the shape"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ((b"", None), "failed to parse the request JSON"),
        ((b'{"inputs"', None), "failed to parse the request JSON"),
        ((b'{"id": NaN}', None), "failed to parse the request JSON"),
        ((b'{"inputs": ' + b"[" * 10_000, None), "Expected `object`, got `array`"),
        ((b'{"other": ' + b"[" * 10_000, None), "it is nested too deeply"),
        ((b'{"inputs": [{"data": ' + b"[" * 10_000, None), "it is nested too deeply"),
        ((b'{"id": "\xff", "inputs": []}', None), "failed to parse the request JSON"),
        ((b"[]", None), "Expected `object`, got `array`"),
        ((b"{}", 3), "Inference-Header-Content-Length is 3, but the body has 2 bytes"),
        ((b"{}", None), "missing required field `inputs`"),
        ((FILE, None), "is a JPEG, not JSON; .*-Content-Length: 0"),
        ((FILE + b"{" * 999, None), "is a JPEG, not JSON"),
        (
            (request({"parameters": {"binary_data_size": 6}}, bytes(6))[0], None),
            "trailing characters .*; if binary data follow the JSON, set Inference-Header-Content-",
        ),
        ((b'{"inputs": [1]}', None), r"Expected `object`, got `int` - at `\$.inputs\[0\]`"),
        ((b'{"inputs": []}', None), "expected 1 input but got 0"),
        (request({"name": 7}), r"Expected `str`, got `int` - at `\$.inputs\[0\].name`"),
        (request({"datatype": "FP32"}), r"UINT8 grey pixels of shape \[n, 2, 3, 1\].* got FP32"),
        (request({"datatype": None}), r"Expected `str`, got `null` - at `\$.inputs\[0\].datatype`"),
        (request({"shape": [1, 1, 2, 3]}), r"of shape \[1, 1, 2, 3\]"),
        (request({"shape": [True, 2, 3, 1]}), "Expected `int`, got `bool`"),
        (request({"shape": None}), "Expected `array`, got `null`"),
        (request({"data": None}), "has no `data`"),
        (request({"data": "012345"}), "has no `data`"),
        (request({"data": [[1, 2], 3]}), "got 3 elements, expecting 6"),
        (
            request({"data": [PIXELS[:2], *PIXELS[2:]]}),
            NESTING,
        ),
        (
            request({"data": [PIXELS[:2], PIXELS[2:]]}),
            NESTING,
        ),
        (
            request({"data": [[[[[p] for p in PIXELS]]]]}),
            NESTING,
        ),
        (
            request({"data": [[], [], [], [], [], []]}),
            NESTING,
        ),
        (request({"data": []}), "got 0 elements, expecting 6"),
        (request({"data": [*PIXELS[:5], 256]}), "whole numbers from 0 to 255"),
        (request({"data": [*PIXELS[:5], -1]}), "whole numbers from 0 to 255"),
        (request({"data": [*PIXELS[:5], 0.5]}), "whole numbers from 0 to 255"),
        (request({"data": [*PIXELS[:5], True]}), "whole numbers from 0 to 255"),
        (request({"data": [*PIXELS[:5], "1"]}), "whole numbers from 0 to 255"),
        (request({"data": [*PIXELS[:5], 10**40]}), "whole numbers from 0 to 255"),
        (request({**BYTES, "data": ["no base64!"]}), "element 1 of `data` is not base64"),
        (request({**BYTES, "data": [7]}), "must be a list of strings, each a file in base64"),
        (request({**BYTES, "data": ["é"]}), "element 1 of `data` is not base64"),
        (request({**BYTES, "data": []}), "got 0 elements, expecting 1"),
        (request({"parameters": {"binary_data_size": 5}}, bytes(5)), "got 5 elements, expecting 6"),
        (request({"parameters": {"binary_data_size": 5}}, bytes(6)), "size is 5, but 6 bytes"),
        (request({"parameters": {"binary_data_size": 6}}), "size is 6, but 0 bytes"),
        (
            request({"parameters": {"binary_data_size": -6}}, bytes(6)),
            "`int` >= 0.*data_size",
        ),
        (request({"data": PIXELS}, bytes(6)), "6 bytes follow the JSON, but no tensor has"),
        (request({"parameters": []}), "Expected `object . null`, got `array`"),
        (request({"parameters": {"shared_memory_region": 7}}), "Expected `str . null`, got `int`"),
        (request(id=7), r"Expected `str`, got `int` - at `\$.id`"),
        (
            request(parameters={"timeout": 2**64}),
            r"`int` <= .* at `\$.parameters.timeout`",
        ),
        (request(outputs={}), "Expected `array . null`, got `object`"),
        (request(outputs=[1]), "Expected `object`, got `int`"),
    ],
)
def test_what_makes_no_sense_is_refused_and_named(
    body: tuple[bytes, int | None], says: str
) -> None:
    with pytest.raises(ServiceError, match=says) as refused:
        parse(*body)
    assert refused.value.code == (413 if "at most" in says else 400)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    "body",
    [
        request({"parameters": {"shared_memory_region": "r"}}),
        request(outputs=[{"name": "scores", "parameters": {"shared_memory_region": "r"}}]),
    ],
    ids=["input", "output"],
)
def test_shared_memory_is_refused_where_it_is_off(body: tuple[bytes, int | None]) -> None:
    with pytest.raises(UnsupportedError, match="start the server with --shared-memory"):
        parse(*body)


def test_an_empty_list_of_outputs_asks_for_the_scores() -> None:
    assert parse(*request(outputs=[])).outputs == [WantedOutput("scores")]


@pytest.mark.parametrize(
    ("data", "n", "says"),
    [
        (b"", 1, "ends before element 1 of 1"),
        (bytes_tensor(FILE)[:3], 1, "ends before element 1 of 1"),
        (
            bytes_tensor(FILE)[:-1],
            1,
            f"should have {len(FILE)} bytes, but {len(FILE) - 1} are left",
        ),
        (bytes_tensor(FILE), 2, "ends before element 2 of 2"),
        (bytes_tensor(FILE, FILE), 1, "bytes are left after the 1 elements"),
        (bytes_tensor(FILE, b""), 2, "element 2 .* is empty"),
        (b"\xff\xff\xff\xff", 1, "should have 4294967295 bytes, but 0 are left"),
    ],
)
def test_a_bytes_tensor_that_does_not_add_up_is_refused(data: bytes, n: int, says: str) -> None:
    tensor = {"datatype": "BYTES", "shape": [n], "parameters": {"binary_data_size": len(data)}}
    with pytest.raises(BadRequestError, match=says):
        parse(*request(tensor, data))


def test_json_is_bounded() -> None:
    with pytest.raises(ServiceError, match="send tensors as binary data") as refused:
        parse(b" " * (MAX_JSON_BYTES + 1))
    assert refused.value.code == 413
    # What is binary does not count.
    head, length = request({"parameters": {"binary_data_size": MAX_JSON_BYTES}}, b"")
    with pytest.raises(BadRequestError, match="expecting 6"):
        parse(head + bytes(MAX_JSON_BYTES), length)


def test_a_long_string_among_numbers_does_not_become_a_huge_array() -> None:
    data = ["x" * 1_000_000] + ["y"] * 5
    with pytest.raises(BadRequestError, match="whole numbers"):
        parse(*request({"data": data}))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=4)
    | st.sampled_from(["image", "scores", "UINT8", "BYTES", 1, 6]),
    lambda inner: st.lists(inner, max_size=6)
    | st.dictionaries(
        st.sampled_from(
            ["inputs", "outputs", "name", "datatype", "shape", "data", "parameters", "id",
             "binary_data_size", "classification", "priority", "timeout"]
        ),
        inner,
        max_size=5,
    ),
    max_leaves=20,
)  # fmt: skip


@given(json_values, st.binary(max_size=20), st.booleans())
def test_whatever_comes_is_understood_or_refused(value: Any, tail: bytes, split: bool) -> None:
    head = json.dumps(value).encode()
    try:
        parse(head + tail, len(head) if split else None)
    except ServiceError as error:
        assert error.code in (400, 413)  # noqa: PT017  an answer, not a crash


@given(json_values, json_values, json_values)
def test_whatever_stands_in_a_tensor_is_understood_or_refused(a: Any, b: Any, c: Any) -> None:
    for datatype in ("UINT8", "BYTES"):
        body = request({"datatype": datatype, "shape": a, "data": b, "parameters": c}, id=a)
        try:
            parse(*body)
        except ServiceError as error:
            assert error.code in (400, 413)  # noqa: PT017  an answer, not a crash


# --- answers -------------------------------------------------------------------------------------

ROWS = [np.array(row, np.float32) for row in ([0.1, -2, 3], [5, 5, 4])]


def answer(
    rows: Sequence[NDArray[np.float32]] = ROWS, info: ModelInfo = INFO, name: str = "", **asked: Any
) -> tuple[Any, bytes]:
    """Return the JSON of an answer, and the bytes after it."""
    batch = rank(Results(np.stack(rows)), info.output)
    content, length = format_answer(
        InferRequest([], None, [WantedOutput("scores", **asked)], name), batch, info
    )
    return json.loads(content[:length]), b"" if length is None else content[length:]


def test_an_answer_in_json_has_every_score() -> None:
    head, tail = answer(name="a")
    (output,) = head.pop("outputs")
    assert head == {"id": "a", "model_name": "m", "model_version": "1"}
    assert output["data"] == [float(x) for row in ROWS for x in row]
    del output["data"]
    assert output == {"name": "scores", "datatype": "FP32", "shape": [2, 3]}
    assert tail == b""
    assert "id" not in answer()[0]


def test_a_binary_answer_has_the_scores_after_the_json() -> None:
    head, tail = answer(binary=True)
    assert head["outputs"][0]["parameters"] == {"binary_data_size": 24}
    assert "data" not in head["outputs"][0]
    assert np.frombuffer(tail, "<f4").tolist() == np.concatenate(ROWS).tolist()


def test_a_classification_names_the_largest_scores() -> None:
    head, _ = answer(classes=2)
    (output,) = head["outputs"]
    assert (output["datatype"], output["shape"]) == ("BYTES", [2, 2])
    assert output["data"] == [
        "3.000000:2:owl",
        "0.100000:0:cat",
        "5.000000:0:cat",  # of equals the lower index
        "5.000000:1:dog",
    ]
    head, tail = answer(ROWS[:1], binary=True, classes=1)
    assert tail == bytes_tensor(b"3.000000:2:owl")
    assert head["outputs"][0]["parameters"] == {"binary_data_size": len(tail)}


def test_a_classification_of_more_than_there_are_names_all_and_needs_no_labels() -> None:
    unnamed = ModelInfo("m", "1", (2, 3, 1), "scores", OutputKind.LOGITS, labels=())
    head, _ = answer(ROWS[:1], unnamed, classes=100)
    assert head["outputs"][0]["shape"] == [1, 3]
    assert head["outputs"][0]["data"] == ["3.000000:2", "0.100000:0", "-2.000000:1"]


@pytest.mark.parametrize("asked", [{}, {"binary": True}, {"classes": 1}])
def test_scores_that_are_no_numbers_are_no_answer(asked: dict[str, Any]) -> None:
    with pytest.raises(EngineFailedError):
        answer([ROWS[0], np.array([1, np.nan, 1], np.float32)], **asked)
