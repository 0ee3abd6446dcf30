"""The server on the CUDA engine, its kernels executed on the CPU."""

from collections.abc import Collection

import httpx
import numpy as np
import pytest

from cusim.device import CusimDevice
from kernels.tuning.heuristic import heuristic
from models import BUILT_IN_MODEL, Batch, DecodedImage, Results, load_classifier
from models.engines.cuda_engine import CudaEngine
from service.api.app import create_app
from service.hosting.pipeline import ModelInfo
from service.hosting.repository import Repository
from service.images.prepare import ImageLimits, prepare_image

LIMITS = ImageLimits(20_000_000, 50_000_000)


@pytest.mark.anyio
@pytest.mark.parametrize("resizes", [False, True])
async def test_a_picture_posted_to_the_server_is_answered_by_cuda_source(
    resizes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    digits = load_classifier(BUILT_IN_MODEL)
    device = CusimDevice()
    engine = CudaEngine(digits, device, max_batch=4, choose=heuristic(device), resizes=resizes)
    run, decoded, same = engine.run, list[bool](), list[bool]()

    def noting(images: Batch, inner: Collection[str] = ()) -> Results:
        results = run(images, inner)
        if not isinstance(images, np.ndarray):  # those are of the proof and of measurements
            decoded.extend(isinstance(image, DecodedImage) for image in images)
            here = run([np.asarray(image) for image in images])
            same.append(results.scores.tobytes() == here.scores.tobytes())
        return results

    meaning = digits.preprocessing
    info = ModelInfo("digits", "1", meaning.image_shape, "logits", meaning.output, meaning.labels)
    repository = Repository(max_batch=4, max_queue=16, max_body_bytes=20_000_000, decode_threads=1)
    repository.add(info, [engine], lambda data: prepare_image(data, meaning, LIMITS))
    await repository.warm_up()
    monkeypatch.setattr(engine, "run", noting)
    transport = httpx.ASGITransport(create_app(repository))
    async with httpx.AsyncClient(transport=transport, base_url="http://convoy") as client:
        samples = sorted((BUILT_IN_MODEL.parent / "samples").iterdir())
        for sample in samples:
            answer = await client.post("/v1/classify", content=sample.read_bytes())
            assert answer.status_code == 200, answer.text
            best = answer.json()["results"][0]["predictions"][0]
            assert best["label"] == sample.name[0]
    assert len(decoded) >= len(samples)
    assert all(each == resizes for each in decoded)
    assert all(same)
    await repository.close(5)
    device.close()
