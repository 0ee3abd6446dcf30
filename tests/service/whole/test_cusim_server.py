"""The server with the CUDA engine. A simulator runs its kernels on the CPU."""

from collections.abc import Collection

import httpx
import numpy as np
import pytest
from PIL import Image

from cusim.device import CusimDevice
from kernels.tuning.heuristic import heuristic
from models import BUILT_IN_MODEL, Batch, Kind, Results, kind_of, load_classifier
from models.engines.cuda_engine import CudaEngine
from service.api.app import create_app
from service.hosting.model_info import ModelInfo
from service.hosting.repository import Repository
from service.images.prepare import ImageLimits, prepare_image
from tests.support import PATIENCE_S
from tests.support.images.files import encode

LIMITS = ImageLimits(20_000_000, 50_000_000)


@pytest.mark.anyio
@pytest.mark.parametrize("takes", [Kind.TENSOR, Kind.DECODED, Kind.JPEG])
async def test_a_picture_posted_to_the_server_is_answered_by_cuda_source(
    takes: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    digits = load_classifier(BUILT_IN_MODEL)
    device = CusimDevice()
    engine = CudaEngine(digits, device, max_batch=1, choose=heuristic(device), takes=takes)
    run, kinds, scores = engine.run, list[Kind](), list[bytes]()

    def noting(images: Batch, inner: Collection[str] = ()) -> Results:
        results = run(images, inner)
        if not isinstance(images, np.ndarray):  # those are of the proof and of measurements
            kinds.extend(map(kind_of, images))
            scores.append(results.scores.tobytes())
        return results

    meaning = digits.preprocessing
    info = ModelInfo("digits", "1", meaning.image_shape, "logits", meaning.output, meaning.labels)
    repository = Repository(
        max_batch=1, max_queue=16, max_body_bytes=20_000_000, decode_threads=1, measure_s=0.0
    )
    repository.add(info, [engine], lambda data: prepare_image(data, meaning, LIMITS))
    await repository.warm_up()
    monkeypatch.setattr(engine, "run", noting)
    transport = httpx.ASGITransport(create_app(repository))
    every = sorted((BUILT_IN_MODEL.parent / "samples").iterdir())
    samples = list({sample.suffix: sample for sample in every}.values())  # one of each format
    posted = [(sample.name[0], sample.read_bytes()) for sample in samples]
    grey = Image.open(samples[0]).convert("L")
    posted.append((samples[0].name[0], encode(grey, "JPEG")))  # as the digits are, of one channel
    async with httpx.AsyncClient(transport=transport, base_url="http://convoy") as client:
        for label, content in posted:
            answer = await client.post("/v1/classify", content=content)
            assert answer.status_code == 200, answer.text
            best = answer.json()["results"][0]["predictions"][0]
            assert best["label"] == label
            here = prepare_image(content, meaning, LIMITS).run()
            assert scores[-1] == run([here]).scores.tobytes()
        exposed = (await client.get("/metrics")).text
        (described,) = (await client.get("/v1/models")).json()["models"]
    assert len(kinds) == len(posted)
    assert kinds[-1] == (takes if takes > Kind.TENSOR else Kind.PIXELS)
    decoded = 'convoy_images_decoded_total{by="gpu",model="digits",why=""}'
    assert (f"{decoded} 1.0" in exposed) == (takes is Kind.JPEG)
    assert described["decoded"].get("gpu", 0) == (takes is Kind.JPEG)
    assert bool(described["decoded"]) == (takes is Kind.JPEG)
    await repository.close(PATIENCE_S)
    device.close()
