"""Models of clips on a server. Each form of a clip gets the same label, on both engines."""

import base64
import io
import json
import zipfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from PIL import Image

from benchmarks.networks.c3d import C3D, PAPER, c3d
from cusim.build import FAST
from cusim.device import CusimDevice
from kernels.tuning.heuristic import heuristic
from models import Classifier, Engine, load_classifier
from models.digits.dataset import handwriting
from models.engines.cuda_engine import CudaEngine
from models.engines.onnxruntime_engine import OnnxRuntimeEngine, SessionModel
from models.engines.tolerance import relative_error
from models.preprocessing import normalised
from service.api.app import create_app
from service.hosting.reading import info_of
from service.hosting.repository import Repository
from service.http.body import IMAGE_TYPES
from service.images.clip import CLIP_TYPES, prepare_clip
from service.images.prepare import ImageLimits
from tests.service.images.test_clip import REFUSED
from tests.service.images.test_video import REFUSED as REFUSED_VIDEOS
from tests.support import PATIENCE_S
from tests.support.clips import MODEL_PATH
from tests.support.clips.moving import FRAMES, MOTIONS, clips_of, moving
from tests.support.clips.videos import video
from tests.support.images.files import encode
from tests.support.models.engines import network_tolerance
from tests.support.service.client import PATH, AppClient, error_of, serving

pytestmark = pytest.mark.anyio

Clip = NDArray[np.uint8]

_TAKE = {
    *("/v1/classify", "/v1/models/{model}/classify", "/v1/models/{model}/pixels"),
    *("/v1/embeddings", "/v1/models/{model}/embeddings"),
}


@asynccontextmanager
async def served(classifier: Classifier, engine: Engine) -> AsyncIterator[AppClient]:
    repository = Repository(
        max_batch=4, max_queue=32, max_body_bytes=2**20, decode_threads=1, measure_s=0.0
    )
    prepare = partial(
        prepare_clip, preprocessing=classifier.preprocessing, limits=ImageLimits(max_bytes=2**20)
    )
    repository.add(info_of(classifier, "1"), [engine], prepare)
    await repository.warm_up()
    async with AppClient(create_app(repository)) as client:
        yield client
    await repository.close(PATIENCE_S)


@asynccontextmanager
async def moving_digits() -> AsyncIterator[AppClient]:
    classifier = load_classifier(MODEL_PATH)
    engine = OnnxRuntimeEngine(SessionModel.of(classifier), max_batch=4, threads=1)
    async with served(classifier, engine) as client:
        yield client


def digit_moving(motion: str, seed: int = 3) -> Clip:
    """Return a clip of a moving digit. It has no noise, so that GIF and JPEG store it well."""
    digits, _ = handwriting()
    clip = moving(digits.images[seed], motion, np.random.default_rng(seed))
    return np.where(clip > 127, 255, 0).astype(np.uint8)


def pictures(clip: Clip) -> list[Image.Image]:
    return [Image.fromarray(frame) for frame in clip]


def animated(clip: Clip, kind: str) -> bytes:
    first, *others = [image.convert("RGB") for image in pictures(clip)]
    options = {"lossless": True} if kind == "WEBP" else {}
    return encode(first, kind, save_all=True, append_images=others, **options)


def archive(clip: Clip) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as opened:
        for number, image in enumerate(pictures(clip)):
            opened.writestr(f"{number}.png", encode(image, "PNG"))
    return file.getvalue()


def form_of(clip: Clip) -> list[Any]:
    return [("file", (f"{n}.png", encode(image, "PNG"))) for n, image in enumerate(pictures(clip))]


def labels_of(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [result["predictions"][0]["label"] for result in answer.json()["results"]]


async def inferred(client: AppClient, tensor: dict[str, Any]) -> str:
    answer = await client.post("/v2/models/moving/infer", json={"inputs": [tensor]})
    assert answer.status_code == 200, answer.text
    return MOTIONS[int(np.argmax(answer.json()["outputs"][0]["data"]))]


@pytest.mark.parametrize("motion", MOTIONS)
async def test_a_clip_in_each_form_gets_the_same_label(motion: str) -> None:
    clip = digit_moving(motion)
    kinds = {
        **{f"image/{kind.lower()}": animated(clip, kind) for kind in ("GIF", "WEBP", "PNG")},
        "application/zip": archive(clip),
        "video/mp4": video(pictures(clip)),
        "video/quicktime": video(pictures(clip), "mov", "libx265"),
        "video/webm": video(pictures(clip), "webm", "libvpx-vp9"),
        "video/x-matroska": video(pictures(clip), "matroska", "libsvtav1"),
    }
    whole = list(kinds.values())
    classifier = load_classifier(MODEL_PATH)
    pixels = clip[np.newaxis, ..., np.newaxis]
    tensor = normalised(pixels, classifier.preprocessing)
    files = [base64.b64encode(file).decode() for file in whole]
    async with moving_digits() as client:
        assert labels_of(await client.post(PATH, files=form_of(clip))) == [motion]
        for kind, file in kinds.items():
            headers = {"content-type": kind}
            assert labels_of(await client.post(PATH, content=file, headers=headers)) == [motion]
        together = await client.post(PATH, files=[("file", ("clip", file)) for file in whole])
        assert labels_of(together) == [motion] * 8
        uint8 = {"name": "image", "datatype": "UINT8", "shape": pixels.shape}
        assert await inferred(client, {**uint8, "data": pixels.ravel().tolist()}) == motion
        fp32 = {"name": "clip", "datatype": "FP32", "shape": tensor.shape}
        assert await inferred(client, {**fp32, "data": tensor.ravel().tolist()}) == motion
        answer = await client.post("/v1/embeddings", json={"input": files})
        vectors = [each["embedding"] for each in answer.json()["data"]]
        assert len(vectors) == 8
        np.testing.assert_allclose(vectors[:4], vectors[:1] * 4, atol=1e-4)
        # Videos have other colours than pixels have.
        assert relative_error(np.array(vectors[4:]), np.array(vectors[:1] * 4)) < 0.1


async def test_openapi_lists_the_media_types_of_clips_where_they_are_taken() -> None:
    async def listed(client: AppClient) -> list[set[str]]:
        paths = (await client.get("/openapi.json")).json()["paths"]
        bodies = [each["post"]["requestBody"] for path, each in paths.items() if path in _TAKE]
        return [set(body["content"]) for body in bodies]

    async with moving_digits() as client:
        for types in await listed(client):
            assert {*IMAGE_TYPES, *CLIP_TYPES} <= types
    async with serving() as (client, _):
        for types in await listed(client):
            assert {*IMAGE_TYPES} <= types
            assert not {*CLIP_TYPES} & types


async def test_a_video_is_decoded_in_a_process_of_its_own_however_small_it_is() -> None:
    clip = digit_moving("up")
    async with moving_digits() as client:
        processes = client.app.state.repository._processes
        assert labels_of(await client.post(PATH, files=[("file", animated(clip, "GIF"))])) == ["up"]
        assert len(processes._idle) == 0
        files = [("file", video(pictures(clip)))]
        assert labels_of(await client.post(PATH, files=files)) == ["up"]
        (process,) = processes._idle
        process._process.kill()  # as a video that crashes FFmpeg would
        assert "the process that decoded the image" in error_of(
            await client.post(PATH, files=files), 500
        )
        assert labels_of(await client.post(PATH, files=files)) == ["up"]


async def test_one_request_and_the_next_are_of_other_motions() -> None:
    async with moving_digits() as client:
        whole = [("file", ("clip", animated(digit_moving(motion), "GIF"))) for motion in MOTIONS]
        assert labels_of(await client.post(PATH, files=whole)) == list(MOTIONS)


async def test_what_a_model_of_clips_is_and_gets_is_shown() -> None:
    async with moving_digits() as client:
        (model,) = (await client.get("/v1/models")).json()["models"]
        assert model["image"] == [FRAMES, 32, 32, 1]
        answer = await client.post("/v1/models/moving/pixels", files=form_of(digit_moving("up")))
        with Image.open(io.BytesIO(answer.content)) as image:
            assert image.size == (32, FRAMES * 32)
        own = {"clip": [-1, 1, FRAMES, 32, 32]}  # as the model's file has it
        pixels = {"image": [-1, FRAMES, 32, 32, 1]}
        for query, inputs in {"": own, "?all=true": own | pixels}.items():
            metadata = (await client.get(f"/v2/models/moving{query}")).json()
            assert {each["name"]: each["shape"] for each in metadata["inputs"]} == inputs


async def test_a_wrong_clip_is_refused_with_what_is_right() -> None:
    clip = digit_moving("up")
    still = encode(pictures(clip)[0], "PNG")
    async with moving_digits() as client:
        says = error_of(await client.post(PATH, content=still), 400)
        assert "a single still image is not a clip; send the frames of a clip as a form" in says
        mixed = [*form_of(clip), ("file", ("clip.gif", animated(clip, "GIF")))]
        assert "8 of 9 files are still images" in error_of(
            await client.post(PATH, files=mixed), 400
        )
        says = error_of(await client.post(PATH, content=b"x" * 99), 415)
        assert "this is the text 'xxx" in says
        says = error_of(await client.post(f"{PATH}?explain=1", files=form_of(clip)), 422)
        assert "has no maps" in says
        broken = animated(clip, "GIF")[:-40]
        assert "the GIF is truncated" in error_of(await client.post(PATH, content=broken), 400)


async def test_a_hundred_malformed_clips_are_refused_and_the_next_good_one_is_answered() -> None:
    clip = digit_moving("down")
    whole = [animated(clip, kind) for kind in ("GIF", "WEBP", "PNG")] + [archive(clip)]
    whole += [video(pictures(clip)), video(pictures(clip), "webm", "libvpx-vp9")]
    malformed = [make for make, *_ in (*REFUSED.values(), *REFUSED_VIDEOS.values())]
    bodies = [made for make in malformed if isinstance(made := make(), bytes)]
    bodies += [file[: len(file) * part // 12] for file in whole for part in range(1, 11)]
    assert len(bodies) >= 100
    headers = {"content-type": "application/octet-stream"}
    async with moving_digits() as client:
        for body in bodies:
            answer = await client.post(PATH, content=body, headers=headers)
            assert answer.status_code in (400, 413, 415), answer.text
            assert len(answer.json()["error"]) < 400
        for body in whole:
            assert labels_of(await client.post(PATH, content=body, headers=headers)) == ["down"]


async def test_a_model_of_images_still_refuses_clips() -> None:
    async with serving() as (client, _):
        headers = {"content-type": "application/zip"}
        says = error_of(await client.post(PATH, content=b"PK\3\4", headers=headers), 415)
        assert "unsupported Content-Type 'application/zip'" in says


def test_the_model_knows_motions_of_digits_that_it_has_not_seen() -> None:
    classifier = load_classifier(MODEL_PATH)
    engine = OnnxRuntimeEngine(SessionModel.of(classifier), max_batch=50, threads=1).warm_up()
    clips = clips_of(handwriting()[1], 300, 9)
    pixels = clips.pixels[..., np.newaxis]
    scores = [engine.run(pixels[begin : begin + 50]).scores for begin in range(0, 300, 50)]
    assert (np.concatenate(scores).argmax(1) == clips.motions).mean() > 0.95
    engine.close()
    metadata = {each.key: each.value for each in onnx.load(MODEL_PATH).metadata_props}
    assert float(metadata["held-out accuracy"]) > 0.95


async def scores_of(classifier: Classifier, engine: Engine, clips: Sequence[bytes]) -> Any:
    async with served(classifier, engine) as client:
        rows = []
        for clip in clips:
            tensor = {"name": "image", "datatype": "BYTES", "shape": [1]}
            parameters = {"binary_data_size": 4 + len(clip)}
            head = json.dumps({"inputs": [{**tensor, "parameters": parameters}]}).encode()
            answer = await client.post(
                f"/v2/models/{classifier.name}/infer",
                content=head + len(clip).to_bytes(4, "little") + clip,
                headers={"Inference-Header-Content-Length": str(len(head))},
            )
            assert answer.status_code == 200, answer.text
            rows.append(answer.json()["outputs"][0]["data"])
        return np.array(rows)


def c3d_of(folder: Path, network: C3D) -> Classifier:
    """Return C3D with random weights."""
    path = folder / "c3d.onnx"
    path.write_bytes(c3d(network).SerializeToString())
    return load_classifier(path, overrides={"preset": "imagenet"})


async def check_agreement(classifier: Classifier, clips: Sequence[bytes]) -> None:
    """Serve a model with Convoy's kernels, on the simulator, and with ONNX Runtime. Check that the
    scores agree."""
    device = CusimDevice(FAST)
    cuda = CudaEngine(classifier, device, max_batch=1, choose=heuristic(device))
    cpu = OnnxRuntimeEngine(SessionModel.of(classifier), max_batch=1, threads=1)
    by_kernels = await scores_of(classifier, cuda, clips)
    by_ort = await scores_of(replace(classifier), cpu, clips)
    error = relative_error(by_kernels, by_ort)
    assert error < network_tolerance(classifier.network.graph)
    assert len(clips) == 1 or np.ptp(by_ort, axis=0).max() > 0  # the clips differ
    device.close()


async def test_c3d_and_the_moving_digits_agree_on_both_engines(tmp_path: Path) -> None:
    clips = [animated(digit_moving(motion), "GIF") for motion in ("left", "growing")]
    small = c3d_of(tmp_path, C3D(clip=(8, 24, 24), filters=(4, 8), hidden=16, classes=5))
    assert small.preprocessing.frames == 8
    for classifier in (small, load_classifier(MODEL_PATH)):
        await check_agreement(classifier, clips)


@pytest.mark.slow
async def test_the_papers_c3d_agrees_on_both_engines(tmp_path: Path) -> None:
    """A clip of 16×112×112 needs 8 thousand million multiplications, which take minutes on the
    simulator."""
    paper = c3d_of(tmp_path, PAPER)
    assert paper.preprocessing.image_shape == (16, 112, 112, 3)
    await check_agreement(paper, [video(pictures(digit_moving("growing")))])
