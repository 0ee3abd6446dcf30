"""Tensors in system shared memory, with NVIDIA's client over both protocols."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.utils.shared_memory as memory
from tritonclient.utils import InferenceServerException

from tests.support.servers.several_models import CHANNELS
from tests.support.service.triton import (
    Tensor,
    TritonClient,
    Wanted,
    has_status,
    response_of,
    samples,
)

PIXELS = np.full((2, 4, 6, 3), (10, 20, 30), np.uint8)
_numbers = itertools.count()


@pytest.fixture
def region(client: TritonClient) -> Iterator[tuple[str, Any]]:
    """Yield a registered region of 4 kB: its name, and the handle with which tests access it."""
    name = f"convoy-region-{next(_numbers)}"
    handle = memory.create_shared_memory_region(name, f"/{name}", 4096)
    client.register_system_shared_memory(name, f"/{name}", 4096)
    try:
        yield name, handle
    finally:
        client.unregister_system_shared_memory(name)
        memory.destroy_shared_memory_region(handle)


def shared(client: TritonClient, tensor: Any, name: str, size: int, offset: int = 0) -> Any:
    """Return one of the client's inputs or outputs, placed in a region."""
    made = tensor.by(client.protocol)
    made.set_shared_memory(name, size, offset)
    return made


def test_pixels_are_read_and_scores_written(client: TritonClient, region: tuple[str, Any]) -> None:
    name, handle = region
    memory.set_shared_memory_region(handle, [PIXELS])
    inputs = [shared(client, Tensor("image", "UINT8", PIXELS.shape), name, PIXELS.nbytes)]
    outputs = [shared(client, Wanted("amount"), name, 24, 1024)]
    answer = client.own.infer(CHANNELS, inputs, outputs=outputs)
    (output,) = response_of(answer)["outputs"]
    assert output["shape"] == [2, 3]
    assert set(output["parameters"]) == {
        *("shared_memory_region", "shared_memory_byte_size", "shared_memory_offset")
    }
    assert "data" not in output
    scores = memory.get_contents_as_numpy(handle, np.float32, [2, 3], 1024)
    assert scores.tolist() == [[10, 20, 30]] * 2


def test_embeddings_are_written_beside_scores_in_the_answer(
    client: TritonClient, region: tuple[str, Any]
) -> None:
    name, handle = region
    image = Tensor("image", "UINT8", (1, 32, 32, 1), np.full((1, 32, 32, 1), 90, np.uint8))
    wanted = Wanted("embedding")
    inputs = [image.by(client.protocol)]
    scores = Wanted("logits").by(client.protocol)
    outputs = [shared(client, wanted, name, 2048), scores]
    answer = client.own.infer("digits", inputs, outputs=outputs)
    assert answer.as_numpy("logits").shape == (1, 10)
    written = memory.get_contents_as_numpy(handle, np.float32, [1, 512])
    sent = client.own.infer("digits", inputs, outputs=[wanted.by(client.protocol)])
    np.testing.assert_allclose(written, sent.as_numpy("embedding"), atol=1e-5)
    assert written.any()


def test_files_are_read_from_a_region(client: TritonClient, region: tuple[str, Any]) -> None:
    name, handle = region
    (file,) = samples(7)
    tensor = len(file).to_bytes(4, "little") + file
    memory.set_shared_memory_region(handle, [np.frombuffer(tensor, np.uint8)])
    inputs = [shared(client, Tensor("image", "BYTES", [1]), name, len(tensor))]
    assert client.own.infer("digits", inputs).as_numpy("logits").argmax() == 7


def test_a_region_is_listed(client: TritonClient, region: tuple[str, Any]) -> None:
    name, _ = region
    status = {"name": name, "key": f"/{name}", "offset": 0, "byte_size": 4096}
    assert client.get_system_shared_memory_status(name) == [status]
    assert status in client.get_system_shared_memory_status()
    assert "system_shared_memory" in client.get_server_metadata()["extensions"]


@pytest.mark.parametrize(
    ("size", "offset", "says"),
    [
        (144, 4000, "Invalid offset"),
        (5000, 0, "Invalid offset"),
        (143, 0, "got 143 elements, expecting 144"),
    ],
)
def test_what_is_not_in_the_region_is_refused(
    client: TritonClient, region: tuple[str, Any], size: int, offset: int, says: str
) -> None:
    image = Tensor("image", "UINT8", PIXELS.shape)
    with pytest.raises(InferenceServerException, match=says) as refused:
        client.own.infer(CHANNELS, [shared(client, image, region[0], size, offset)])
    assert has_status(refused.value, "400")
    with pytest.raises(InferenceServerException, match="Unable to find shared memory region"):
        client.own.infer(CHANNELS, [shared(client, image, "no", 144)])


def test_scores_that_do_not_fit_are_refused(client: TritonClient, region: tuple[str, Any]) -> None:
    inputs = [Tensor("image", "UINT8", PIXELS.shape, PIXELS).by(client.protocol)]
    outputs = [shared(client, Wanted("amount"), region[0], 23)]
    with pytest.raises(InferenceServerException, match="at least 24 bytes; got 23"):
        client.own.infer(CHANNELS, inputs, outputs=outputs)
