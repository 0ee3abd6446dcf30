"""The server on the CUDA engine, its kernels executed on the CPU."""

import httpx
import pytest

from cusim.device import CusimDevice
from kernels.tuning.heuristic import heuristic
from models import BUILT_IN_MODEL, load_classifier
from models.engines.cuda_engine import CudaEngine
from service.api.app import create_app
from service.hosting.pipeline import ModelInfo
from service.hosting.repository import Repository
from service.images.prepare import ImageLimits, prepare_image

LIMITS = ImageLimits(20_000_000, 50_000_000)


@pytest.mark.anyio
async def test_a_picture_posted_to_the_server_is_answered_by_cuda_source() -> None:
    digits = load_classifier(BUILT_IN_MODEL)
    device = CusimDevice()
    engine = CudaEngine(digits, device, max_batch=4, choose=heuristic(device))
    meaning = digits.preprocessing
    info = ModelInfo("digits", "1", meaning.image_shape, "logits", meaning.output, meaning.labels)
    repository = Repository(max_batch=4, max_queue=16, max_body_bytes=20_000_000, decode_threads=1)
    repository.add(info, [engine], lambda data: prepare_image(data, meaning, LIMITS))
    await repository.warm_up()
    transport = httpx.ASGITransport(create_app(repository))
    async with httpx.AsyncClient(transport=transport, base_url="http://convoy") as client:
        for sample in sorted((BUILT_IN_MODEL.parent / "samples").iterdir()):
            answer = await client.post("/v1/classify", content=sample.read_bytes())
            assert answer.status_code == 200, answer.text
            best = answer.json()["results"][0]["predictions"][0]
            assert best["label"] == sample.name[0]
    await repository.close(5)
    device.close()
