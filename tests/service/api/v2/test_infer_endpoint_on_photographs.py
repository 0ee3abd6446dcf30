"""A client of Triton gets from Convoy, for the same tensors, the same scores as from ONNX
Runtime."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnxruntime
import pytest

from models import load_classifier
from models.preprocessing import normalised
from service.images.prepare import ImageLimits, prepare_image
from tests.support import PATIENCE_S
from tests.support.networks import SHARED, SQUEEZENET, needs_shared
from tests.support.servers.several_models import announced
from tests.support.service.triton import Tensor, files_input, pixels_input, triton_client

pytestmark = needs_shared
PHOTOGRAPHS = sorted((SHARED / "data/images").glob("*.JPEG"))[:15]


@pytest.fixture(scope="module")
def addresses() -> Iterator[list[str]]:
    """Yield the addresses at which a server listens for HTTP and for gRPC."""
    with announced(SQUEEZENET, "--preset", "caffe", "--grpc-port", "0") as line:
        yield re.findall(r"127\.0\.0\.1:\d+", line)[:2]


def test_tensors_pixels_files_and_v1_agree_on_photographs(addresses: list[str]) -> None:
    assert len(PHOTOGRAPHS) == 15
    classifier = load_classifier(SQUEEZENET, overrides={"preset": "caffe"})
    meaning = classifier.preprocessing
    session = onnxruntime.InferenceSession(classifier.network.proto.SerializeToString())
    bgr = np.stack([_decoded(file, meaning) for file in PHOTOGRAPHS])
    tensors = normalised(bgr, meaning)
    (expected,) = session.run(None, {session.get_inputs()[0].name: tensors})
    expected = expected.reshape(len(tensors), -1)
    best = expected.argmax(axis=1)
    with (
        triton_client("http", addresses[0]) as by_http,
        triton_client("grpc", addresses[1]) as by_grpc,
        httpx.Client(base_url=f"http://{addresses[0]}", timeout=PATIENCE_S) as http,
    ):
        (own,) = by_http.get_model_metadata(SQUEEZENET.stem)["inputs"]
        assert (own["datatype"], own["shape"]) == ("FP16", [-1, 3, 224, 224])
        for places in np.array_split(np.arange(15), 3):
            rgb = np.ascontiguousarray(bgr[places][..., ::-1])
            files = [PHOTOGRAPHS[place].read_bytes() for place in places]
            clients = [by_http, by_grpc] if places[0] == 0 else [by_http]
            scores = [
                client.infer(SQUEEZENET.stem, [sent]).as_numpy(classifier.network.graph.outputs[0])
                for sent in (
                    Tensor(own["name"], "FP32", tensors[places].shape, tensors[places]),
                    pixels_input(rgb),
                    files_input(*files),
                )
                for client in clients
            ]
            for each in scores[: len(clients)]:
                np.testing.assert_allclose(each, expected[places], atol=1e-4)
            for each in scores:
                assert each.argmax(axis=1).tolist() == best[places].tolist()
            form = [("image", (f"{place}.jpg", file)) for place, file in enumerate(files)]
            answer = http.post("/v1/classify", files=form).json()
            firsts = [each["predictions"][0]["index"] for each in answer["results"]]
            assert firsts == best[places].tolist()


def test_a_tensor_in_json_is_taken_too(addresses: list[str]) -> None:
    tensor = np.zeros((1, 3, 224, 224), np.float32)
    with triton_client("http", addresses[0]) as client:
        (own,) = client.get_model_metadata(SQUEEZENET.stem)["inputs"]
        answers = [
            client.infer(
                SQUEEZENET.stem, [Tensor(own["name"], "FP32", tensor.shape, tensor, binary)]
            )
            for binary in (True, False)
        ]
        name = answers[0].get_response()["outputs"][0]["name"]
        np.testing.assert_array_equal(answers[0].as_numpy(name), answers[1].as_numpy(name))


def _decoded(file: Path, meaning: Any) -> Any:
    return prepare_image(file.read_bytes(), meaning, ImageLimits()).run()
