"""Tensors and pixels of the V2 protocol, as they reach the engine."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from models import ChannelOrder
from service.api.v2.parse import parse_request
from service.errors import BadRequestError
from tests.service.api.v2.test_parse import INFO, parse, request


def tensor(values: list[Any], **fields: Any) -> dict[str, Any]:
    """Return the model's own input, two images of 1×2×3."""
    own = {"name": "x", "datatype": "FP32", "shape": [2, 1, 2, 3], "data": values}
    return {**own, **fields}


VALUES = [-1.5, 0, 1e-3, 2, 3, 4.25, *range(6)]


@pytest.mark.parametrize("nested", [False, True])
def test_the_models_own_input_is_taken_as_it_is_in_json(nested: bool) -> None:
    data = np.array(VALUES).reshape(2, 1, 2, 3).tolist() if nested else VALUES
    images = parse(*request(tensor(data))).images
    assert images is not None
    assert images.dtype == np.dtype(np.float32)
    assert images.shape == (2, 1, 2, 3)
    np.testing.assert_array_equal(images.ravel(), np.array(VALUES, np.float32))


def test_the_models_own_input_is_taken_as_it_is_in_binary() -> None:
    data = np.array(VALUES, "<f4").tobytes()
    own = tensor([], parameters={"binary_data_size": len(data)})
    del own["data"]
    images = parse(*request(own, data)).images
    assert images is not None
    np.testing.assert_array_equal(images.ravel(), np.array(VALUES, np.float32))


@pytest.mark.parametrize(
    ("own", "says"),
    [
        (tensor(VALUES[:-1]), "got 11 elements, expecting 12"),
        (tensor([*VALUES[:-1], 1e39]), "input 'x' has a number that is too large for FP32"),
        (tensor([*VALUES[:-1], "1"]), "`data` must be numbers"),
        (tensor([*VALUES[:-1], None]), "`data` must be numbers"),
        (tensor(VALUES, shape=[2, 2, 3, 1]), r"'x' takes FP32 of shape \[n, 1, 2, 3\], normalised"),
        (tensor(VALUES, name="image"), "'image' .* takes UINT8 grey pixels"),
        (tensor(VALUES, datatype="FP64"), "got FP64"),
        (tensor(VALUES, name="y"), "unexpected inference input 'y'.*'image' or 'x'"),
    ],
)
def test_a_tensor_that_is_not_the_models_is_refused(own: dict[str, Any], says: str) -> None:
    with pytest.raises(BadRequestError, match=says):
        parse(*request(own))


def test_beside_nan_a_whole_number_of_any_length_is_told_as_too_large() -> None:
    """With NaN, another parser reads the numbers, and reads whole numbers as Python's int."""
    head, data = request(tensor([*VALUES[:-1], math.nan]))
    for digits in (400, 5000):
        long = head.replace(b"-1.5", b"1" * digits)
        with pytest.raises(BadRequestError, match="'x' has a number that is too large for FP32"):
            parse(long, data)


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_a_tensor_that_ends_within_an_element_is_told_by_its_bytes(missing: int) -> None:
    data = np.array(VALUES, "<f4").tobytes()[:-missing]
    own = tensor([], parameters={"binary_data_size": len(data)})
    del own["data"]
    says = f"the tensor has {len(data)} bytes, .* multiple of the 4 bytes .* expecting 12 elements"
    with pytest.raises(BadRequestError, match=says):
        parse(*request(own, data))


def test_pixels_are_rgb_for_every_model() -> None:
    info = replace(INFO, image_shape=(1, 2, 3), channels=ChannelOrder.BGR)
    for body in (
        request({"shape": [1, 1, 2, 3]}),
        request({"shape": [1, 1, 2, 3], "parameters": {"binary_data_size": 6}}, bytes(range(6))),
        (bytes(range(6)), 0),
    ):
        images = parse_request(*body, info, max_images=4).images
        assert images is not None
        assert images.tolist() == [[[[2, 1, 0], [5, 4, 3]]]]


HALVES = replace(INFO, tensor_type="FP16")
BYTES = replace(INFO, tensor_type="UINT8")


@pytest.mark.parametrize("binary", [False, True])
def test_float16_is_taken_where_the_files_input_is_float16(binary: bool) -> None:
    own = tensor([0.1, *VALUES[1:]], datatype="FP16")
    data = None
    if binary:
        data = np.array(own.pop("data"), "<f2").tobytes()
        own["parameters"] = {"binary_data_size": len(data)}
    body, length = request(own, data)
    images = parse_request(body, length, HALVES, max_images=4).images
    assert images is not None
    assert images.dtype == np.dtype(np.float32)
    expected = np.array([0.1, *VALUES[1:]], np.float16).astype(np.float32)
    np.testing.assert_array_equal(images.ravel(), expected)
    with pytest.raises(BadRequestError, match=r"'x' takes FP32 .* got FP16"):
        parse(body, length)
    floats, _ = request(tensor(VALUES))
    images = parse_request(floats, None, HALVES, max_images=4).images
    assert images is not None
    np.testing.assert_array_equal(images.ravel(), np.array(VALUES, np.float32))


def test_a_number_beyond_float16_is_refused() -> None:
    body, _ = request(tensor([7e4, *VALUES[1:]], datatype="FP16"))
    with pytest.raises(BadRequestError, match="too large for FP16"):
        parse_request(body, None, HALVES, max_images=4)


def test_bytes_are_taken_where_the_files_input_is_uint8() -> None:
    body, _ = request(tensor(list(range(244, 256)), datatype="UINT8"))
    images = parse_request(body, None, BYTES, max_images=4).images
    assert images is not None
    assert (images.dtype, images.shape) == (np.dtype(np.float32), (2, 1, 2, 3))
    assert images.ravel().tolist() == list(range(244, 256))
    with pytest.raises(BadRequestError, match=r"'x' takes FP32 .* got UINT8"):
        parse(body)
    body, _ = request(tensor(VALUES, datatype="FP16"))
    with pytest.raises(BadRequestError, match=r"'x' takes UINT8 or FP32, pixels from 0 to 255,"):
        parse_request(body, None, BYTES, max_images=4)


def test_an_own_input_named_image_is_told_by_its_shape() -> None:
    info = replace(BYTES, tensor="image")
    body, _ = request({"shape": [1, 1, 2, 3]} | {"data": list(range(6))})
    images = parse_request(body, None, info, max_images=4).images
    assert images is not None
    assert (images.dtype, images.shape) == (np.dtype(np.float32), (1, 1, 2, 3))
    images = parse_request(*request(), info, max_images=4).images
    assert images is not None
    assert (images.dtype, images.shape) == (np.dtype(np.uint8), (1, 2, 3, 1))
