"""The server on a GPU, over HTTP: photographs get the same labels as from ONNX Runtime."""

import csv
import json
import urllib.request
from tempfile import TemporaryFile

import pytest

from benchmarks.gpu import carried
from benchmarks.serving.served import logged
from kernels.device.cuda_device import CudaDevice
from models import DeviceKind, load_classifier, open_engine
from service.images.prepare import ImageLimits, prepare_image
from tests.support import PATIENCE_S
from tests.support.kernels.gpu import open_gpu

PHOTOGRAPHS = 10
LIMITS = ImageLimits(20_000_000, 50_000_000)


@pytest.fixture
def gpu(pytestconfig: pytest.Config) -> CudaDevice:
    return open_gpu(pytestconfig)


@pytest.mark.gpu
def test_photographs_that_are_posted_get_onnxruntimes_labels_from_the_gpu(gpu: CudaDevice) -> None:
    data = carried.data()
    if data is None:
        pytest.skip("SqueezeNet and the photographs are not here; `carry` brings them")
    model = data / "squeezenet1.1-fp16.onnx"
    with (data / "images" / "labels.csv").open() as labels:
        files = [data / "images" / row["file"] for row in csv.DictReader(labels)]
    bodies = [file.read_bytes() for file in files if file.is_file()][:PHOTOGRAPHS]
    classifier = load_classifier(model, overrides={"preset": "caffe"})
    reference = open_engine(classifier, device=DeviceKind.CPU, max_batch=1)
    images = [prepare_image(body, classifier.preprocessing, LIMITS).run() for body in bodies]
    expected = [int(reference.run(image[None]).scores.argmax()) for image in images]
    answered = []
    options = [str(model), "--preset", "caffe", "--device", "cuda", "--precision", "fp32"]
    with TemporaryFile("w+") as log, logged(options, log) as (_, url, _):
        for body in bodies:
            request = urllib.request.Request(
                f"{url}/v1/classify", body, {"Content-Type": "image/jpeg"}
            )
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                answered.append(json.load(answer)["results"][0]["predictions"][0]["index"])
        with urllib.request.urlopen(f"{url}/metrics", timeout=PATIENCE_S) as answer:
            metrics = answer.read().decode()
    assert answered == expected
    assert f'device="{gpu.name}' in metrics
