"""A client of Triton that moves to Convoy: its tensors give what ONNX Runtime gives them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnxruntime
import pytest
import tritonclient.http as triton

from models import load_classifier
from models.preprocessing import normalised
from service.images.prepare import ImageLimits, prepare_image
from tests.support.networks import SHARED, SQUEEZENET, needs_shared
from tests.support.servers.several_models import convoy_serve
from tests.support.service.triton import files_input, pixels_input

pytestmark = needs_shared
PHOTOGRAPHS = sorted((SHARED / "data/images").glob("*.JPEG"))[:50]


@pytest.fixture(scope="module", params=["0", "1"], ids=["one process", "workers"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    with convoy_serve(SQUEEZENET, "--preset", "caffe", "--workers", request.param) as port:
        yield f"127.0.0.1:{port}"


def tensor_input(name: str, tensor: Any, *, binary: bool = True) -> Any:
    made = triton.InferInput(name, list(tensor.shape), "FP32")
    made.set_data_from_numpy(tensor, binary_data=binary)
    return made


def test_tensors_pixels_files_and_v1_agree_on_photographs(address: str) -> None:
    assert len(PHOTOGRAPHS) == 50
    classifier = load_classifier(SQUEEZENET, overrides={"preset": "caffe"})
    meaning = classifier.preprocessing
    session = onnxruntime.InferenceSession(classifier.network.proto.SerializeToString())
    bgr = np.stack([_decoded(file, meaning) for file in PHOTOGRAPHS])
    tensors = normalised(bgr, meaning)
    (expected,) = session.run(None, {session.get_inputs()[0].name: tensors})
    expected = expected.reshape(len(tensors), -1)
    best = expected.argmax(axis=1)
    with (
        triton.InferenceServerClient(address, network_timeout=60) as client,
        httpx.Client(base_url=f"http://{address}", timeout=60) as http,
    ):
        (image, own) = client.get_model_metadata(SQUEEZENET.stem)["inputs"]
        assert image["parameters"]["content"] == "RGB pixels, 0 to 255"
        assert (own["datatype"], own["shape"]) == ("FP32", [-1, 3, 224, 224])
        for places in np.array_split(np.arange(50), 10):
            rgb = np.ascontiguousarray(bgr[places][..., ::-1])
            files = [PHOTOGRAPHS[place].read_bytes() for place in places]
            scores = [
                client.infer(SQUEEZENET.stem, [sent]).as_numpy(classifier.network.graph.outputs[0])
                for sent in (
                    tensor_input(own["name"], tensors[places]),
                    pixels_input(rgb).by("http"),
                    files_input(*files).by("http"),
                )
            ]
            np.testing.assert_allclose(scores[0], expected[places], atol=1e-4)
            for each in scores:
                assert each.argmax(axis=1).tolist() == best[places].tolist()
            form = [("image", (f"{place}.jpg", file)) for place, file in enumerate(files)]
            answer = http.post("/v1/classify", files=form).json()
            firsts = [each["predictions"][0]["index"] for each in answer["results"]]
            assert firsts == best[places].tolist()


def test_a_tensor_in_json_is_taken_too(address: str) -> None:
    tensor = np.zeros((1, 3, 224, 224), np.float32)
    with triton.InferenceServerClient(address, network_timeout=60) as client:
        _, own = client.get_model_metadata(SQUEEZENET.stem)["inputs"]
        answers = [
            client.infer(SQUEEZENET.stem, [tensor_input(own["name"], tensor, binary=binary)])
            for binary in (True, False)
        ]
        name = answers[0].get_response()["outputs"][0]["name"]
        np.testing.assert_array_equal(answers[0].as_numpy(name), answers[1].as_numpy(name))


def _decoded(file: Path, meaning: Any) -> Any:
    return prepare_image(file.read_bytes(), meaning, ImageLimits()).run()
