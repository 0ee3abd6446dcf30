"""ModelInferRequests without gRPC: how they are read, and which are refused."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models import ChannelOrder, OutputKind
from service.api.v2.interpretation import InferRequest
from service.errors import BadRequestError, PayloadTooLargeError, ServiceError
from service.grpc.infer_request import encoded_varint, infer_request, read_message
from service.grpc.messages import message_class
from service.hosting.model_info import ModelInfo

INFO = ModelInfo(
    *("m", "1", (2, 3, 1), "scores", OutputKind.LOGITS, ("cat", "dog", "owl"), ChannelOrder.GREY),
    tensor="x",
    tensor_shape=(1, 2, 3),
)
PIXELS = [0, 1, 127, 128, 200, 255]
PIXELS_SHAPE = [1, 2, 3, 1]
_Request = message_class("inference.ModelInferRequest")


def request(
    contents: Mapping[str, Any] | None = None,
    *raw: bytes,
    name: str = "image",
    datatype: str = "UINT8",
    shape: Any = PIXELS_SHAPE,
    parameters: Mapping[str, Any] | None = None,
    output: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Any:
    """Return a request for one input."""
    asked = _Request(model_name="m", raw_input_contents=raw, **fields)
    tensor = asked.inputs.add(name=name, datatype=datatype, shape=shape)
    for field, values in (contents or {}).items():
        getattr(tensor.contents, field).extend(values)
    for parameter, (kind, value) in (parameters or {}).items():
        setattr(asked.parameters[parameter], kind, value)
    if output is not None:
        wanted = asked.outputs.add(name="scores")
        for parameter, (kind, value) in output.items():
            setattr(wanted.parameters[parameter], kind, value)
    return asked


def read(data: bytes) -> InferRequest:
    return infer_request(read_message(data), INFO, max_images=4)


def understood(asked: Any) -> InferRequest:
    return read(asked.SerializeToString())


def test_numbers_come_one_by_one_or_in_parts_too() -> None:
    """Protobuf lets every writer use these encodings."""
    one_by_one = b"".join(b"\x20" + encoded_varint(pixel) for pixel in PIXELS)
    parts = b"\x22\x03" + bytes(PIXELS[:3]) + b"\x22\x06\x80\x01\xc8\x01\xff\x01"
    for contents in (one_by_one, parts):
        tensor = (
            request().inputs[0].SerializeToString() + b"\x2a" + bytes([len(contents)]) + contents
        )
        images = read(b"\x2a" + bytes([len(tensor)]) + tensor).images
        assert images is not None
        assert images.ravel().tolist() == PIXELS


@given(st.lists(st.integers(0, 255), min_size=6, max_size=6))
def test_every_number_is_read_as_protobuf_writes_it(pixels: list[int]) -> None:
    images = understood(request({"uint_contents": pixels})).images
    assert images is not None
    assert images.ravel().tolist() == pixels


def test_long_contents_are_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for piece in range(2, 9):  # numbers of two bytes lie across their ends
        monkeypatch.setattr("service.grpc.infer_request._LONG", piece)
        images = understood(request({"uint_contents": PIXELS})).images
        assert images is not None
        assert images.ravel().tolist() == PIXELS


def test_what_is_asked_beside_the_tensor_is_read() -> None:
    asked = understood(request({"uint_contents": PIXELS}))
    assert (asked.id, asked.priority, asked.timeout_s) == ("", 0, None)
    assert (asked.outputs[0].binary, asked.outputs[0].classes) == (True, None)
    parameters: Any = {
        "priority": ("uint64_param", 2),
        "timeout": ("int64_param", 1500),
        "binary_data_output": ("bool_param", False),
        "mine": ("double_param", 1.5),
        "empty": ("string_param", ""),
    }
    output: Any = {"classification": ("int64_param", 2)}
    asked = understood(
        request({"uint_contents": PIXELS}, parameters=parameters, output=output, id="7")
    )
    assert (asked.id, asked.priority, asked.timeout_s) == ("7", 2, 0.0015)
    assert (asked.outputs[0].binary, asked.outputs[0].classes) == (False, 2)


CONTENTS = {"uint_contents": PIXELS}


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (_Request(), "expected 1 input but got 0"),
        (request(), "input 'image' has no `data`: send raw_input_contents, or contents"),
        (request(CONTENTS, bytes(6)), "both raw_input_contents and contents"),
        (request(None, bytes(6), bytes(6)), "2 raw_input_contents for 1 inputs"),
        (request({"uint_contents": [*PIXELS[:5], 256]}), "whole numbers from 0 to 255"),
        (request({"uint_contents": [*PIXELS[:5], 2**32 - 1]}), "whole numbers from 0 to 255"),
        (request({"int_contents": PIXELS}), "in field 2; they must be in uint_contents"),
        (request({"fp32_contents": [0.5] * 6}), "in fp32_contents; they must be in uint_contents"),
        (request({**CONTENTS, "bytes_contents": [b""]}), "in bytes_contents; they must be in uint"),
        (request({"bytes_contents": [b"x"]}, datatype="BYTES", shape=[2]), "got 1 elements"),
        (
            request(CONTENTS, parameters={"priority": ("string_param", "1")}),
            "Expected `int`, got `str`",
        ),
        (request(CONTENTS, parameters={"timeout": ("int64_param", -1)}), "`int` >= 0"),
    ],
)
def test_what_makes_no_sense_is_refused_and_named(asked: Any, says: str) -> None:
    with pytest.raises(ServiceError, match=says) as refused:
        understood(asked)
    assert refused.value.code == (413 if "at most" in says else 400)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\x80", "a number does not end"),
        (b"\xff" * 11, "a number does not end"),
        (b"\x0a\x05m", "field 1 should have 5 bytes, but 1 are left"),
        (b"\x2a\x02\x0a\x05", "field 1 should have 5 bytes, but 0 are left"),
        (b"\x0b\x0c", "a field has the unsupported wire type 3"),
        (b"\x00\x00", "field 0"),
        (b"\x0d\0\0", "field 1 should have 4 bytes, but 2 are left"),
        (b"\x0a\x01\xff", "the message is not a valid ModelInferRequest"),
    ],
)
def test_what_is_malformed_is_refused(data: bytes, says: str) -> None:
    with pytest.raises(BadRequestError, match=says):
        read(data)


@pytest.mark.parametrize(
    "data",
    [
        b"\x2a\0" * 257,
        b"\x3a\0" * 257,
        b"\x78\0" * 257,
        b"\x2a\x82\x04" + b"\x0a\0" * 257,
        b"\x1a" + encoded_varint(70_000) + bytes(70_000),
        request(id="i" * 70_000).SerializeToString(),
        request(shape=[1] * 70_000).SerializeToString(),
    ],
    ids=["inputs", "raw", "unknown", "an input's", "an id", "an id and more", "a shape"],
)
def test_more_than_any_request_needs_is_refused_before_it_is_parsed(data: bytes) -> None:
    with pytest.raises(PayloadTooLargeError, match="send"):
        read_message(data)


@pytest.mark.parametrize(
    "data",
    [
        b"\x2a\0" * 256,
        b"\x2a\x80\x04" + b"\x0a\0" * 256,
        b"\x1a" + encoded_varint(65_532) + bytes(65_532),
    ],
    ids=["fields", "an input's fields", "bytes"],
)
def test_as_much_as_is_said_is_parsed(data: bytes) -> None:
    read_message(data)


def test_as_many_files_are_read_as_images_may_be() -> None:
    files = [b"%d" % number for number in range(400)]
    asked = request({"bytes_contents": files}, datatype="BYTES", shape=[400])
    message = read_message(asked.SerializeToString())
    assert infer_request(message, INFO, max_images=400).files == files


@given(st.binary(max_size=60))
def test_whatever_comes_is_understood_or_refused(data: bytes) -> None:
    try:
        read(data)
    except ServiceError as error:
        assert error.code in (400, 413)  # noqa: PT017  an answer, not a crash


@given(st.data())
def test_whatever_befalls_a_request_it_is_understood_or_refused(data: st.DataObject) -> None:
    sent = bytearray(
        request(CONTENTS, output={"classification": ("int64_param", 1)}).SerializeToString()
    )
    for _ in range(data.draw(st.integers(1, 3))):
        sent[data.draw(st.integers(0, len(sent) - 1))] = data.draw(st.integers(0, 255))
    try:
        read(bytes(sent))
    except ServiceError as error:
        assert error.code in (400, 413)  # noqa: PT017


def test_the_fields_of_all_inputs_are_bounded_together() -> None:
    """Every field takes time on the event loop, though it be empty."""
    for inputs, fields in ((255, 256), (2, 129), (1, 257)):
        tensor = b"\x2a\0" * fields
        data = (b"\x2a" + encoded_varint(len(tensor)) + tensor) * inputs
        with pytest.raises(PayloadTooLargeError, match="the inputs have more than 256 fields"):
            read_message(data)
    tensor = b"\x2a\0" * 256
    assert len(read_message(b"\x2a" + encoded_varint(len(tensor)) + tensor).typed[0].parts) == 256


def test_the_fields_of_all_contents_are_bounded_together() -> None:
    tensor = request().inputs[0].SerializeToString() + (b"\x2a\x80\x04" + b"\x42\0" * 256) * 2
    with pytest.raises(PayloadTooLargeError, match="the contents have more than 260 fields"):
        read(b"\x2a" + encoded_varint(len(tensor)) + tensor)
