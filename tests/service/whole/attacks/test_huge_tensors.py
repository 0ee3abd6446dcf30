"""A tensor that overflows the model is refused with the reason. The other images of its batch have
the right scores."""

import http.client
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.service.whole.test_edge_process import Serving, serving
from tests.support import PATIENCE_S

DIGITS = "/v2/models/digits"
HUGE = 3.4e38


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving("--max-batch", 8) as running:
        yield running


def ask(server: Serving, tensor: NDArray[np.float32], **output: Any) -> tuple[int, Any]:
    """Return the status and the answer for [n, 1, 32, 32] numbers."""
    data = tensor.astype("<f4").tobytes()
    name = json.loads(server.read(DIGITS))["inputs"][0]["name"]
    own = {"name": name, "datatype": "FP32", "shape": list(tensor.shape)}
    inputs = [{**own, "parameters": {"binary_data_size": len(data)}}]
    head = json.dumps({"inputs": inputs, **output}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    with closing(
        http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
    ) as connection:
        connection.request("POST", f"{DIGITS}/infer", head + data, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())


def test_a_tensor_that_overflows_is_refused_with_the_reason(server: Serving) -> None:
    tensors = np.zeros((2, 1, 32, 32), np.float32)
    tensors[1] = HUGE
    tensors[1, 0, ::2] = -HUGE
    status, answer = ask(server, tensors)
    assert status == 422, answer
    assert "scores for tensor 2 of input" in answer["error"]
    assert "normalise them as the model expects" in answer["error"]
    counted = server.read("/metrics")
    assert 'status="422"' in counted
    assert 'status="500"' not in counted


def test_those_in_the_same_batch_stay_right(server: Serving) -> None:
    rng = np.random.default_rng(0)
    honest = [rng.random((1, 1, 32, 32), np.float32) for _ in range(6)]
    alone = [ask(server, tensor) for tensor in honest]
    assert {status for status, _ in alone} == {200}
    huge = np.full((1, 1, 32, 32), HUGE, np.float32)
    huge[0, 0, ::2] *= -1
    with ThreadPoolExecutor(8) as clients:
        for _ in range(20):
            asked = [*honest[:3], huge, *honest[3:], huge]
            answers = list(clients.map(lambda tensor: ask(server, tensor), asked))
            assert [answers.pop(7)[0], answers.pop(3)[0]] == [422, 422]
            for (status, answer), (_, expected) in zip(answers, alone, strict=True):
                assert status == 200
                np.testing.assert_allclose(
                    answer["outputs"][0]["data"], expected["outputs"][0]["data"], rtol=1e-5
                )
    batches = server.read(f"{DIGITS}/stats")
    assert any(
        each["batch_size"] > 1 for each in json.loads(batches)["model_stats"][0]["batch_stats"]
    )
