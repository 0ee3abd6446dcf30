"""The main purpose with real input: `convoy serve` as users start it, with requests over HTTP."""

import csv
import io
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from models import BUILT_IN_MODEL, DeviceKind, load_classifier, open_engine
from service.images.prepare import ImageLimits, prepare_image
from tests.support import PATIENCE_S
from tests.support.networks import SHARED, SQUEEZENET, needs_shared
from tests.support.servers.control import processor_s
from tests.support.servers.several_models import convoy_serve

PHOTOGRAPHS = SHARED / "data/images"
LABELS = SHARED / "data/imagenet_labels.txt"
SAMPLES = sorted((BUILT_IN_MODEL.parent / "samples").iterdir())
CONVOY = [sys.executable, "-c", "from service.cli import main; main()"]


@dataclass(frozen=True)
class ServeProcess:
    """A running `convoy serve`."""

    url: str
    process: "subprocess.Popen[str]"
    client: httpx.Client  # to make one takes 25 ms of a core

    def classify(self, data: bytes, top_k: int = 1) -> dict[str, Any]:
        return classify(self.client, data, top_k)

    def batches(self) -> dict[int, float]:
        """Return the number of batches of each size, from /metrics."""
        text = self.client.get("/metrics").text
        found = re.findall(
            r'convoy_batch_size_bucket\{le="([\d.]+)",model="digits"\} ([\d.]+)', text
        )
        upto = {int(float(size)): float(count) for size, count in found}
        return {size: count - upto.get(size - 1, 0.0) for size, count in upto.items()}

    def peak_bytes(self) -> int:
        """Return the peak memory of the process."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024


def classify(client: httpx.Client, data: bytes, top_k: int = 1) -> dict[str, Any]:
    response = client.post(f"/v1/classify?top_k={top_k}", content=data)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


@contextmanager
def served(*arguments: str) -> Iterator[ServeProcess]:
    """Yield a ready `convoy serve` on a free loopback port; it must exit with status 0 on
    SIGTERM."""
    process = subprocess.Popen(
        [*CONVOY, "serve", "--port", "0", *arguments], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        url = re.search(r"at (http://\S+) on", line)
        assert url, line
        with httpx.Client(base_url=url[1], timeout=PATIENCE_S) as client:
            yield ServeProcess(url[1], process, client)
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def digits() -> Iterator[ServeProcess]:
    with served() as server:
        yield server


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_a_sample_digit_gives_its_label(digits: ServeProcess, sample: Path) -> None:
    answer = digits.classify(sample.read_bytes(), top_k=3)
    assert answer["model"] == "digits"
    (result,) = answer["results"]
    assert result["predictions"][0]["label"] == sample.name[0]
    assert len(result["predictions"]) == 3


def test_eight_clients_in_parallel_travel_together_and_get_what_they_get_alone(
    digits: ServeProcess,
) -> None:
    alone = {sample: digits.classify(sample.read_bytes(), top_k=10) for sample in SAMPLES}
    start = threading.Barrier(8)

    def ask(client: int) -> list[tuple[Path, dict[str, Any]]]:
        order = [SAMPLES[(client + i) % len(SAMPLES)] for i in range(15)]
        start.wait()
        return [(sample, digits.classify(sample.read_bytes(), top_k=10)) for sample in order]

    with ThreadPoolExecutor(8) as pool:
        answers = [pair for client in pool.map(ask, range(8)) for pair in client]
        files = [("file", sample.read_bytes()) for sample in SAMPLES[:8]]
        form = digits.client.post("/v1/classify?top_k=10", files=files)
    for sample, answer in [
        *answers,
        *(
            (sample, {"results": [result]})
            for sample, result in zip(SAMPLES[:8], form.json()["results"], strict=True)
        ),
    ]:
        ours, expected = (
            {p["label"]: p["probability"] for p in a["results"][0]["predictions"]}
            for a in (answer, alone[sample])
        )
        assert ours == pytest.approx(expected, abs=1e-5)
    # Which size is best is measured, and so depends on how busy this machine is.
    assert max(size for size, count in digits.batches().items() if count) > 1
    assert len(answers) == 120


@needs_shared
@pytest.mark.parametrize(
    ("every", "first", "of_five"),
    [(5, 0.7, 0.87), pytest.param(1, 0.65, 0.87, marks=pytest.mark.slow)],
)
def test_squeezenet_classifies_photographs_over_http_as_onnxruntime_does(
    every: int, first: float, of_five: float
) -> None:
    with (PHOTOGRAPHS / "labels.csv").open() as file:
        rows = list(csv.DictReader(file))[::every]
    truth = np.array([int(row["class_index"]) for row in rows])
    data = [(PHOTOGRAPHS / row["file"]).read_bytes() for row in rows]
    # One thread on both sides: several wait for each other in every layer, beside other tests.
    with (
        convoy_serve(
            SQUEEZENET, "--preset", "caffe", "--labels", LABELS, "--max-batch", "4"
        ) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
        ThreadPoolExecutor(4) as pool,
    ):
        answers = list(pool.map(lambda body: classify(client, body, top_k=5), data))
    predictions = [answer["results"][0]["predictions"] for answer in answers]
    ranked = np.array([[p["index"] for p in five] for five in predictions])

    overrides = {"preset": "caffe", "labels": str(LABELS)}
    classifier = load_classifier(SQUEEZENET, overrides=overrides)
    limits = ImageLimits(20_000_000, 50_000_000)
    pixels = [prepare_image(body, classifier.preprocessing, limits).run() for body in data]
    engine = open_engine(classifier, device=DeviceKind.CPU, max_batch=1, threads=1)
    expected = np.array([engine.run(image[np.newaxis]).scores.argmax() for image in pixels])

    assert len(rows) == 200 // every
    assert (ranked[:, 0] == expected).all()
    assert (ranked[:, 0] == truth).mean() >= first
    assert (ranked == truth[:, np.newaxis]).any(axis=1).mean() >= of_five
    names = LABELS.read_text(encoding="utf-8").splitlines()
    assert [five[0]["label"] for five in predictions] == [names[i].strip() for i in ranked[:, 0]]


def _picture(kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(buffer, kind, **options)
    return buffer.getvalue()


def _bomb() -> bytes:
    """Return 144 megapixels in less than 20 kB."""
    buffer = io.BytesIO()
    Image.new("1", (12_000, 12_000)).save(buffer, "PNG")
    assert buffer.tell() < 20_000
    return buffer.getvalue()


def _animation() -> bytes:
    buffer = io.BytesIO()
    frames = [Image.effect_noise((32, 32), 50).convert("RGB") for _ in range(3)]
    frames[0].save(buffer, "WEBP", save_all=True, append_images=frames[1:])
    return buffer.getvalue()


BAD_INPUT: dict[str, tuple[Callable[[], dict[str, Any]], int, str]] = {
    "an empty body": (lambda: {"content": b""}, 400, "empty"),
    "text": (lambda: {"content": b"is this a cat?"}, 415, "; send a JPEG, PNG, WebP"),
    "text that says it is text": (
        lambda: {"content": b"hello", "headers": {"content-type": "text/plain"}},
        415,
        "image/jpeg",
    ),
    "a truncated JPEG": (lambda: {"content": _picture("JPEG")[:-200]}, 400, "truncated"),
    "a PNG bomb": (lambda: {"content": _bomb()}, 413, "pixels"),
    "an animated WebP": (lambda: {"content": _animation()}, 415, "still"),
    "a body of 100 MB": (
        lambda: {"content": b"\xff\xd8" + bytes(100_000_000)},
        413,
        "20000000 bytes",
    ),
    "a wrong field name": (lambda: {"files": {"pic": _picture("PNG")}}, 422, "file"),
    "a form of no files": (
        lambda: {
            "content": b"--x--\r\n",
            "headers": {"content-type": "multipart/form-data; boundary=x"},
        },
        400,
        "no file",
    ),
    "top_k=0": (lambda: {"content": _picture("PNG"), "params": {"top_k": "0"}}, 422, "top_k"),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_refused_quickly_in_bounded_memory_and_the_next_is_answered(
    digits: ServeProcess, name: str
) -> None:
    make, status, words = BAD_INPUT[name]
    request = make()
    before, used_s = digits.peak_bytes(), processor_s(digits.process.pid)
    response = httpx.post(f"{digits.url}/v1/classify", timeout=PATIENCE_S, **request)
    assert response.status_code == status, response.text
    assert list(response.json()) == ["error"]
    assert words in response.json()["error"]
    assert processor_s(digits.process.pid) - used_s < 2
    # The bomb would take 432 MB of pixels, the large body 100 MB.
    assert digits.peak_bytes() - before < 40_000_000
    answer = digits.classify(SAMPLES[3].read_bytes())
    assert answer["results"][0]["predictions"][0]["label"] == "3"
