"""Contains what the tests of tritonclient share: inputs, and checks of answers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tritonclient.http as triton

from tests.support.servers.several_models import SAMPLES

UNKNOWN = "Request for unknown model: 'no' is not found"


def files_input(*files: bytes, shape: list[int] | None = None) -> Any:
    """Return an input of encoded images for the server to decode."""
    tensor = triton.InferInput("image", shape or [len(files)], "BYTES")
    elements = np.array(files, dtype=np.object_).reshape(tensor.shape())
    tensor.set_data_from_numpy(elements, binary_data=True)
    return tensor


def pixels_input(pixels: Any, *, binary: bool = True) -> Any:
    """Return an input of pixels as the engine takes them."""
    tensor = triton.InferInput("image", list(pixels.shape), "UINT8")
    tensor.set_data_from_numpy(pixels, binary_data=binary)
    return tensor


def samples(*digits: int) -> list[bytes]:
    """Return the files of the built-in model's sample images."""
    return [SAMPLES[digit].read_bytes() for digit in digits]


def files(*digits: int) -> list[Any]:
    """Return the inputs of a request with sample images."""
    return [files_input(*samples(*digits))]


def shows(digit: int) -> Callable[[Any], None]:
    """Return a check that the answer names this digit."""

    def check(answer: Any) -> None:
        assert answer.as_numpy("logits").argmax(axis=1).tolist() == [digit]

    return check
