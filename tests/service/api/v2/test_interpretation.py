"""The meaning of a request, with one list of cases for JSON, JSON with binary data, and
protobuf."""

import base64
import json
import math
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from models import ChannelOrder, OutputKind
from service.api.v2.interpretation import InferRequest
from service.api.v2.parse import parse_request
from service.errors import ServiceError
from service.grpc.infer_request import infer_request, read_message
from service.grpc.messages import message_class
from service.hosting.model_info import ModelInfo

INFO = ModelInfo(
    *("m", "1", (2, 3, 1), "scores", OutputKind.LOGITS, ("cat", "dog", "owl"), ChannelOrder.GREY),
    tensor="x",
    tensor_shape=(1, 2, 3),
)
MOST = 4
PIXELS = [0, 1, 127, 128, 200, 255]
FLOATS = [-1.5, 0.0, 0.25, 2.0, 3.0, 4.25]

_CONTENTS = {"UINT8": "uint_contents", "FP32": "fp32_contents", "BYTES": "bytes_contents"}

# A request as JSON has it; its one tensor's `data` are numbers, or files in bytes.
Asked = Mapping[str, Any]


def asked(tensor: Mapping[str, Any] | None = None, **fields: Any) -> Asked:
    """Return a request for one image of pixels, with some parts replaced."""
    image = {"name": "image", "datatype": "UINT8", "shape": [1, 2, 3, 1], "data": PIXELS}
    return {"inputs": [{**image, **(tensor or {})}], **fields}


def by_json(request: Asked) -> InferRequest:
    """Return how Convoy reads the request as JSON."""
    text = json.dumps(request, default=_base64)
    return parse_request(text.encode(), None, INFO, max_images=MOST)


def by_binary(request: Asked) -> InferRequest:
    """Return how Convoy reads the request with the tensor after the JSON."""
    (tensor,) = request["inputs"]
    data = _raw(tensor)
    own = {**tensor, "parameters": {"binary_data_size": len(data)}}
    del own["data"]
    head = json.dumps({**request, "inputs": [own]}).encode()
    return parse_request(head + data, len(head), INFO, max_images=MOST)


def by_protobuf(request: Asked) -> InferRequest:
    """Return how Convoy reads the request as a message with typed contents."""
    message, contents = _message(request)
    (tensor,) = request["inputs"]
    getattr(contents, _CONTENTS[tensor["datatype"]]).extend(tensor["data"])
    return infer_request(read_message(message.SerializeToString()), INFO, max_images=MOST)


def by_raw_protobuf(request: Asked) -> InferRequest:
    """Return how Convoy reads the request as a message with raw contents."""
    message, _ = _message(request)
    message.raw_input_contents.append(_raw(request["inputs"][0]))
    return infer_request(read_message(message.SerializeToString()), INFO, max_images=MOST)


FORMS = [by_json, by_binary, by_protobuf, by_raw_protobuf]
every_form = pytest.mark.parametrize("understood", FORMS)
Form = Callable[[Asked], InferRequest]


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _raw(tensor: Mapping[str, Any]) -> bytes:
    if tensor["datatype"] == "BYTES":
        return b"".join(struct.pack("<I", len(file)) + file for file in tensor["data"])
    kind = {"UINT8": "u1", "FP32": "<f4"}[tensor["datatype"]]
    with np.errstate(over="ignore"):  # where what is sent is infinite
        return np.array(tensor["data"]).astype(kind).tobytes()


def _message(request: Asked) -> tuple[Any, Any]:
    message = message_class("inference.ModelInferRequest")(model_name="m", id=request.get("id", ""))
    (tensor,) = request["inputs"]
    made = message.inputs.add(**{key: tensor[key] for key in ("name", "datatype", "shape")})
    _set(message.parameters, request.get("parameters", {}))
    for output in request.get("outputs", ()):
        _set(message.outputs.add(name=output["name"]).parameters, output.get("parameters", {}))
    return message, made.contents


def _set(parameters: Any, values: Mapping[str, Any]) -> None:
    kinds = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
    for name, value in values.items():
        setattr(parameters[name], kinds[type(value)], value)


@every_form
def test_pixels_tensors_and_files_are_the_same_in_every_form(understood: Form) -> None:
    pixels = understood(asked()).images
    assert pixels is not None
    assert (str(pixels.dtype), pixels.shape) == ("uint8", (1, 2, 3, 1))
    assert pixels.ravel().tolist() == PIXELS
    own = {"name": "x", "datatype": "FP32", "shape": [1, 1, 2, 3], "data": FLOATS}
    tensors = understood(asked(own)).images
    assert tensors is not None
    assert (str(tensors.dtype), tensors.shape) == ("float32", (1, 1, 2, 3))
    assert tensors.ravel().tolist() == FLOATS
    for shape in ([2], [2, 1]):
        files = understood(asked({"datatype": "BYTES", "shape": shape, "data": [b"one", b"2"]}))
        assert (files.files, files.images) == ([b"one", b"2"], None)


@every_form
def test_what_is_asked_beside_the_tensor_is_read(understood: Form) -> None:
    parameters = {"priority": 2, "timeout": 1500, "binary_data_output": True, "mine": 1.5}
    outputs = [{"name": "scores", "parameters": {"classification": 2}}]
    found = understood(asked(id="7", parameters=parameters, outputs=outputs))
    assert (found.id, found.priority, found.timeout_s) == ("7", 2, 0.0015)
    assert (found.outputs[0].binary, found.outputs[0].classes) == (True, 2)
    assert understood(asked(parameters={"timeout": 0})).timeout_s is None
    outputs = [{"name": "scores", "parameters": {"binary_data": False, "classification": 0}}]
    found = understood(asked(outputs=outputs, parameters={"binary_data_output": True}))
    assert (found.outputs[0].binary, found.outputs[0].classes) == (False, None)


FILES = {"datatype": "BYTES", "shape": [1], "data": [b"x"]}
TENSOR = {"name": "x", "datatype": "FP32", "shape": [1, 1, 2, 3], "data": FLOATS}
HELD = {"shared_memory_region": "r"}


# What JSON is refused with for a number that FP32 cannot hold, and for what is no number.
TOO_LARGE, NO_NUMBER = "'x' has a number that is too large for FP32", "JSON is malformed: invalid"


@every_form
@pytest.mark.parametrize(
    ("number", "says"),
    [
        (1e39, TOO_LARGE),
        (-1e39, TOO_LARGE),
        (math.inf, NO_NUMBER),
        (-math.inf, NO_NUMBER),
        (math.nan, ""),
    ],
)
def test_a_number_that_is_not_finite_is_taken_as_it_is_but_not_in_json(
    understood: Form, number: float, says: str
) -> None:
    """Triton accepts such numbers. Its perf_analyzer sends NaN even in JSON, although JSON does not
    define NaN."""
    numbers = [*FLOATS[1:], number]
    request = asked({**TENSOR, "data": numbers})
    if understood is by_json and not math.isnan(number):
        with pytest.raises(ServiceError, match=says) as refused:
            understood(request)
        assert refused.value.code == 400
        return
    found = understood(request).images
    assert found is not None
    assert (str(found.dtype), found.shape) == ("float32", (1, 1, 2, 3))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(found.ravel(), np.array(numbers).astype(np.float32))


@every_form
@pytest.mark.parametrize(
    ("request_", "code", "says"),
    [
        (asked({"name": "y"}), 400, "unexpected inference input 'y' for model 'm'.*image"),
        (asked({**FILES, "name": "x"}), 400, "got BYTES of shape"),
        (
            asked({**TENSOR, "name": "image"}),
            400,
            r"pixels of shape \[n, 2, 3, 1\].* got FP32",
        ),
        (asked({**TENSOR, "shape": [1, 2, 3, 1]}), 400, r"'x' takes FP32 of shape \[n, 1, 2, 3\]"),
        (asked({"shape": [1] * 9}), 400, r"`array` of length <= 8 - at `\$.inputs\[0\].shape`"),
        (asked({"shape": [2, 3, 1]}), 400, r"of shape \[2, 3, 1\]"),
        (asked({"shape": []}), 400, "got UINT8 of shape"),
        (asked({"shape": [0, 2, 3, 1]}), 400, r"of shape \[0, 2, 3, 1\]"),
        (asked({"shape": [-1, 2, 3, 1]}), 400, r"`int` >= 0 - at `\$.inputs\[0\].shape\[0\]`"),
        (asked({"shape": [5, 2, 3, 1]}), 413, "the request has 5 images; at most 4"),
        (asked({"data": PIXELS[:5]}), 400, "got 5 elements, expecting 6"),
        (asked({"data": [*PIXELS, 7]}), 400, "got 7 elements, expecting 6"),
        (asked({**TENSOR, "data": FLOATS[1:]}), 400, "got 5 elements, expecting 6"),
        (asked({**FILES, "data": [b""]}), 400, "element 1 .* is empty"),
        (asked({**FILES, "shape": []}), 400, "got BYTES of shape"),
        (asked({**FILES, "shape": [1, 2]}), 400, "got BYTES of shape"),
        (asked({**FILES, "shape": [0]}), 400, "got BYTES of shape"),
        (asked(parameters={"priority": -1}), 400, r"`int` >= 0 - at `\$.parameters.priority`"),
        (asked(parameters={"priority": True}), 400, "Expected `int`, got `bool`"),
        (asked(parameters={"timeout": "soon"}), 400, "Expected `int`, got `str`"),
        (asked(parameters={"binary_data_output": 1}), 400, "Expected `bool`, got `int`"),
        (asked(outputs=[{"name": "logits"}]), 400, "inference output 'logits'.*'scores'"),
        (asked(outputs=[{"name": "scores"}] * 2), 400, "named 2 times; name each output once"),
        (asked(outputs=[{"name": "embedding"}]), 400, "its output is 'scores'"),
        (
            asked(outputs=[{"name": "scores", "parameters": {"classification": 1.5}}]),
            *(400, "got `float`"),
        ),
        (asked(outputs=[{"name": "scores", "parameters": HELD}]), 501, "--shared-memory"),
    ],
)
def test_what_makes_no_sense_is_refused_alike(
    understood: Form, request_: Asked, code: int, says: str
) -> None:
    with pytest.raises(ServiceError, match=says) as refused:
        understood(request_)
    assert refused.value.code == code
